"""decide.lua against the reference algorithm, and the public bug reports that concern it."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratelimit_app import aacquire, acquire, peek
from ratelimit_app.conf import conf
from ratelimit_app.core.algorithms import Outcome, State, as_log, sliding_window
from ratelimit_app.core.calls import ScriptCall, StoreUnavailable
from ratelimit_app.core.headers import retry_after
from ratelimit_app.core.rates import Rate, parse_rate
from ratelimit_app.store.gateway import gateway
from tests.store.asking import (
    ADMITTED,
    ASLEEP,
    BLOCKED,
    LIMITED,
    LOOK,
    MINUTE,
    OVER,
    PASSED,
    SECOND,
    SHADOW,
    START,
    Asked,
    Reply,
    decide,
    new_key,
    row_of,
)

THREE = Rate(3, MINUTE)
thorough = settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

# Periods of ten seconds and more: keys live on the server's own clock, and a timeline is done long before that.
PERIODS = st.sampled_from([10 * SECOND, MINUTE, 3_600 * SECOND])
LIMITS = st.integers(0, 6)
STEPS = st.one_of(
    st.sampled_from([0, 0, 1, 2, 10 * SECOND - 1, 10 * SECOND, 10 * SECOND + 1, MINUTE, 2 * 3_600 * SECOND]),
    st.integers(-70 * SECOND, 70 * SECOND),
    st.integers(0, 3 * SECOND),
)


@st.composite
def timelines(draw: st.DrawFn) -> list[tuple[int, Rate, int, bool]]:
    """Draw tries as (step in time, rate, cost, look): the rate changes now and then, the clock steps back."""
    rate, tries = Rate(draw(LIMITS), draw(PERIODS)), []
    for _ in range(draw(st.integers(1, 40))):
        if draw(st.integers(0, 9)) == 0:
            rate = Rate(draw(LIMITS), draw(PERIODS))
        cost = draw(st.sampled_from([1, 1, 1, 1, 2, 3, 7]))
        tries.append((draw(STEPS), rate, cost, draw(st.integers(0, 4)) == 0))
    return tries


def looked(log: State | None, rate: Rate, now: int, cost: int) -> Outcome:
    """What a look at a log answers: as the try would be judged, with nothing charged."""
    outcome = sliding_window(log, rate, now, cost)[1]
    return sliding_window(log, rate, now, 0)[1] if outcome.allowed else outcome


def stamps(valkey: Any, key: bytes) -> list[int]:
    """Read the stamps of a log."""
    return [int(score) for _, score in valkey.zrange(key, 0, -1, withscores=True)]


def hit(key: bytes, rate: Rate, seconds: float, cost: int = 1, flags: int = 0) -> Reply:
    """Try once, some seconds after the start."""
    return decide(START + round(seconds * SECOND), Asked(key, rate, cost, flags))


def admitted(reply: Reply) -> bool:
    """Whether a try has passed."""
    return reply.verdict == ADMITTED


# --- The reference ----------------------------------------------------------------------------------------------------


@thorough
@given(timelines())
def test_a_timeline_when_judged_by_both_gives_equal_fields(
    valkey: Any, tries: list[tuple[int, Rate, int, bool]]
) -> None:
    """Every field of every answer, and the log, are the reference's: costs, steps back, changed rates, idle gaps."""
    key, now = new_key(), START
    log: State | None = ()
    for step, rate, cost, look in tries:
        now += step
        reply = decide(now, Asked(key, rate, cost, LOOK if look else 0))
        if look:
            expected = looked(log, rate, now, cost)  # A look leaves the log as it is.
        else:
            log, expected = sliding_window(log, rate, now, cost)
        assert [row_of(expected)] == reply.rows
        assert (ADMITTED if expected.allowed else LIMITED, now) == (reply.verdict, reply.now)
    assert list(as_log(log) or ()) == stamps(valkey, key)


@thorough
@given(
    st.lists(st.tuples(LIMITS, PERIODS, st.integers(1, 3), st.booleans()), min_size=2, max_size=4),
    st.lists(st.integers(0, 8 * SECOND), min_size=1, max_size=25),
)
def test_several_rules_when_one_denies_charge_none(
    valkey: Any, rules: list[tuple[int, int, int, bool]], steps: list[int]
) -> None:
    """All enforced rules pass and are charged, or none is; shadow rules deny nothing and are charged when they pass."""
    asked = [
        Asked(new_key(), Rate(limit, period), cost, SHADOW if shadow else 0)
        for limit, period, cost, shadow in rules
    ]
    logs: list[State | None] = [None for _ in asked]
    now = START
    for step in steps:
        now += step
        judged = [sliding_window(log, one.rate, now, one.cost) for log, one in zip(logs, asked, strict=True)]
        denied = any(not j[1].allowed and not one.flags for j, one in zip(judged, asked, strict=True))
        expected = [
            row_of(looked(log, one.rate, now, one.cost) if denied else outcome)
            for log, one, (_, outcome) in zip(logs, asked, judged, strict=True)
        ]
        reply = decide(now, *asked)
        assert (LIMITED if denied else ADMITTED, expected) == (reply.verdict, reply.rows)
        if not denied:
            logs = [log for log, _ in judged]
    for log, one in zip(logs, asked, strict=True):
        assert [s for s in as_log(log) or () if s > now - one.rate.period_us] == [
            s for s in stamps(valkey, one.key) if s > now - one.rate.period_us
        ]


@thorough
@given(st.integers(1, 5), st.lists(st.integers(1, 20 * SECOND), min_size=5, max_size=40))
def test_every_window_when_arrivals_are_random_holds_the_limit_and_is_used(
    limit: int, steps: list[int]
) -> None:
    """C34: no window holds more than the limit, and who is denied met a window that held it."""
    key, rate, now = new_key(), Rate(limit, MINUTE), START
    passed: list[float] = []
    for step in steps:
        now += step
        reply = decide(now, Asked(key, rate))
        held = [at for at in passed if now - MINUTE < at <= now]
        assert len(held) < limit if admitted(reply) else len(held) == limit
        if admitted(reply):
            passed.append(reply.rows[0].at)


@thorough
@given(st.integers(1, 60), st.integers(1, 4))
def test_a_clock_when_it_steps_back_locks_nobody_out_for_longer_than_step_and_window(
    step: int, limit: int
) -> None:
    """A full log is free again after the step and a window, and no two requests get one stamp."""
    key, rate = new_key(), Rate(limit, MINUTE)
    full = [hit(key, rate, 0) for _ in range(limit)]
    assert all(map(admitted, full))
    assert len({reply.rows[0].at for reply in full}) == limit
    assert not admitted(hit(key, rate, -step))
    assert admitted(hit(key, rate, 60 + limit * 1e-6))


# --- Public bug reports -----------------------------------------------------------------------------------------------


def test_equal_times_when_the_clock_is_frozen_are_counted_apart(valkey: Any) -> None:
    """C31: ten requests at one time against three: three pass, the log has three entries."""
    key = new_key()
    passed = [admitted(hit(key, THREE, 0)) for _ in range(10)]
    assert [True] * 3 + [False] * 7 == passed
    assert valkey.zcard(key) == 3


def test_equal_times_when_fifty_threads_ask_are_counted_apart(valkey: Any) -> None:
    """C31: the same from fifty threads: exactly the limit passes, each with a stamp of its own."""
    key, found = new_key(), []
    barrier = threading.Barrier(50)

    def work() -> None:
        barrier.wait()
        found.append(hit(key, Rate(20, MINUTE), 0))

    threads = [threading.Thread(target=work) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter({True: 20, False: 30}) == Counter(map(admitted, found))
    assert len({reply.rows[0].at for reply in found if admitted(reply)}) == 20
    assert valkey.zcard(key) == 20


@pytest.mark.parametrize(("after", "passes"), [(59.999999, False), (60.0, True), (60.001, True)])
def test_entries_when_they_leave_the_window_do_not_count(valkey: Any, after: float, passes: bool) -> None:
    """C33: the window is open at its old end: an entry of t leaves at t + 60 s exactly."""
    key = new_key()
    assert all(admitted(hit(key, THREE, at)) for at in (-2e-6, -1e-6, 0))
    assert passes is admitted(hit(key, Rate(1, MINUTE), after))
    assert valkey.zcard(key) == 1


def test_a_boundary_when_crossed_gives_no_second_quota() -> None:
    """C34: three at 59.9 s, then three at 60.1 s: the second three are denied."""
    key = new_key()
    assert [True] * 3 == [admitted(hit(key, THREE, 59.9)) for _ in range(3)]
    assert [False] * 3 == [admitted(hit(key, THREE, 60.1)) for _ in range(3)]


def test_denied_tries_when_they_hammer_extend_nothing(valkey: Any) -> None:
    """C35: a client that hammers each second passes at t = 60 s; neither the log nor its life has grown."""
    key = new_key()
    for _ in range(3):
        hit(key, THREE, 0)
    lives = valkey.pttl(key)
    assert [False] * 59 == [admitted(hit(key, THREE, second)) for second in range(1, 60)]
    assert valkey.zcard(key) == 3
    assert valkey.pttl(key) <= lives
    assert admitted(hit(key, THREE, 60.1))


def test_costs_when_mixed_add_up() -> None:
    """C37: of ten, 8 and 2 pass and 1 more does not."""
    key, rate = new_key(), Rate(10, MINUTE)
    assert [True, True, False] == [admitted(hit(key, rate, n, cost)) for n, cost in enumerate((8, 2, 1))]


def test_the_wait_when_denied_is_the_oldest_entrys() -> None:
    """C38: limit 2/60s, hits at 0 s and 10 s: at 20 s the wait is 40 s, and at 60 s a request passes."""
    key, rate = new_key(), Rate(2, MINUTE)
    hit(key, rate, 0), hit(key, rate, 10)
    row = hit(key, rate, 20).rows[0]
    assert (OVER, 0, 40 * SECOND, 50 * SECOND) == row[:4]
    assert admitted(hit(key, rate, 60))


@pytest.mark.parametrize("entries", [199, 200, 201, 1500])
def test_a_limit_when_lowered_gives_a_positive_wait(entries: int) -> None:
    """C40: from 2000 to 200 with 199, 200, 201 or 1500 entries: only the first passes; the waits are positive."""
    key = new_key()
    assert admitted(hit(key, Rate(2_000, MINUTE), 0, entries))
    reply = hit(key, Rate(200, MINUTE), 30)
    assert (entries == 199) is admitted(reply)
    assert reply.rows[0].remaining == 0
    if entries > 199:
        # So many must leave that 199 are left: the wait is until the last of them does.
        assert 30 * SECOND + entries - 200 == reply.rows[0].retry
        assert admitted(decide(START + 30 * SECOND + int(reply.rows[0].retry), Asked(key, Rate(200, MINUTE))))


@pytest.mark.parametrize("limit", [6, 5, 4, 3, 0])
def test_a_limit_when_changed_around_the_entries_never_fails(limit: int) -> None:
    """C40: with five entries, limits of n + 1, n, n - 1, n - 2 and 0."""
    key = new_key()
    hit(key, Rate(5, MINUTE), 0, 5)
    row = hit(key, Rate(limit, MINUTE), 1).rows[0]
    assert (PASSED if limit == 6 else OVER, 0) == row[:2]
    assert {0: -1, 6: 0}.get(limit, 59 * SECOND + 5 - limit) == row.retry


def test_a_log_when_charged_lives_as_long_as_its_window(valkey: Any, settings: Any) -> None:
    """C42: a cache's TIMEOUT is nothing to a day's limit: the key outlives the window."""
    settings.CACHES = {"default": {**settings.CACHES["default"], "TIMEOUT": 300}}
    key, rate = new_key(), parse_rate("1/86400s")
    assert admitted(hit(key, rate, 0))
    assert valkey.pttl(key) > 86_400_000
    assert not admitted(hit(key, rate, 301))


@pytest.mark.parametrize("text", ["3/1ms", "3/250ms", "3/500ms", "3/1500ms", "3/3660d"])
def test_a_window_when_no_whole_second_works(valkey: Any, text: str) -> None:
    """C43: windows of milliseconds and of years: whole milliseconds of life, never none."""
    key, rate = new_key(), parse_rate(text)
    reply = decide(None, Asked(key, rate))
    assert admitted(reply)
    assert rate.period_us == reply.rows[0].reset
    if rate.period_us > SECOND // 10:
        assert rate.period_us / 1_000 - 50 < valkey.pttl(key) <= 2 * rate.period_us / 1_000


@pytest.mark.parametrize("turned", [False, True])
def test_a_later_rule_when_it_denies_leaves_the_earlier_uncharged(valkey: Any, turned: bool) -> None:
    """C46: 10/60s and 30/1800s, 31 requests in two minutes: the second log has as many as have passed."""
    rules = [Asked(new_key(), Rate(10, MINUTE)), Asked(new_key(), Rate(30, 30 * MINUTE))]
    asked = rules[::-1] if turned else rules
    passed = sum(admitted(decide(START + n * 4 * SECOND, *asked)) for n in range(31))
    assert passed == valkey.zcard(rules[1].key) == 21


def test_a_limit_of_zero_when_asked_denies_at_once_and_for_ever(valkey: Any) -> None:
    """C47: not even the first request passes, no wait would help, nothing is written."""
    key = new_key()
    assert (OVER, 0, -1, 0, START) == hit(key, Rate(0, MINUTE), 0).rows[0]
    assert not valkey.exists(key)
    assert acquire("user:zero", "0/s", group="zero").retry_after is None


def test_no_rate_when_asked_costs_no_call(valkey: Any) -> None:
    """C47: None is no limit, and no command."""
    acquire("user:none", "5/s", group="none")
    before = valkey.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    assert acquire("user:none", None, group="none").allowed
    assert before == valkey.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)


async def test_a_hundred_tasks_when_gathered_admit_the_limit() -> None:
    """C53: the async twin is as atomic as the other."""
    decisions = await asyncio.gather(*(aacquire("user:gather", "10/m", group="gather") for _ in range(100)))
    assert sum(decision.allowed for decision in decisions) == 10
    assert len({decision.results[0].at for decision in decisions if decision.allowed}) == 10


@pytest.mark.parametrize("limit", [3, 1])
def test_a_log_without_a_life_when_touched_gets_one(valkey: Any, limit: int) -> None:
    """C54: an immortal log, left by whatever wrote it, is repaired by the next request, denied ones included."""
    key = new_key()
    valkey.zadd(key, {str(START): START})
    assert valkey.pttl(key) == -1
    assert (limit == 3) is admitted(hit(key, Rate(limit, MINUTE), 1))
    assert 58_000 < valkey.pttl(key) <= 120_000


def test_app_clocks_when_skewed_decide_nothing(monkeypatch: Any) -> None:
    """C60, C63: hosts ten seconds or an hour off share one limit, and their waits are within the window."""
    passed = 0
    waits: list[float] = []
    for skew in (-10, 10, 3_600, -3_600, 0):
        true_time = time.time
        monkeypatch.setattr(time, "time", lambda skew=skew, true_time=true_time: true_time() + skew)
        for _ in range(3):
            decision = acquire("user:skew", "4/m", group="skew")
            passed += decision.allowed
            waits += [] if decision.allowed else [decision.retry_after or 0.0]
        monkeypatch.undo()
    assert passed == 4
    assert all(0 < wait <= 60 for wait in waits)
    assert max(waits) - min(waits) < 10


@thorough
@given(st.lists(st.integers(0, 25 * SECOND), min_size=3, max_size=20), st.integers(1, 3))
def test_a_client_when_it_obeys_the_wait_is_admitted(steps: list[int], limit: int) -> None:
    """C65: Retry-After, rounded up to whole seconds and at least one, is always enough."""
    key, rate, now = new_key(), Rate(limit, MINUTE), START
    for step in steps:
        now += step
        reply = decide(now, Asked(key, rate))
        if not admitted(reply):
            text = retry_after(reply.rows[0].retry / SECOND)["Retry-After"]
            assert 1 <= int(text) <= 60
            assert decide(now + int(text) * SECOND, Asked(key, rate, flags=LOOK)).rows[0].state == PASSED


def test_remaining_when_counted_down_stays_at_zero() -> None:
    """C69: a limit of three leaves 2, 1, 0, and 0 to the denied."""
    key = new_key()
    assert [2, 1, 0, 0, 0] == [hit(key, THREE, 0).rows[0].remaining for _ in range(5)]


def test_a_script_when_flushed_is_sent_again_and_counted_once(valkey: Any) -> None:
    """C123: SCRIPT FLUSH between two requests costs one EVAL and no request."""
    key = new_key()
    for n in range(3):
        assert admitted(hit(key, THREE, n))
        valkey.script_flush()
    assert valkey.zcard(key) == 3


def test_a_user_when_held_to_our_prefix_may_run_the_scripts(valkey: Any, settings: Any) -> None:
    """C125: every key that a script touches is declared, so rights to our prefix are enough, and only those."""
    valkey.execute_command("ACL", "SETUSER", "limiter", "on", ">pass", f"~{conf.keys.root}:*", "+@all")
    try:
        cache = settings.CACHES["default"]
        options = {"CONNECTION_POOL_KWARGS": {"username": "limiter", "password": "pass"}}
        settings.CACHES = {"default": {**cache, "OPTIONS": options}}
        mark = conf.keys.mark("user:1")
        assert admitted(decide(None, Asked(new_key(), THREE), Asked(new_key(), THREE, 2), marks=(mark,)))
        with pytest.raises(StoreUnavailable, match=r"(?i)permission|noperm"):
            decide(None, Asked(b"foreign:key", THREE))
    finally:
        valkey.execute_command("ACL", "DELUSER", "limiter")


@pytest.mark.parametrize("text", ["3/100ms", "3/200ms"])
def test_keys_when_idle_are_gone_after_their_window(valkey: Any, text: str) -> None:
    """C140: logs of identities that never come back leave by themselves, soon after their window."""
    rate = parse_rate(text)
    keys = [new_key() for _ in range(50)]
    for key in keys:
        decide(None, Asked(key, rate))
    deadline = time.monotonic() + 2 * rate.period + 1
    while valkey.exists(*keys) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert valkey.exists(*keys) == 0


def test_denied_tries_when_ten_thousand_leave_the_log_as_it_was(valkey: Any) -> None:
    """C143: the log holds the limit and its memory is constant, whatever is denied."""
    key = new_key()
    for _ in range(3):
        hit(key, THREE, 0)
    size = valkey.memory_usage(key)
    assert not any(admitted(hit(key, THREE, 1)) for _ in range(10_000))
    assert (3, size) == (valkey.zcard(key), valkey.memory_usage(key))


# --- What else the script promises ------------------------------------------------------------------------------------


def test_a_high_limit_when_filled_is_exact(valkey: Any) -> None:
    """Ten thousand pass and one more does not; the wait is until the first of them leaves."""
    key, rate = new_key(), Rate(10_000, 3_600 * SECOND)
    for n in range(100):
        assert admitted(decide(START + n * SECOND, Asked(key, rate, 100)))
    row = decide(START + 100 * SECOND, Asked(key, rate)).rows[0]
    assert (OVER, 0, 3_500 * SECOND, 3_599 * SECOND + 99) == row[:4]
    assert valkey.llen(key) == 10_000
    again = decide(START + 3_600 * SECOND + 49, Asked(key, rate, 50))
    assert (ADMITTED, 0) == (again.verdict, again.rows[0].remaining)
    assert not admitted(decide(START + 3_600 * SECOND + 49, Asked(key, rate)))


def test_a_look_when_taken_charges_nothing(valkey: Any) -> None:
    """A look answers as the try would be judged, and neither writes a log nor creates one."""
    key = new_key()
    assert (PASSED, 3, 0, 0, START) == hit(key, THREE, 0, flags=LOOK).rows[0]
    assert not valkey.exists(key)
    hit(key, THREE, 0, 3)
    assert (OVER, 0) == hit(key, THREE, 1, flags=LOOK).rows[0][:2]
    assert valkey.zcard(key) == 3
    assert peek("user:look", "1/m", group="look").allowed
    assert acquire("user:look", "1/m", group="look").allowed
    assert not peek("user:look", "1/m", group="look").allowed


@pytest.mark.parametrize(("starts", "ends", "state"), [(1, 0, ASLEEP), (0, -1, ASLEEP), (0, 0, PASSED)])
def test_a_rule_when_outside_its_time_sleeps(valkey: Any, starts: int, ends: int, state: int) -> None:
    """A rule before its start or at its end says nothing and is not charged."""
    key = new_key()
    starts_at, ends_at = (START + n * SECOND if n else 0 for n in (starts, ends))
    reply = decide(START, Asked(key, Rate(1, MINUTE), 1, 0, starts_at, ends_at))
    assert (ADMITTED, state) == (reply.verdict, reply.rows[0].state)
    assert (0 if state == ASLEEP else 1) == valkey.zcard(key)


def test_a_rule_when_its_time_ends_now_sleeps() -> None:
    """The time of a rule is open at its end and closed at its start."""
    rule = Asked(new_key(), Rate(0, MINUTE), 1, 0, START, START + SECOND)
    assert [ADMITTED, LIMITED, LIMITED, ADMITTED] == [
        decide(START + at, rule).verdict for at in (-1, 0, SECOND - 1, SECOND)
    ]


@pytest.mark.parametrize("kind", ["string", "hash", "list", "set", "stream"])
def test_a_log_of_another_type_when_met_counts_as_absent(valkey: Any, kind: str) -> None:
    """A key of the wrong type never fails a request: it is empty to those who look, and replaced by who charges."""
    key = new_key()
    write_foreign(valkey, key, kind)
    assert (PASSED, 3, 0, 0, START) == hit(key, THREE, 0, flags=LOOK).rows[0]
    assert valkey.type(key) == kind.encode()
    assert (PASSED, 2, 0, MINUTE, START) == hit(key, THREE, 0).rows[0]
    assert (b"zset", 1) == (valkey.type(key), valkey.zcard(key))


def test_a_log_of_another_type_when_another_rule_denies_is_left_alone(valkey: Any) -> None:
    """A denied request writes nothing at all."""
    key = new_key()
    write_foreign(valkey, key, "string")
    assert not admitted(decide(START, Asked(key, THREE), Asked(new_key(), Rate(0, MINUTE))))
    assert valkey.type(key) == b"string"


def write_foreign(valkey: Any, key: bytes, kind: str) -> None:
    """Put something that is no log where a log should be."""
    writers = {
        "string": lambda: valkey.set(key, "x"),
        "hash": lambda: valkey.hset(key, "a", "b"),
        "list": lambda: valkey.rpush(key, "a"),
        "set": lambda: valkey.sadd(key, "a"),
        "stream": lambda: valkey.xadd(key, {"a": "b"}),
    }
    writers[kind]()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({0: b"0"}, (1, 0)),
        ({0: b"%d" % (START + 5)}, (1, START + 5)),
        ({0: b"%d" % (START + 5), 1: b"%d" % (START + 9)}, (2, START + 9)),
        ({0: b"0", 1: b"%d" % (START + 9)}, (1, 0)),
    ],
)
def test_marks_when_they_hold_block_by_the_longest(
    valkey: Any, values: dict[int, bytes], expected: tuple[int, int]
) -> None:
    """A marked identity is blocked, by the mark that lasts longest; no rule is looked at or charged."""
    marks, key = [conf.keys.mark(f"user:m{n}") for n in range(2)], new_key()
    for n, value in values.items():
        valkey.set(marks[n], value)
    reply = decide(START, Asked(key, THREE), marks=tuple(marks))
    assert (BLOCKED, *expected, []) == (reply.verdict, reply.mark, reply.expires, reply.rows)
    assert not valkey.exists(key)


@pytest.mark.parametrize("value", [b"%d" % START, b"%d" % (START - 1), b"junk", b""])
def test_marks_when_over_or_unreadable_block_nobody(valkey: Any, value: bytes) -> None:
    """A mark ends at its own time, whatever its key's life; what is no time is no mark."""
    mark = conf.keys.mark("user:over")
    valkey.set(mark, value)
    assert admitted(decide(START, Asked(new_key(), THREE), marks=(mark,)))


def test_a_mark_of_another_type_when_met_counts_as_absent(valkey: Any) -> None:
    """A mark that is no text blocks nobody and fails nothing."""
    mark = conf.keys.mark("user:typed")
    valkey.rpush(mark, "0")
    assert admitted(decide(START, Asked(new_key(), THREE), marks=(mark,)))


def test_the_server_when_read_only_charges_nothing_and_is_asked_anew(valkey: Any) -> None:
    """C127: a demoted primary: this request is undecided, its connection is given up, the next one is made anew."""
    key = new_key()
    assert admitted(hit(key, THREE, 0))
    made = valkey.info("stats")["total_connections_received"]
    valkey.replicaof("127.0.0.1", 1)
    try:
        with pytest.raises(StoreUnavailable, match=r"(?i)read.?only"):
            hit(key, THREE, 1)
    finally:
        valkey.replicaof("NO", "ONE")
    assert admitted(hit(key, THREE, 2))
    assert valkey.zcard(key) == 2
    assert valkey.info("stats")["total_connections_received"] > made


def test_memory_when_it_runs_out_charges_all_or_none(valkey: Any) -> None:
    """A server without memory for more never charges one of two rules alone."""
    asked = [Asked(new_key(), THREE), Asked(new_key(), THREE)]
    valkey.config_set("maxmemory", 1)
    try:
        with suppress(StoreUnavailable):
            decide(START, *asked)
    finally:
        valkey.config_set("maxmemory", 0)
    assert valkey.zcard(asked[0].key) == valkey.zcard(asked[1].key)


def test_one_decision_when_it_has_three_rules_is_one_command(valkey: Any) -> None:
    """Three rules and three marks cost one command, counted by the server."""
    asked = [Asked(new_key(), THREE) for _ in range(3)]
    marks = tuple(conf.keys.mark(f"user:{n}") for n in range(3))
    decide(None, *asked, marks=marks)
    before = valkey.info("commandstats")["cmdstat_evalsha"]["calls"]
    calls = valkey.info("stats")["total_commands_processed"]
    decide(None, *asked, marks=marks)
    assert valkey.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 1
    assert valkey.info("stats")["total_commands_processed"] - calls <= 20


def test_the_server_clock_when_no_time_is_sent_stamps_the_entry(valkey: Any) -> None:
    """`at` is the server's time in microseconds, and it is what the log holds."""
    key = new_key()
    before = valkey.time()
    row = decide(None, Asked(key, THREE)).rows[0]
    after = valkey.time()
    assert before[0] * SECOND + before[1] <= row.at <= after[0] * SECOND + after[1]
    assert [row.at] == stamps(valkey, key)


def test_arguments_when_broken_are_an_error_and_charge_nothing(valkey: Any) -> None:
    """A call that is packed wrong never half happens."""
    key = new_key()
    with pytest.raises(StoreUnavailable):
        gateway().call(ScriptCall("decide", [key], [struct.pack("<BB", 0, 0)]))
    assert not valkey.exists(key)
