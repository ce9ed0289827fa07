"""The async gateway in trouble: one connection for all tasks of a loop, and never another task's reply."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ratelimit_app import aacquire
from ratelimit_app.core.calls import ScriptCall, StoreTimeout, StoreUnavailable
from ratelimit_app.core.rates import Rate
from ratelimit_app.store import gateway, multiplex
from ratelimit_app.store.gateway import async_gateway
from ratelimit_app.store.scripts import script
from tests.store.asking import MINUTE, Reply, adecide, new_key, read
from tests.store.conftest import TIMEOUT, Own
from tests.store.fake_server import CLOSE, FakeServer, greet
from tests.store.garbage import BROKEN, ERRORS, GOOD, LATE, ODD

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

SLACK = 0.5  # a loaded machine must not turn a test red; without a deadline the waits are far longer
# The threads that refresh and flush beside the requests may connect at any time.
BESIDE = 2


async def unavailable() -> None:
    """A call fails as it should, in time."""
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await adecide(1)
    assert time.monotonic() - began <= TIMEOUT + SLACK


async def answered(now: int) -> float:
    """Ask until the store answers, for ten seconds: a tenth is not always enough on a machine under load."""
    until = time.monotonic() + 10
    while True:
        try:
            return (await adecide(now)).now
        except StoreUnavailable:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
async def no_loose_ends() -> AsyncIterator[None]:
    """Nothing is complained of behind the test's back: destroyed tasks, errors that nobody retrieved."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    yield
    await asyncio.sleep(0)
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


async def test_many_tasks_when_they_share_a_connection_get_their_own_replies(valkey: Any) -> None:
    """A thousand calls at once: one connection, every reply for its caller."""
    before = valkey.info("stats")["total_connections_received"]
    replies = await asyncio.gather(*(adecide(now) for now in range(1, 1_001)))
    assert list(range(1, 1_001)) == [reply.now for reply in replies]
    assert valkey.info("stats")["total_connections_received"] - before <= 1 + BESIDE


async def test_a_reply_when_lost_is_not_asked_for_again(
    fake: FakeServer, valkey: Any, point_at: Callable[..., None]
) -> None:
    """C56: the script has run and its reply is lost: one command, one entry."""
    key = new_key()
    valkey.script_load(script("decide").text)

    def run_and_lose(command: list[bytes]) -> None:
        with suppress(Exception):
            valkey.execute_command(*command)

    point_at(fake.url, 1.0)
    fake.answer = run_and_lose
    with pytest.raises(StoreUnavailable):
        await adecide(None, key, Rate(5, MINUTE))
    assert (1, 1) == (len(fake.scripts), valkey.zcard(key))


async def test_a_script_when_flushed_is_sent_again_and_counted_once(valkey: Any) -> None:
    """C123: SCRIPT FLUSH costs one EVAL and no request, under many tasks too."""
    key = new_key()
    await adecide(None, key, Rate(100, MINUTE))
    valkey.script_flush()
    await asyncio.gather(*(adecide(None, key, Rate(100, MINUTE)) for _ in range(20)))
    assert valkey.zcard(key) == 21


async def test_a_script_when_lost_for_ever_is_sent_once(
    fake: FakeServer, point_at: Callable[..., None]
) -> None:
    """C123: NOSCRIPT is answered by one EVAL, and its failure is final."""
    point_at(fake.url, 5.0)
    fake.answer = lambda command: b"-NOSCRIPT No matching script.\r\n"
    with pytest.raises(StoreUnavailable):
        await adecide(1)
    assert [b"EVALSHA", b"EVAL"] == [command[0] for command in fake.scripts]


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in (BROKEN | ERRORS).items()])
async def test_a_reply_when_broken_is_unavailable(fake: FakeServer, body: bytes) -> None:
    """Whatever bytes come back: StoreUnavailable, in time, and the next call is answered properly."""
    fake.answer = lambda command: GOOD
    assert await answered(1) == 7
    fake.answer = lambda command: body
    await unavailable()
    fake.answer = lambda command: GOOD
    assert await answered(1) == 7


@pytest.mark.parametrize(
    "body", [pytest.param(body, id=name) for name, body in (BROKEN | ODD | ERRORS).items()]
)
async def test_a_decision_when_the_reply_is_none_is_degraded(fake: FakeServer, body: bytes) -> None:
    """No reply of any kind reaches a caller as an exception: the failure policy decides."""
    fake.answer = lambda command: body
    decision = await aacquire("user:1", "5/m", group="garbage")
    assert (True, True) == (decision.allowed, decision.degraded)


@pytest.mark.parametrize(
    "body", [pytest.param(body, id=name) for name, body in (BROKEN | ODD | ERRORS).items()]
)
async def test_a_greeting_when_broken_is_unavailable(fake: FakeServer, body: bytes) -> None:
    """A handshake that goes wrong in any way is a failure of the store, in time, or no failure at all."""
    fake.greeting, fake.answer = lambda command: body, lambda command: GOOD
    began = time.monotonic()
    with suppress(StoreUnavailable):
        assert (await adecide(1)).now == 7
    assert time.monotonic() - began <= TIMEOUT + SLACK


async def test_bytes_when_nobody_asked_for_them_are_no_reply(fake: FakeServer) -> None:
    """A second reply to one command is nobody's: not the next caller's, now or later."""
    fake.answer = lambda command: GOOD + LATE
    assert await answered(1) == 7
    await asyncio.sleep(0.02)
    fake.answer = lambda command: GOOD
    assert [7, 7] == [await answered(1) for _ in range(2)]


async def test_a_connection_when_lost_right_after_the_greeting_mixes_nothing_up(fake: FakeServer) -> None:
    """A server that hangs up behind its greeting: calls fail, and the next connection answers its own callers."""
    fake.greeting = lambda command: (
        greet(command) + (CLOSE if b"SELECT" in map(bytes.upper, command) else b"")
    )
    for _ in range(5):
        with suppress(StoreUnavailable):
            await adecide(1)
    fake.greeting = greet
    fake.answer = lambda command: GOOD if command[4] == b"1" else LATE
    replies = await asyncio.gather(adecide(1), adecide(2), adecide(1), return_exceptions=True)
    kept = [reply.now for reply in replies if isinstance(reply, Reply)]
    assert kept in ([7, 8, 7], [])
    assert [8, 7] == [await answered(now) for now in (2, 1)]


@pytest.mark.parametrize(
    "url", ["unix:///nowhere/at/all.sock", "redis://no-such-host.invalid:6379/0", "junk://"]
)
async def test_a_server_when_it_cannot_be_reached_is_unavailable(
    point_at: Callable[..., None], url: str
) -> None:
    """Nobody listens, no such host, no such scheme: one kind of failure, each time."""
    point_at(url)
    for _ in range(3):
        await unavailable()


@pytest.mark.parametrize("greets", [True, False])
async def test_a_server_when_it_never_answers_costs_one_deadline(fake: FakeServer, greets: bool) -> None:
    """C121: however many tasks wait, they wait side by side, and one deadline."""
    fake.answer = lambda command: None
    if not greets:
        fake.greeting = lambda command: None
    await asyncio.gather(*(unavailable() for _ in range(50)))
    await unavailable()


async def test_a_reply_when_it_drips_costs_one_deadline(fake: FakeServer) -> None:
    """A byte now and then does not buy a server more time."""
    fake.answer = lambda command: GOOD
    assert await answered(1) == 7
    fake.pace = TIMEOUT / 4
    await unavailable()
    fake.pace = 0


async def test_a_reply_when_it_comes_late_is_nobodys(fake: FakeServer) -> None:
    """The reply to a task that has given up is not taken for another's."""

    def late(command: list[bytes]) -> bytes:
        time.sleep(TIMEOUT * 1.5)
        return GOOD

    fake.answer = late
    await unavailable()
    fake.answer = lambda command: LATE
    assert [8, 8, 8] == await asyncio.gather(*(answered(1) for _ in range(3)))


async def test_a_server_when_stopped_costs_one_deadline_and_then_answers_its_own(own: Own) -> None:
    """A server that hangs costs each call one deadline; when it goes on, its late replies are nobody's."""
    assert await answered(1) == 1
    os.kill(own.pid, signal.SIGSTOP)
    try:
        for _ in range(3):
            await unavailable()
    finally:
        os.kill(own.pid, signal.SIGCONT)
    assert await answered(1) == 1
    assert list(range(2, 100)) == await asyncio.gather(*(answered(now) for now in range(2, 100)))


async def test_callers_when_cancelled_leave_the_others_their_replies(valkey: Any) -> None:
    """Half of the callers are cancelled at any moment; every other one gets its own reply."""
    await adecide(1)
    for n in range(30):
        tasks = [asyncio.create_task(adecide(now)) for now in range(100)]
        for _ in range(n % 6):
            await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(reply, (Reply, asyncio.CancelledError)) for reply in done[::2])
        assert list(range(1, 100, 2)) == [reply.now for reply in done[1::2] if isinstance(reply, Reply)]


async def test_tasks_when_cancelled_at_random_leave_the_others_their_replies(valkey: Any) -> None:
    """20,000 calls of 100 tasks, one in ten cancelled at a random moment: each reply is its caller's own."""
    chance = random.Random(7)
    answered_own = 0

    async def work(number: int) -> None:
        nonlocal answered_own
        for now in range(number * 1_000 + 1, number * 1_000 + 201):
            call = asyncio.create_task(adecide(now))
            if chance.random() < 0.1:
                for _ in range(chance.randrange(5)):
                    await asyncio.sleep(0)
                call.cancel()
            try:
                assert now == (await call).now
                answered_own += 1
            except asyncio.CancelledError:
                pass

    await asyncio.gather(*(work(number) for number in range(100)))
    assert answered_own >= 18_000 * 0.98


async def test_commands_when_larger_than_the_sockets_buffers_all_arrive(valkey: Any) -> None:
    """Megabytes in one tick wait their turn on the way out, and every caller has its reply."""
    padding = b"x" * 50_000

    async def ask(now: int) -> float:
        call = ScriptCall("decide", [b"{t}:" + padding], [b"1", b"%d" % now])
        return read(await async_gateway().call(call)).now

    assert list(range(1, 201)) == await asyncio.gather(*(ask(now) for now in range(1, 201)))


async def test_a_caller_when_late_leaves_the_connection_to_the_others(fake: FakeServer) -> None:
    """A slow server that still answers keeps its connection; the late replies are nobody's."""
    fake.answer = lambda command: GOOD
    assert await answered(1) == 7
    links = async_gateway()._connection
    first = links.link
    assert first is not None
    # Driven, not slept: what was sent an hour ago is overdue, and something was heard since.
    fake.answer = lambda command: None
    calls = [asyncio.ensure_future(async_gateway().call(ScriptCall("decide", [], []))) for _ in range(3)]
    while len(fake.scripts) < 4:
        await asyncio.sleep(0.001)
        first._due = deque((sent - 3_600, last) for sent, last in first._due)
        if first._due:
            first._heard = first._due[-1][0] + 1
            first._sweep()
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert [StoreTimeout] * 3 == [type(one) for one in done]
    assert (first, 3) == (links.link, len(first._waiting))
    first.data_received(LATE * 3)
    fake.answer = lambda command: GOOD
    async_gateway()._breaker.succeeded(time.monotonic())
    assert (await adecide(1)).now == 7


async def test_a_server_when_far_behind_is_given_up(fake: FakeServer, monkeypatch: Any) -> None:
    """A server that answers, but ever later, loses its connection: what nobody waits for must not pile up."""
    monkeypatch.setattr(multiplex, "MAX_BEHIND", 2)
    fake.answer = lambda command: GOOD
    assert await answered(1) == 7
    first = async_gateway()._connection.link
    assert first is not None
    fake.answer = lambda command: None
    calls = [asyncio.ensure_future(async_gateway().call(ScriptCall("decide", [], []))) for _ in range(3)]
    for _ in range(3):
        await asyncio.sleep(0)
    first._due = deque((sent - 3_600, last) for sent, last in first._due)
    first._heard = first._due[-1][0] + 1
    first._sweep()
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert [StoreTimeout] * 3 == [type(one) for one in done]
    assert async_gateway()._connection.link is None


async def test_calls_when_answered_leave_no_timer_and_no_place(valkey: Any) -> None:
    """A connection remembers nothing of the calls that are over, and one timer watches all that are not."""
    await adecide(1)
    link = async_gateway()._connection.link
    assert link is not None
    timers = set()
    for _ in range(50):
        await asyncio.gather(*(adecide(now) for now in range(1, 21)))
        timers.add(link._timer)
    assert len(timers) == 1
    assert (0, 0, b"") == (len(link._waiting), len(link._due), link._rest)


async def test_a_process_when_it_forks_shares_no_connection(settings: Any) -> None:
    """Parent and children with a warm loop get their own replies, each in a loop of its own."""
    environment = os.environ | {
        "RATELIMIT_TEST_DATA": str(settings.DATA),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
    }
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.store.forking", "loops", env=environment
    )
    assert await asyncio.wait_for(child.wait(), 60) == 0


async def test_a_caller_when_cancelled_while_connecting_cancels_nobody_else(valkey: Any) -> None:
    """The first caller's connection is everybody's: that it gives up is nobody's loss."""
    tasks = [asyncio.create_task(adecide(now)) for now in range(1, 6)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(done[0], asyncio.CancelledError)
    assert [2, 3, 4, 5] == [reply.now for reply in done[1:] if isinstance(reply, Reply)]


async def test_a_timeout_of_the_callers_own_stays_the_callers(fake: FakeServer) -> None:
    """A shorter timeout round a call is raised as the caller's, not taken for the store's."""
    fake.answer = lambda command: None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(TIMEOUT / 4):
            await adecide(1)


async def test_a_connection_when_killed_fails_those_who_wait_and_no_more(
    kill_clients: Callable[[], None],
) -> None:
    """CLIENT KILL: who waits is told, the next call has a new connection."""
    await adecide(1)
    kill_clients()
    replies = await asyncio.gather(*(adecide(n) for n in range(1, 20)), return_exceptions=True)
    assert all(isinstance(reply, (Reply, StoreUnavailable)) for reply in replies)
    replies = await asyncio.gather(*(adecide(n) for n in range(1, 20)))
    assert list(range(1, 20)) == [reply.now for reply in replies if isinstance(reply, Reply)]


async def test_a_server_when_restarted_is_found_again(own: Own) -> None:
    """A server that goes away fails its callers at once; when it is back, it is used again."""
    await adecide(1)
    await asyncio.to_thread(own.stop)
    await unavailable()
    await asyncio.to_thread(own.start)
    assert [1, 2] == [await answered(now) for now in (1, 2)]


async def test_the_server_when_read_only_once_is_met_on_a_new_connection(fake: FakeServer) -> None:
    """C127: READONLY ends the connection; the next request makes a new one and is decided."""
    fake.answer = lambda command: GOOD
    assert await answered(1) == 7
    fake.answer = lambda command: b"-READONLY You can't write against a read only replica.\r\n"
    await unavailable()
    fake.answer = lambda command: GOOD
    assert await answered(1) == 7
    assert fake.connections == 2


def test_loops_when_several_follow_each_other_have_a_connection_each() -> None:
    """Every loop has its own connection; a loop that is over leaves nothing that the next one trips over."""
    for now in range(1, 6):
        assert now == asyncio.run(adecide(now)).now


async def test_loops_when_several_run_at_once_have_a_connection_each() -> None:
    """Loops in several threads at the same time get their own replies."""

    async def many(number: int) -> list[float]:
        replies = await asyncio.gather(*(adecide(number * 1_000 + n) for n in range(100)))
        return [reply.now for reply in replies]

    found = await asyncio.gather(*(asyncio.to_thread(asyncio.run, many(number)) for number in range(1, 5)))
    assert [[number * 1_000 + n for n in range(100)] for number in range(1, 5)] == found


async def test_settings_when_they_change_make_a_new_connection(settings: Any) -> None:
    """A change of settings is a new gateway for the loop, and both end without a trace."""
    mine = async_gateway()
    await adecide(1)
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "STORE_TIMEOUT": 1.0}
    assert mine is not async_gateway()
    assert (await adecide(2)).now == 2


def test_loops_when_many_have_ended_leave_no_connection_behind(valkey: Any) -> None:
    """A process whose loops live for one request keeps neither their descriptors nor their gateways."""
    asyncio.run(adecide(1))
    gc.collect()
    before = len(list(Path("/dev/fd").iterdir())), len(valkey.client_list())
    for _ in range(30):
        asyncio.run(adecide(1))
    gc.collect()
    assert len(list(Path("/dev/fd").iterdir())) <= before[0] + BESIDE
    assert len(valkey.client_list()) <= before[1] + BESIDE
    assert len(gateway._async_gateways) <= 1
