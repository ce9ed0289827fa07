"""Offences: buffered, sent in batches, never twice, bounded, and never the parent's in a fork."""

from __future__ import annotations

import os
import threading
from collections import Counter
from typing import Any

import pytest
from django.test import Client, override_settings

from ratelimit_app import local_cache, offences, snapshot_cache
from ratelimit_app.conf import conf
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.offences import FLUSH_LINES, OffenceBuffer
from tests.test_snapshot_cache import OFFLINE

IP, OTHER = "ip:203.0.113.9", "ip:203.0.113.10"


@pytest.fixture
def buffer() -> OffenceBuffer:
    """Give a buffer that is flushed only when told to."""
    made = OffenceBuffer()
    made._periodic.start = lambda: None  # type: ignore[method-assign]
    return made


def total(part: str = IP) -> Counter[str]:
    """Sum an identity's offences in Redis by rule."""
    summed: Counter[str] = Counter()
    for _, label, count in offences.counts(part):
        summed[label] += count
    return summed


def test_offences_when_recorded_wait_for_a_flush(buffer: OffenceBuffer) -> None:
    """A denial costs no trip of its own: nothing is in Redis before the flush."""
    buffer.record({(IP, "grab")})
    assert [] == offences.offenders(0)
    buffer.flush()
    assert [IP] == offences.offenders(0)


def test_offences_when_flushed_are_counted_by_identity_rule_and_second(
    buffer: OffenceBuffer, valkey: Any
) -> None:
    """The promotion reads who, by which rule, when and how often (C116)."""
    second = snapshot_cache.now_us() // 1_000_000
    for _ in range(3):
        buffer.record({(IP, "grab"), (IP, "@login"), (OTHER, "grab")})
    buffer.record({(IP, "grab")})
    buffer.flush()
    assert {"grab": 4, "@login": 3} == total()
    assert {"grab": 3} == total(OTHER)
    assert all(second <= found <= second + 5 for found, _, _ in offences.counts(IP))
    assert sorted(offences.counts(IP)) == offences.counts(IP)
    keys = [conf.keys.offences(IP), conf.keys.offences(OTHER), conf.keys.offenders]
    assert all(0 < valkey.ttl(key) <= 3_600 for key in keys)


def test_offences_when_the_policies_look_further_back_are_kept_longer(
    buffer: OffenceBuffer, rules: Any, valkey: Any
) -> None:
    """The snapshot says how long the longest policy needs them."""
    rules(offence_ttl=90_000)
    buffer.record({(IP, "grab")})
    buffer.flush()
    assert 89_000 < valkey.ttl(conf.keys.offences(IP)) <= 90_000


def test_offences_when_there_are_many_go_in_batches(
    buffer: OffenceBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No transaction is larger than 1,000 lines, and all arrive."""
    sizes: list[int] = []
    send = offences._send

    def measure(name: str, lines: Counter[Any]) -> None:
        sizes.append(len(lines))
        send(name, lines)

    monkeypatch.setattr(offences, "_send", measure)
    for number in range(2 * FLUSH_LINES + 5):
        buffer.record({(f"user:{number}", "grab")})
    buffer.flush()
    assert [FLUSH_LINES, FLUSH_LINES, 5] == sizes
    assert 2 * FLUSH_LINES + 5 == len(offences.offenders(0))


def test_a_buffer_when_it_is_full_wakes_the_flush(buffer: OffenceBuffer) -> None:
    """A flood does not wait for the second to be over."""
    buffer.record({(f"user:{number}", "grab") for number in range(FLUSH_LINES - 1)})
    assert not buffer._periodic._wake.is_set()
    buffer.record({(IP, "grab")})
    assert buffer._periodic._wake.is_set()


def test_offences_when_redis_is_away_are_kept_and_sent_later(buffer: OffenceBuffer) -> None:
    """An outage loses no offences, raises nothing, and what comes meanwhile is added (C120)."""
    buffer.record({(IP, "grab")})
    with override_settings(CACHES=OFFLINE):
        buffer.flush()
        buffer.record({(IP, "grab")})
        buffer.flush()
    buffer.flush()
    assert {"grab": 2} == total()


def test_a_flush_when_its_reply_is_lost_is_not_counted_twice(
    buffer: OffenceBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis took the batch and the answer did not arrive: the retry sees that and drops it (C56)."""
    send = offences._send

    def send_and_lose(name: str, lines: Counter[Any]) -> None:
        send(name, lines)
        msg = "the reply was lost"
        raise StoreUnavailable(msg)

    buffer.record({(IP, "grab")})
    monkeypatch.setattr(offences, "_send", send_and_lose)
    buffer.flush()
    monkeypatch.setattr(offences, "_send", send)
    buffer.record({(IP, "grab")})
    buffer.flush()
    buffer.flush()
    assert {"grab": 2} == total()


def test_a_flush_when_it_failed_before_redis_took_it_is_sent_again(
    buffer: OffenceBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same batch is sent once more, under the same id."""
    sent: list[str] = []
    send = offences._send

    def fail_once(name: str, lines: Counter[Any]) -> None:
        sent.append(name)
        if len(sent) == 1:
            msg = "refused"
            raise StoreUnavailable(msg)
        send(name, lines)

    buffer.record({(IP, "grab")})
    monkeypatch.setattr(offences, "_send", fail_once)
    buffer.flush()
    assert {} == total()
    buffer.flush()
    assert {"grab": 1} == total()
    assert 2 == len(sent)
    assert sent[0] == sent[1]


def test_a_buffer_when_it_overflows_drops_new_identities_and_counts_them(
    buffer: OffenceBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody fills the memory of a process while Redis is away; known lines go on counting (C141)."""
    monkeypatch.setattr(offences, "MAX_LINES", 10)
    monkeypatch.setattr(snapshot_cache, "now_us", lambda: 1_800_000_000_000_000)
    for number in range(25):
        buffer.record({(f"user:{number}", "grab")})
    buffer.record({("user:0", "grab")})
    buffer.flush()
    assert 15 == buffer.dropped
    assert {"grab": 2} == total("user:0")
    assert 10 == len(offences.offenders(0))


def test_offences_when_recorded_by_many_threads_are_all_counted(buffer: OffenceBuffer) -> None:
    """Records and flushes of many threads lose and double nothing (C58)."""

    def offend() -> None:
        for number in range(200):
            buffer.record({(IP, "grab")})
            if number % 50 == 0:
                buffer.flush()

    threads = [threading.Thread(target=offend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    buffer.flush()
    assert {"grab": 1_600} == total()


def test_offences_when_forgotten_are_gone_and_others_stay(buffer: OffenceBuffer) -> None:
    """An unblock clears who it is about, and nobody else (C96)."""
    buffer.record({(IP, "grab"), (OTHER, "grab")})
    buffer.flush()
    offences.forget(IP)
    assert [OTHER] == offences.offenders(0)
    assert {} == total()


def test_offences_when_forgotten_up_to_a_time_leave_the_later_ones(valkey: Any) -> None:
    """A ban uses up the offences before its end, not those after it."""
    valkey.hset(conf.keys.offences(IP), mapping={"100|grab": 1, "200|grab": 2, "201|@a|b": 3})
    offences.forget(IP, 200)
    assert [(201, "@a|b", 3)] == offences.counts(IP)
    offences.forget(IP, 150)
    assert [(201, "@a|b", 3)] == offences.counts(IP)


def test_offenders_when_asked_since_a_time_are_those_seen_since(valkey: Any) -> None:
    """The promotion looks at nobody whose last offence is too old."""
    valkey.zadd(conf.keys.offenders, {IP: 100, OTHER: 200})
    assert [OTHER] == offences.offenders(200)
    assert [IP, OTHER] == offences.offenders(99.5)


@pytest.mark.parametrize(
    "work",
    [
        lambda: offences.offenders(0),
        lambda: offences.counts(IP),
        lambda: offences.forget(IP),
        lambda: offences.forget(IP, 5),
    ],
)
def test_a_reader_when_redis_is_away_is_told(work: Any) -> None:
    """Jobs see the outage as the one exception that they know."""
    with override_settings(CACHES=OFFLINE), pytest.raises(StoreUnavailable):
        work()


def test_an_offence_when_its_identity_is_joined_counts_for_each_part(buffer: OffenceBuffer) -> None:
    """C156: `user+ip` makes an offence of the user and one of the address, in Redis as well."""
    buffer.record({("user:7+" + IP, "grab")})
    buffer.flush()
    assert ({"grab": 1}, {"grab": 1}) == (total("user:7"), total(IP))


def test_a_denied_request_when_it_is_over_is_an_offence_and_a_banned_one_is_not(
    rules: Any, valkey: Any
) -> None:
    """Through a real door: one offence for each denial, none for what passed and none for a ban's 403."""
    rules({"name": "grab", "rate": "1/m"})
    client = Client(REMOTE_ADDR="203.0.113.9")
    assert [200, 429, 429] == [client.get("/plain/").status_code for _ in range(3)]
    valkey.set(conf.keys.mark(IP), 0)
    local_cache.forget([IP])  # as the publisher tells every process
    assert 403 == client.get("/plain/").status_code
    offences.flush()
    assert {"grab": 2} == total()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_when_it_flushes_does_not_send_its_parents_lines(buffer: OffenceBuffer) -> None:
    """Lines are the parent's to send: a child starts empty, even if a lock was held."""
    offences.record({(IP, "grab")})
    with offences._buffer._lock:
        pid = os.fork()
        if pid == 0:  # pragma: no cover - the child is measured by what arrives
            try:
                offences.record({(OTHER, "grab")})
                offences.flush()
            finally:
                os._exit(0)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    offences.flush()
    assert ({"grab": 1}, {"grab": 1}) == (total(IP), total(OTHER))
