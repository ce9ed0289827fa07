"""The circuit breaker: who may call, and who is told at once that nobody answers."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_app.core.breaker import Breaker

THRESHOLD, COOLDOWN = 3, 1.0


def breaker() -> Breaker:
    """Make one as the settings make it by default."""
    return Breaker(THRESHOLD, COOLDOWN)


def fail(one: Breaker, at: float, *, timed_out: bool = False) -> None:
    """Have a call fail that began just before."""
    one.failed(at, at, timed_out=timed_out)


def test_a_timeout_when_it_comes_opens_at_once() -> None:
    """Whoever hangs costs one request its budget, and the next ones nothing (C121)."""
    one = breaker()
    fail(one, 10.0, timed_out=True)
    assert one.is_open
    assert not one.allows(10.0 + COOLDOWN - 0.001)


def test_errors_when_in_a_row_open_at_the_threshold() -> None:
    """A refusal costs little: three in a row it takes, and a success between them begins the count anew."""
    one = breaker()
    fail(one, 1.0)
    fail(one, 2.0)
    one.succeeded(2.5)
    for at in (3.0, 4.0):
        fail(one, at)
        assert one.allows(at)
    fail(one, 5.0)
    assert not one.allows(5.5)


def test_calls_when_under_way_together_fail_as_one() -> None:
    """Two hundred that wait on one connection that is killed have met one fault."""
    one = breaker()
    for _ in range(200):
        one.failed(1.0, 2.0, timed_out=False)
    assert one.allows(2.0)
    one.failed(2.0, 3.0, timed_out=False)
    one.failed(3.0, 4.0, timed_out=False)
    assert not one.allows(4.0)


def test_a_probe_when_the_cooldown_is_over_is_one() -> None:
    """One request asks for all; should it never be heard of again, another one may when its time is over."""
    one = breaker()
    fail(one, 10.0, timed_out=True)
    assert [True, False, False] == [one.allows(11.0) for _ in range(3)]
    assert [True, False] == [one.allows(12.0) for _ in range(2)]


@pytest.mark.parametrize("timed_out", [True, False])
def test_a_probe_when_it_fails_keeps_it_open(timed_out: bool) -> None:
    """One failure is enough then, of whatever kind."""
    one = breaker()
    fail(one, 10.0, timed_out=True)
    assert one.allows(11.0)
    fail(one, 11.1, timed_out=timed_out)
    assert not one.allows(12.0)
    assert one.allows(12.2)


def test_a_success_when_it_began_after_the_opening_closes() -> None:
    """A reply that was on its way before says nothing of now; the probe's does."""
    one = breaker()
    fail(one, 10.0, timed_out=True)
    one.succeeded(9.9)
    assert one.is_open
    assert one.allows(11.0)
    one.succeeded(11.0)
    assert [True] * 3 == [one.allows(11.0) for _ in range(3)]
    assert (False, False) == (one.is_open, one.troubled)


steps = st.lists(
    st.tuples(st.sampled_from(["error", "timeout", "success"]), st.floats(0.01, 2.0)), min_size=1, max_size=60
)


@given(steps)
def test_a_server_when_away_for_any_time_is_asked_once_a_cooldown_and_not_forgotten(
    given_steps: list[tuple[str, float]],
) -> None:
    """While open, at most one call goes in each cool-down; when one succeeds, all go."""
    one, now, asked = breaker(), 0.0, list[float]()
    for outcome, pause in given_steps:
        now += pause
        was_open = one.is_open
        if not one.allows(now):
            assert was_open
            continue
        if was_open:
            assert not asked or now - asked[-1] >= COOLDOWN - 1e-9
            asked.append(now)
        if outcome == "success":
            one.succeeded(now)
            assert not one.is_open
            asked.clear()
        else:
            fail(one, now, timed_out=outcome == "timeout")
            asked = [now] if one.is_open else asked
    assert one.allows(now + COOLDOWN)


def test_threads_when_they_meet_an_open_breaker_send_one_probe() -> None:
    """However many ask in the same instant."""
    one, passed, barrier = breaker(), list[bool](), threading.Barrier(16)
    fail(one, 10.0, timed_out=True)

    def ask() -> None:
        barrier.wait()
        passed.extend(one.allows(11.5) for _ in range(100))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 == sum(passed)
    assert 1_600 == len(passed)
