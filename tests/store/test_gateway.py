"""The sync gateway in trouble: one deadline, one kind of failure, and never another call's reply."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from ratelimit_app import acquire
from ratelimit_app.core.calls import ScriptCall, StoreUnavailable
from ratelimit_app.core.rates import Rate
from ratelimit_app.store import gateway as gateways
from ratelimit_app.store.gateway import gateway
from tests.store.asking import MINUTE, Asked, decide, new_key
from tests.store.conftest import TIMEOUT, Own
from tests.store.fake_server import CLOSE, FakeServer, greet
from tests.store.garbage import BROKEN, ERRORS, GOOD, LATE, NOT_NUMBERS, ODD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

SLACK = 0.5  # a loaded machine must not turn a test red; without a deadline the waits are far longer
# The threads that refresh and flush beside the requests may connect at any time.
BESIDE = 2
PARSERS = ["redis._parsers.hiredis._HiredisParser", "redis._parsers.resp3._RESP3Parser"]


@contextmanager
def budget() -> Iterator[None]:
    """The block is done within STORE_TIMEOUT and some slack for the machine."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began <= TIMEOUT + SLACK


def unavailable() -> None:
    """A call fails as it should, in time."""
    with budget(), pytest.raises(StoreUnavailable):
        decide(1)


def answered(now: int) -> float:
    """Ask until the store answers, for ten seconds: a tenth is not always enough on a machine under load."""
    until = time.monotonic() + 10
    while True:
        try:
            return decide(now).now
        except StoreUnavailable:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Run a function in some threads at once, and pass on what it raises."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# --- No server, or one that is silent -----------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["unix:///nowhere/at/all.sock", "redis://127.0.0.1:{closed}/0"])
def test_a_server_when_it_refuses_is_unavailable_at_once(point_at: Callable[..., None], url: str) -> None:
    """Nobody listens: one kind of failure, long before the deadline, each time."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = unused.getsockname()[1]
    point_at(url.format(closed=closed))
    for _ in range(5):
        unavailable()


def test_a_name_when_it_cannot_be_resolved_is_unavailable(point_at: Callable[..., None]) -> None:
    """Name resolution is within the deadline as well."""
    point_at("redis://no-such-host.invalid:6379/0")
    unavailable()


@pytest.mark.parametrize("url", ["redis://[:0/", "http://127.0.0.1/", "", "redis://127.0.0.1:99999999/0"])
def test_a_location_when_it_is_none_is_unavailable(point_at: Callable[..., None], url: str) -> None:
    """A wrong LOCATION is a failure of the store, not a 500."""
    point_at(url)
    unavailable()


@pytest.mark.parametrize("backend", ["django.core.cache.backends.locmem.LocMemCache", "no.such.Backend"])
def test_an_alias_when_it_is_no_redis_is_unavailable(settings: Any, backend: str) -> None:
    """C52: a cache that is not shared cannot decide, and says so."""
    settings.CACHES = {"default": {"BACKEND": backend}}
    unavailable()
    settings.RATELIMIT_APP = {"CACHE": "missing"}
    unavailable()


@pytest.mark.parametrize("greets", [True, False])
def test_a_server_when_it_never_answers_costs_one_deadline(fake: FakeServer, greets: bool) -> None:
    """C121: it takes the connection and says nothing, from the start or after the greeting; the next ones ask nothing."""
    fake.answer = lambda command: None
    if not greets:
        fake.greeting = lambda command: None
    for _ in range(3):
        unavailable()
    assert (1 if greets else 0) == len(fake.scripts), "the next ones asked too, though the breaker was open"


def test_a_server_when_its_handshake_is_slow_costs_one_deadline(
    fake: FakeServer, point_at: Callable[..., None]
) -> None:
    """Several slow trips of one handshake share one deadline; when it is done, later calls use it."""

    def slowly(command: list[bytes]) -> bytes:
        time.sleep(TIMEOUT * 0.7)
        return greet(command)

    fake.greeting, fake.answer = slowly, lambda command: GOOD
    point_at(fake.url, CONNECTION_POOL_KWARGS={"client_name": "shop"})
    unavailable()


def test_a_reply_when_it_drips_costs_one_deadline(fake: FakeServer) -> None:
    """A byte now and then does not buy a server more time: the deadline is for the whole reply."""
    fake.answer = lambda command: GOOD
    assert answered(1) == 7
    fake.pace = TIMEOUT / 4
    unavailable()
    fake.pace = 0
    assert answered(1) == 7


def test_a_script_when_it_is_lost_and_then_hung_costs_one_deadline(fake: FakeServer) -> None:
    """NOSCRIPT late, then silence: the second command has what is left of the time."""
    fake.answer = lambda command: GOOD
    decide(1)

    def lost(command: list[bytes]) -> bytes | None:
        if command[0] == b"EVAL":
            return None
        time.sleep(TIMEOUT * 0.8)
        return b"-NOSCRIPT No matching script.\r\n"

    fake.answer = lost
    unavailable()


def test_many_threads_when_the_server_is_silent_wait_one_deadline(fake: FakeServer) -> None:
    """Fifty requests at once wait side by side, not in a row."""
    fake.greeting = lambda command: None
    began = time.monotonic()
    in_threads(50, lambda _: unavailable_somehow())
    assert time.monotonic() - began < TIMEOUT + 2 * SLACK


def unavailable_somehow() -> None:
    """A call fails, whenever."""
    with pytest.raises(StoreUnavailable):
        decide(1)


@pytest.mark.parametrize("warm", [True, False])
def test_a_server_when_stopped_costs_one_deadline_and_then_answers_its_own(own: Own, warm: bool) -> None:
    """A server that hangs costs each call one deadline; when it goes on, its late replies are nobody's."""
    if warm:
        assert answered(1) == 1
    os.kill(own.pid, signal.SIGSTOP)
    try:
        for _ in range(4):
            unavailable()
    finally:
        os.kill(own.pid, signal.SIGCONT)
    assert list(range(2, 200)) == [answered(now) for now in range(2, 200)]


# --- Garbage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in (BROKEN | ERRORS).items()])
def test_a_reply_when_broken_is_unavailable(
    fake: FakeServer, point_at: Callable[..., None], body: bytes, parser: str
) -> None:
    """Whatever bytes come back: StoreUnavailable, in time, and the next call is answered properly."""
    point_at(fake.url, PARSER_CLASS=parser)
    fake.answer = lambda command: GOOD
    assert answered(1) == 7
    fake.answer = lambda command: body
    unavailable()
    fake.answer = lambda command: GOOD
    assert answered(1) == 7


@pytest.mark.parametrize(
    "body", [pytest.param(body, id=name) for name, body in (BROKEN | ODD | ERRORS).items()]
)
def test_a_decision_when_the_reply_is_none_is_degraded(fake: FakeServer, body: bytes) -> None:
    """No reply of any kind reaches a caller as an exception: the failure policy decides."""
    fake.answer = lambda command: body
    decision = acquire("user:1", "5/m", group="garbage")
    assert (True, True) == (decision.allowed, decision.degraded)


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in NOT_NUMBERS.items()])
def test_a_decision_when_the_reply_has_no_numbers_is_degraded(fake: FakeServer, body: bytes) -> None:
    """A number that is none, in a reply of the right size, is a malformed reply."""
    fake.answer = lambda command: body
    assert acquire("user:1", "5/m", group="garbage").degraded


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize(
    "body", [pytest.param(body, id=name) for name, body in (BROKEN | ODD | ERRORS).items()]
)
def test_a_greeting_when_broken_is_unavailable(
    fake: FakeServer, point_at: Callable[..., None], body: bytes, parser: str
) -> None:
    """A handshake that goes wrong in any way is a failure of the store, in time, or no failure at all."""
    point_at(fake.url, PARSER_CLASS=parser)
    fake.greeting, fake.answer = lambda command: body, lambda command: GOOD
    with budget(), suppress(StoreUnavailable):
        assert decide(1).now == 7


def test_bytes_when_nobody_asked_for_them_are_no_reply(fake: FakeServer) -> None:
    """A reply with another one behind it: the second is nobody's, not the next caller's."""
    fake.answer = lambda command: GOOD + LATE
    with suppress(StoreUnavailable):
        assert answered(1) == 7
    fake.answer = lambda command: GOOD
    assert [7, 7] == [answered(1) for _ in range(2)]


# --- Never another's reply ----------------------------------------------------------------------------------------------


def test_a_reply_when_it_comes_late_is_nobodys(fake: FakeServer) -> None:
    """The reply to a call that has given up is not taken for the next one's."""

    def late(command: list[bytes]) -> bytes:
        time.sleep(TIMEOUT * 1.5)
        return GOOD

    fake.answer = late
    unavailable()
    fake.answer = lambda command: LATE
    assert answered(1) == 8


def test_a_reply_when_it_is_lost_is_not_asked_for_again(
    fake: FakeServer, valkey: Any, point_at: Callable[..., None]
) -> None:
    """C56: the script has run and its reply is lost: one command, one entry, and the failure policy."""
    key = new_key()

    def run_and_lose(command: list[bytes]) -> None:
        with suppress(Exception):
            valkey.execute_command(*command)

    from ratelimit_app.store.scripts import script

    valkey.script_load(script("decide").text)
    point_at(fake.url, 1.0)
    fake.answer = run_and_lose
    with pytest.raises(StoreUnavailable):
        decide(None, Asked(key, Rate(5, MINUTE)))
    assert (1, 1) == (len(fake.scripts), valkey.zcard(key))


def test_a_script_when_lost_for_ever_is_sent_once(fake: FakeServer, point_at: Callable[..., None]) -> None:
    """C123: NOSCRIPT is answered by one EVAL, and its failure is final."""
    point_at(fake.url, 5.0)
    fake.answer = lambda command: b"-NOSCRIPT No matching script.\r\n"
    with pytest.raises(StoreUnavailable):
        decide(1)
    assert [b"EVALSHA", b"EVAL"] == [command[0] for command in fake.scripts]


def test_the_server_when_read_only_once_is_met_on_a_new_connection(fake: FakeServer) -> None:
    """C127: READONLY ends the connection; the next request makes a new one and is decided."""
    fake.answer = lambda command: GOOD
    assert answered(1) == 7
    fake.answer = lambda command: b"-READONLY You can't write against a read only replica.\r\n"
    unavailable()
    fake.answer = lambda command: GOOD
    assert answered(1) == 7
    assert fake.connections == 2


def test_a_script_when_flushed_is_sent_again_and_counted_once(valkey: Any) -> None:
    """C123: SCRIPT FLUSH costs one EVAL and no request, under many threads too."""
    key, rate = new_key(), Rate(100, MINUTE)
    decide(None, Asked(key, rate))
    valkey.script_flush()
    in_threads(8, lambda _: [decide(None, Asked(key, rate)) for _ in range(5)])
    assert valkey.zcard(key) == 41


def test_a_long_command_when_the_server_hangs_costs_one_deadline(own: Own) -> None:
    """A command that fills the socket's buffers has one deadline for all of its parts."""
    assert answered(1) == 1
    os.kill(own.pid, signal.SIGSTOP)
    try:
        with budget(), pytest.raises(StoreUnavailable):
            gateway().call(ScriptCall("decide", [], [b"0", b"1", b"x" * 8_000_000]))
    finally:
        os.kill(own.pid, signal.SIGCONT)
    assert answered(2) == 2


def test_a_long_command_when_answered_is_followed_by_short_ones(valkey: Any) -> None:
    """Megabytes go over the same connection as the short commands round them."""
    before = valkey.info("stats")["total_connections_received"]
    for now in range(1, 20, 2):
        assert now == decide(now).now
        call = ScriptCall("refund", [b"k"], [b"1", struct.pack("<ddd", 0, 0, 1) + b"x" * 1_000_000])
        with suppress(StoreUnavailable):
            gateway().call(call)
        assert now + 1 == decide(now + 1).now
    assert valkey.info("stats")["total_connections_received"] - before <= 1 + BESIDE


def test_threads_when_they_share_the_gateway_get_their_own_replies(valkey: Any) -> None:
    """Sixteen threads, 200 calls each: every reply is for its caller; a connection for each at most."""
    before = valkey.info("stats")["total_connections_received"]

    def work(number: int) -> None:
        for now in range(number * 1_000 + 1, number * 1_000 + 201):
            assert now == decide(now).now

    in_threads(16, work)
    assert valkey.info("stats")["total_connections_received"] - before <= 17 + BESIDE


def test_a_process_when_it_forks_shares_no_connection(settings: Any) -> None:
    """Parent and children with a warm gateway get their own replies."""
    environment = os.environ | {
        "RATELIMIT_TEST_DATA": str(settings.DATA),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.store.forking"], env=environment, timeout=60, check=False
    )
    assert done.returncode == 0


def test_calls_when_interrupted_anywhere_leave_nothing_behind() -> None:
    """An exception at a random moment, between sending and reading too, never shifts the replies of later calls."""

    class InterruptedAtRandom(BaseException):  # as KeyboardInterrupt is, and a worker's own timeout
        pass

    def interrupt(_: int, frame: FrameType | None) -> None:
        while frame and frame.f_code.co_name != "_exchange":
            frame = frame.f_back
        if frame:  # not while a thread is being started: that would break the threads' own books
            raise InterruptedAtRandom
        signal.setitimer(signal.ITIMER_REAL, 0.0001)

    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted, now = 0, 1
    try:
        for n in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0001 + n % 50 * 0.00004)
                while True:
                    now += 1
                    assert now == decide(now).now
            except InterruptedAtRandom:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted == 300
    assert list(range(1, 50)) == [decide(one).now for one in range(1, 50)]


@pytest.mark.parametrize("idle", [0.0, 1.1])
def test_connections_when_killed_cost_one_call_at_most(kill_clients: Callable[[], None], idle: float) -> None:
    """CLIENT KILL: one call at most is undecided, none once a connection has been idle for a second."""
    in_threads(4, lambda number: [decide(n + 1) for n in range(20)])
    kill_clients()
    time.sleep(idle)
    failures = 0
    for now in range(1, 20):
        try:
            assert now == decide(now).now
        except StoreUnavailable:
            failures += 1
    assert failures <= (0 if idle else 1)


def test_a_server_when_restarted_is_found_again(own: Own) -> None:
    """A restart costs one call at most, though the server has forgotten the scripts."""
    decide(1)
    own.stop()
    unavailable()
    own.start()
    assert [1, 2, 3] == [answered(now) for now in (1, 2, 3)]


def test_a_server_when_it_hangs_up_after_each_reply_is_still_used(fake: FakeServer) -> None:
    """A proxy that closes after every reply costs failures, never a wrong reply or a leak."""
    fake.answer = lambda command: GOOD + CLOSE
    for _ in range(10):
        with suppress(StoreUnavailable):
            assert answered(1) == 7


def test_a_gateway_when_closed_opens_anew(valkey: Any) -> None:
    """close() lets go of the idle connections, no more."""
    decide(1)
    gateway().close()
    assert answered(2) == 2


def test_settings_when_they_change_make_new_connections(valkey: Any, settings: Any) -> None:
    """A change of CACHES or RATELIMIT_APP is a new gateway; other settings are not."""
    mine = gateway()
    settings.DEBUG = True
    assert mine is gateway()
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "STORE_TIMEOUT": 1.0}
    assert mine is not gateway()
    assert gateways.gateway() is gateway()
