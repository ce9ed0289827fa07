"""What every algorithm promises: its bound, its wait, permits taken ahead, refunds, and a switch in mid-run."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_app.core.algorithms import (
    ALGORITHMS,
    MAX_LIMITS,
    Outcome,
    State,
    carry,
    refund,
    smooth_delay,
)
from ratelimit_app.core.rates import MAX_LIMIT, Rate
from tests.cases import MINUTE, SECOND

NAMES = sorted(ALGORITHMS)
METERS = ["gcra", "leaky_bucket", "token_bucket"]
BURSTING = {"fixed_window", *METERS}
PERIOD = 1_000
quick = settings(deadline=None, max_examples=60)

RATES = st.builds(Rate, st.integers(1, 8), st.sampled_from([PERIOD, PERIOD, 997, 60]))
# Many pauses are about a period, where a window forgets too early or a permit lives too long.
PAUSES = st.one_of(
    st.sampled_from([0, 0, 1, 900, 949, 951, 990, 999, 1_000, 1_001, 1_030, 1_090]),
    st.integers(0, 40),
    st.integers(0, 700),
)
REQUESTS = st.lists(
    st.tuples(PAUSES, st.sampled_from([0, 1, 1, 1, 1, 2, 3, 9]), st.integers(0, 8)), max_size=25
)


def ask(
    name: str,
    state: State | None,
    rate: Rate,
    now: int,
    cost: int = 1,
    burst: int | None = None,
    lease: int = 0,
) -> tuple[State | None, Outcome]:
    """Ask one algorithm."""
    return ALGORITHMS[name](state, rate, now, cost, burst=burst, lease=lease)


def remaining(name: str, state: State | None, rate: Rate, now: int) -> int:
    """Tell what is left."""
    return ask(name, state, rate, now, 0)[1].remaining


# --- The wait ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@quick
@given(st.data(), RATES, st.none() | st.integers(1, 9), st.sampled_from(NAMES))
def test_a_wait_when_given_is_the_earliest_and_nobody_passes_before_it(
    name: str, data: st.DataObject, rate: Rate, burst: int | None, before: str
) -> None:
    """C155: until it ends no request of this cost or a greater one passes, whatever comes; alone, it then passes."""
    now, state, denied = 10_000, None, None
    for step, (pause, cost, lease) in enumerate(data.draw(REQUESTS)):
        now += pause
        asked = before if step < 3 else name  # The key may hold what another algorithm has left.
        state, outcome = ask(asked, state, rate, now, cost, burst, lease)
        if not outcome.allowed and asked == name:
            denied = (now, cost, outcome.retry_after_us)
            break
    if denied is None:
        return
    start, cost, retry = denied
    until = 10**9 if retry is None else start + retry
    assert until > start
    if retry is not None:
        assert not ask(name, state, rate, until - 1, cost, burst)[1].allowed
        assert ask(name, state, rate, until, cost, burst)[1].allowed
    for pause, other, lease in data.draw(REQUESTS):
        now += pause
        if now >= until:
            break
        state, outcome = ask(name, state, rate, now, other, burst, lease)
        assert not (outcome.allowed and other >= cost)


@pytest.mark.parametrize("name", NAMES)
def test_a_cost_when_over_what_fits_never_passes(name: str) -> None:
    """No wait is promised where none helps: over the limit, over the burst of a meter, or a limit of nothing."""
    assert ask(name, None, Rate(3, SECOND), 5, 4)[1].retry_after_us is None
    assert ask(name, None, Rate(0, SECOND), 5, 1, 7)[1] == Outcome(False, 0, None, 0, 5)
    over = ask(name, None, Rate(3, SECOND), 5, 3, 2)[1]
    assert (name in METERS) == (over.retry_after_us is None) == (not over.allowed)


# --- The bounds -------------------------------------------------------------------------------------------------------


def worst(uses: list[int], period: int) -> int:
    """Count the fullest window `(end - period, end]`."""
    return max((sum(end - period < use <= end for use in uses) for end in uses), default=0)


Spent = list[tuple[int, list[int]]]
LEASES = st.lists(st.tuples(PAUSES, st.integers(1, 3), st.integers(0, 8)), min_size=5, max_size=25)
FLOODS = [
    pytest.param([(pause, 1, lease)] * count, id=f"{count} of {lease} every {pause}")
    for pause, count in ((1, 400), (7, 300), (47, 60), (61, 50), (331, 12), (951, 6), (1_001, 6))
    for lease in (2, 3, 8)
]


def leased(
    name: str, requests: list[tuple[int, int, int]], rate: Rate, burst: int | None, *, late: list[bool]
) -> Spent:
    """Run a timeline, and use each grant at once or at its very end, in turn: (start of a fixed window, uses)."""
    now, state, spent = 10_000, None, []
    for number, (pause, cost, lease) in enumerate(requests):
        now += pause
        state, outcome = ask(name, state, rate, now, cost, burst, lease)
        assert cost <= outcome.granted <= max(cost, lease) or not outcome.allowed
        if outcome.granted:
            ends = now
            if outcome.granted > cost:
                ends = min(outcome.at_us, now + rate.period_us // 20)
                assert name == "fixed_window" or ends == now + rate.period_us // 20
            use = ends if late[number % len(late)] else now
            spent.append((getattr(state, "start_us", 0), [use] * outcome.granted))
    return spent


def keep_their_bound(name: str, spent: Spent, rate: Rate, burst: int | None = None) -> None:
    """Check what an algorithm promises of everything that was let through."""
    uses = sorted(use for _, used in spent for use in used)
    if name == "fixed_window":
        starts = {start for start, _ in spent}
        assert all(start <= use < start + rate.period_us for start, used in spent for use in used)
        assert all(sum(len(used) for at, used in spent if at == start) <= rate.limit for start in starts)
        assert all(later - start >= rate.period_us for start, later in pairwise(sorted(starts)))
    elif name in METERS:
        fits = rate.limit if burst is None else burst
        for i, start in enumerate(uses):
            for j in range(i + fits, len(uses)):
                assert (j - i + 1 - fits) * rate.period_us <= (uses[j] - start) * rate.limit
    else:
        assert worst(uses, rate.period_us) <= rate.limit


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("requests", FLOODS)
@pytest.mark.parametrize("late", [[True], [False, True]])
def test_permits_taken_ahead_when_everybody_takes_them_keep_the_bound(
    name: str, requests: list[tuple[int, int, int]], late: list[bool]
) -> None:
    """A flood that takes all it can and uses it at the worst instants: no window ever holds more than the limit."""
    spent = leased(name, requests, Rate(5, PERIOD), None, late=late)
    keep_their_bound(name, spent, Rate(5, PERIOD))
    assert sum(len(used) for _, used in spent) >= 5


@pytest.mark.parametrize("name", NAMES)
@quick
@given(LEASES, RATES, st.none() | st.integers(1, 9), st.lists(st.booleans(), min_size=1, max_size=9))
def test_permits_taken_ahead_when_used_at_any_instant_keep_the_bound(
    name: str, requests: list[tuple[int, int, int]], rate: Rate, burst: int | None, late: list[bool]
) -> None:
    """Whoever uses the permits of a lease now or at its end: no window ever holds more than the limit."""
    keep_their_bound(name, leased(name, requests, rate, burst, late=late), rate, burst)


@quick
@given(st.data(), st.integers(1, 8), st.sampled_from([PERIOD, 997, 63]))
def test_a_sliding_counter_when_compared_with_exact_logs_is_between_them(
    data: st.DataObject, limit: int, period: int
) -> None:
    """The error bound: never less than the log of the period counts, never more than that of eleven parts."""
    now, state, part = 10_000, None, -(-period // 10)
    uses: list[int] = []
    for pause, cost, _ in data.draw(REQUESTS):
        now += pause
        counted = limit - remaining("sliding_counter", state, Rate(limit, period), now)
        exact, late = (sum(use > now - width for use in uses) for width in (period, 11 * part))
        assert exact <= counted <= late
        state, outcome = ask("sliding_counter", state, Rate(limit, period), now, cost)
        assert outcome.allowed == (not cost or counted + cost <= limit)
        uses += [now] * outcome.granted
    assert worst(uses, period) <= limit


@quick
@given(
    st.lists(st.tuples(st.integers(-300, 700), st.integers(0, 9), st.integers(0, 8)), max_size=30),
    RATES,
    st.none() | st.integers(1, 9),
)
def test_the_three_meters_when_asked_the_same_answer_the_same(
    requests: list[tuple[int, int, int]], rate: Rate, burst: int | None
) -> None:
    """Token bucket, leaky bucket and GCRA are one algorithm in three languages; only the delay is the bucket's own."""
    now, states = 10_000, dict.fromkeys(METERS)
    for step, cost, lease in requests:
        now += step
        answers = set()
        for name in METERS:
            states[name], outcome = ask(name, states[name], rate, now, cost, burst, lease)
            fields = (outcome.allowed, outcome.remaining, outcome.retry_after_us, outcome.reset_after_us)
            answers.add((*fields, outcome.at_us, outcome.granted))
        assert 1 == len(answers)


# --- Each in its own terms --------------------------------------------------------------------------------------------


def passed(name: str, rate: Rate, arrivals: list[int], burst: int | None = None) -> list[bool]:
    """Send one request at each instant."""
    state, found = None, []
    for now in arrivals:
        state, outcome = ask(name, state, rate, now, 1, burst)
        found.append(outcome.allowed)
    return found


def test_a_fixed_window_when_it_ends_begins_anew_with_the_next_request() -> None:
    """3/m, the first at 10 s: the window ends at 70 s, whoever comes in between."""
    arrivals = [10, 20, 69, 69, 70, 70, 70, 70]
    expected = [True, True, True, False, True, True, True, False]
    assert expected == passed("fixed_window", Rate(3, MINUTE), [at * SECOND for at in arrivals])


def test_a_bucket_when_tokens_flow_in_counts_parts_of_them() -> None:
    """3/m and a burst of 2: two at once, then one every 20 s, and no token is lost to rounding."""
    arrivals = [0, 0, 0, 19_999_999, 20_000_000, 40_000_000, 50_000_000, 60_000_000]
    expected = [True, True, False, False, True, True, False, True]
    for name in METERS:
        assert expected == passed(name, Rate(3, MINUTE), arrivals, 2)


def test_an_interval_when_it_is_no_whole_microsecond_does_not_drift() -> None:
    """7 in 10 s: after 700 obedient requests the clock has moved by the 699 intervals, rounded up once."""
    state, now = None, 0
    for _ in range(700):
        state, outcome = ask("gcra", state, Rate(7, 10 * SECOND), now, 1, 1)
        if not outcome.allowed:
            now += outcome.retry_after_us or 0
            state, outcome = ask("gcra", state, Rate(7, 10 * SECOND), now, 1, 1)
        assert outcome.allowed
    assert -(-699 * 10 * SECOND // 7) <= now <= -(-699 * 10 * SECOND // 7) + 699


def test_a_leaky_bucket_when_it_admits_tells_when_the_request_would_leave_a_queue() -> None:
    """4/s: of a burst of three, the second would wait 250 ms, the third 500 ms; a second later nobody waits."""
    state, delays = None, []
    for now in (0, 0, 0, SECOND):
        state, outcome = ask("leaky_bucket", state, Rate(4, SECOND), now)
        delays.append(outcome.delay_us)
    assert [0, 250_000, 500_000, 0] == delays
    assert 500_000 == smooth_delay(750_000, 1, Rate(4, SECOND))
    assert 0 == ask("token_bucket", None, Rate(4, SECOND), 0)[1].delay_us


@pytest.mark.parametrize("name", sorted(BURSTING))
def test_an_algorithm_that_forgives_a_burst_when_its_window_ends_stays_in_its_bound(name: str) -> None:
    """Around the end of a window pass at most twice the limit: all of it just before, all of it just after."""
    arrivals = [0, *([MINUTE - 1] * 5), *([MINUTE] * 5)]
    assert sum(passed(name, Rate(3, MINUTE), arrivals)) <= 6


# --- Changes in mid-run -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("new", NAMES)
@pytest.mark.parametrize("old", NAMES)
@quick
@given(used=st.integers(0, 8), rate=RATES, other=RATES, pause=st.integers(0, 59))
def test_a_state_when_another_algorithm_takes_over_is_charged_as_far_as_it_fits(
    old: str, new: str, used: int, rate: Rate, other: Rate, pause: int
) -> None:
    """What was counted counts on, or all that fits: a full client stays full, an empty one empty."""
    state = ask(old, None, rate, 10_000, min(used, rate.limit))[0]
    now = 10_000 + pause
    left = remaining(old, state, Rate(other.limit, rate.period_us), now)
    carried = carry(state, new, other, now)
    after = remaining(new, carried, other, now)
    if old == new or {old, new} <= set(METERS) or rate.period_us != other.period_us:
        assert 0 <= after <= other.limit
    else:
        assert left == after


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("limit", [6, 5, 4, 1])
def test_a_limit_when_changed_holds_for_the_next_request(name: str, limit: int) -> None:
    """With five units counted: a limit of six lets one more pass, any lower one nobody, and the wait is positive."""
    state = ask(name, None, Rate(5, MINUTE), 0, 5)[0]
    outcome = ask(name, state, Rate(limit, MINUTE), 0)[1]
    assert (limit == 6) == outcome.allowed
    assert outcome.allowed or 0 < (outcome.retry_after_us or 0) <= 5 * 2 * MINUTE


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("period", [MINUTE // 60, MINUTE * 60])
def test_a_period_when_changed_holds_for_the_next_request(name: str, period: int) -> None:
    """A full client of a minute stays full when the window is widened, and is free soon when it is narrowed."""
    state = ask(name, None, Rate(5, MINUTE), 10 * MINUTE, 5)[0]
    state, outcome = ask(name, state, Rate(5, period), 10 * MINUTE + 1, 1)
    assert not outcome.allowed
    assert 0 < (outcome.retry_after_us or 0) <= 1.2 * period
    assert ask(name, state, Rate(5, period), 10 * MINUTE + 1 + (outcome.retry_after_us or 0))[1].allowed


# --- Refunds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@quick
@given(requests=REQUESTS, rate=RATES, which=st.integers(0, 25), later=st.integers(0, 1_200))
def test_a_refund_when_given_never_leaves_more_than_if_the_charge_had_not_been(
    name: str, requests: list[tuple[int, int, int]], rate: Rate, which: int, later: int
) -> None:
    """Whenever a charge comes back, at most as much is left as without it: once, and nothing after its window."""
    now, state, without, mine = 10_000, None, None, None
    for number, (pause, cost, _) in enumerate(requests):
        now += pause
        state, outcome = ask(name, state, rate, now, cost)
        if number == which and outcome.granted:
            mine = outcome
        elif outcome.granted:
            without = ask(name, without, rate, now, cost)[0]
    if mine is None:
        return
    now += later
    before = remaining(name, state, rate, now)
    state, back = refund(state, rate, now, mine.at_us, mine.granted)
    after = remaining(name, state, rate, now)
    assert 0 <= after - before <= back <= mine.granted
    if name != "fixed_window":  # There another request would have begun the window.
        assert after <= remaining(name, without, rate, now)
    assert later <= 1.2 * rate.period_us or not back
    if name not in METERS:
        assert after - before == back
    if name == "sliding_window":
        assert 0 == refund(state, rate, now, mine.at_us, mine.granted)[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_charge_when_refunded_at_once_leaves_what_was_there(name: str) -> None:
    """All units come back, and the next request finds the room."""
    rate = Rate(5, MINUTE)
    state = ask(name, None, rate, MINUTE, 2)[0]
    state, mine = ask(name, state, rate, MINUTE + 1, 3)
    state, back = refund(state, rate, MINUTE + 1, mine.at_us, 3)
    assert (3, 3) == (back, remaining(name, state, rate, MINUTE + 1))
    assert (None, 0) == refund(None, rate, MINUTE, mine.at_us, 3)


def test_the_limits_when_read_are_what_each_algorithm_holds() -> None:
    """A log takes limits up to 10,000, the others what a rate can say."""
    assert {name: 10_000 if name == "sliding_window" else MAX_LIMIT for name in NAMES} == MAX_LIMITS
