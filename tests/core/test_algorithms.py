"""The sliding window, as the specification says it: exact in every window, and never denied without cause."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_app.core.algorithms import ALGORITHMS, MAX_LIMITS, Log, Outcome, as_log, sliding_window
from ratelimit_app.core.rates import Rate
from tests.cases import MINUTE, SECOND

RATE = Rate(3, MINUTE)
steps = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4)), max_size=60)


def judged(log: Log | None, rate: Rate, now: int, cost: int = 1) -> tuple[Log, Outcome]:
    """Ask the sliding window, which keeps a log."""
    after, outcome = sliding_window(log, rate, now, cost)
    return as_log(after) or (), outcome


def run(arrivals: list[int], rate: Rate = RATE, log: Log = ()) -> tuple[Log, list[Outcome]]:
    """Send one request for each arrival, in microseconds."""
    outcomes = []
    for now in arrivals:
        log, outcome = judged(log, rate, now)
        outcomes.append(outcome)
    return log, outcomes


def test_requests_when_they_come_at_one_instant_are_all_counted() -> None:
    """Ten at one microsecond with limit 3: three pass, three stamps (C31)."""
    log, outcomes = run([SECOND] * 10)
    assert [True] * 3 + [False] * 7 == [outcome.allowed for outcome in outcomes]
    assert (SECOND, SECOND + 1, SECOND + 2) == log
    assert list(log) == [outcome.at_us for outcome in outcomes[:3]]


@pytest.mark.parametrize(
    ("now", "allowed", "left"), [(MINUTE, True, 1), (MINUTE + 1_000, True, 1), (MINUTE - 1, False, 3)]
)
def test_an_entry_when_it_is_a_period_old_has_left(now: int, allowed: bool, left: int) -> None:
    """The window is `(now - W, now]`: at exactly W the old entry no longer counts (C33)."""
    log, (outcome,) = run([now], log=(0,) if left == 1 else (0, 1, 2))
    assert (allowed, left) == (outcome.allowed, len(log))


def test_a_burst_when_it_straddles_a_boundary_is_not_doubled() -> None:
    """3 at 59.9 s and 3 at 60.1 s: the second three are denied (C34)."""
    _, outcomes = run([59_900_000] * 3 + [60_100_000] * 3)
    assert [True] * 3 + [False] * 3 == [outcome.allowed for outcome in outcomes]


def test_a_denied_client_when_it_hammers_is_not_locked_for_longer() -> None:
    """Denied requests leave no trace: the first one after the window passes (C35, C143)."""
    log, outcomes = run([0] * 3 + [second * SECOND for second in range(1, 60)] + [MINUTE + 3])
    assert [True] * 3 + [False] * 59 + [True] == [outcome.allowed for outcome in outcomes]
    assert 1 == len(log)


def test_costs_when_mixed_are_summed() -> None:
    """Limit 10: 8 and 2 pass, 1 more does not (C37)."""
    rate, seen = Rate(10, MINUTE), []
    log: Log = ()
    for now, cost in enumerate((8, 2, 1)):
        log, outcome = judged(log, rate, now * SECOND, cost)
        seen.append((outcome.allowed, outcome.remaining))
    assert [(True, 2), (True, 0), (False, 0)] == seen


def test_a_wait_when_denied_is_until_the_oldest_leaves() -> None:
    """Limit 2 in 60 s, hits at 0 s and 10 s, denied at 20 s: wait 40 s, all empty after 50 s (C38)."""
    log, outcomes = run([0, 10 * SECOND, 20 * SECOND], Rate(2, MINUTE))
    assert (False, 40 * SECOND, 50 * SECOND) == (
        outcomes[2].allowed,
        outcomes[2].retry_after_us,
        outcomes[2].reset_after_us,
    )
    assert judged(log, Rate(2, MINUTE), 60 * SECOND)[1].allowed


@pytest.mark.parametrize("count", [199, 200, 201, 1500])
def test_a_limit_when_lowered_under_a_full_log_denies_with_a_positive_wait(count: int) -> None:
    """From 2000 to 200 with n entries: 199 pass, the others wait a positive time (C40)."""
    log = tuple(range(count))
    live, outcome = judged(log, Rate(200, MINUTE), 2_000)
    assert (count < 200) == outcome.allowed
    assert len(live) == (200 if outcome.allowed else count)
    assert 0 == outcome.remaining
    assert outcome.retry_after_us is not None
    assert outcome.allowed or outcome.retry_after_us > 0


@pytest.mark.parametrize("limit", [6, 5, 4, 3, 0])
def test_a_limit_when_changed_to_any_neighbour_raises_nothing(limit: int) -> None:
    """With 5 entries and a limit of n+1, n, n-1, n-2 or 0 the answer makes sense (C40, C47)."""
    _, outcome = judged((1, 2, 3, 4, 5), Rate(limit, MINUTE), 10)
    assert (limit > 5) == outcome.allowed
    assert (limit == 0) == (outcome.retry_after_us is None)


@pytest.mark.parametrize("log", [None, (), (5,)])
def test_a_zero_limit_when_asked_always_denies(log: Log | None) -> None:
    """The first request is denied too, waiting never helps, nothing is left (C47)."""
    _, outcome = judged(log, Rate(0, MINUTE), 10)
    assert (False, None, 0) == (outcome.allowed, outcome.retry_after_us, outcome.remaining)


def test_a_cost_when_over_the_limit_can_never_pass() -> None:
    """No wait is promised where none helps, and the log stays."""
    log, outcome = judged((5,), RATE, 10, 4)
    assert (False, None, (5,)) == (outcome.allowed, outcome.retry_after_us, log)


@pytest.mark.parametrize(
    ("log", "remaining", "reset"), [((), 3, 0), ((5, 6), 1, MINUTE - 4), ((1, 2, 3, 4, 5), 0, MINUTE - 5)]
)
def test_a_look_when_it_costs_nothing_changes_nothing(log: Log, remaining: int, reset: int) -> None:
    """Cost 0 tells what is left and when the window will be empty."""
    after, outcome = judged(log, RATE, 10, 0)
    assert (log, True, remaining, 0, reset) == (
        after,
        outcome.allowed,
        outcome.remaining,
        outcome.retry_after_us,
        outcome.reset_after_us,
    )


@given(steps, st.integers(1, 5), st.integers(1, 20))
def test_any_timeline_when_run_admits_exactly_what_the_windows_hold(
    timeline: list[tuple[int, int]], limit: int, period: int
) -> None:
    """In no trailing window more than the limit, and never a denial while the window had room (C34)."""
    rate, now = Rate(limit, period), 100
    log: Log = ()
    admitted: list[int] = []
    for pause, cost in timeline:
        now += pause
        held = len([stamp for stamp in admitted if stamp > now - period])
        log, outcome = judged(log, rate, now, cost)
        assert outcome.allowed == (cost == 0 or held + cost <= limit)
        assert outcome.remaining == max(limit - held - (cost if outcome.allowed else 0), 0)
        if outcome.allowed and cost:
            admitted += range(outcome.at_us, outcome.at_us + cost)
    admitted.sort()
    assert len(set(admitted)) == len(admitted)
    for stamp in admitted:
        assert bisect_right(admitted, stamp) - bisect_left(admitted, stamp - period + 1) <= limit


@given(st.lists(st.integers(0, 200), min_size=1, max_size=40), st.integers(1, 4))
def test_a_clock_when_it_jumps_gives_no_two_one_stamp_and_locks_nobody_out(
    times: list[int], limit: int
) -> None:
    """A clock that steps back crashes nothing, and costs no more than the step and the window (C60)."""
    rate = Rate(limit, 50)
    log: Log = ()
    for now in times:
        log, outcome = judged(log, rate, now)
        assert list(log) == sorted(set(log))
        assert len(log) <= limit
        if not outcome.allowed:
            assert 0 < (outcome.retry_after_us or 0) <= max(times) - now + 50 + limit


def test_the_registry_when_read_names_what_there_is() -> None:
    """Each algorithm has a highest limit; others come in later releases."""
    assert set(ALGORITHMS) == set(MAX_LIMITS)
    assert ALGORITHMS["sliding_window"] is sliding_window
