"""The algorithms that count what was admitted in a window."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from ratelimit_app.core.algorithms.states import (
    PARTS,
    SLOTS,
    FixedWindow,
    Outcome,
    SlidingCounter,
    State,
    as_log,
    live,
    shifted,
    used_units,
)

if TYPE_CHECKING:
    from ratelimit_app.core.rates import Rate

LARGE = 128
LEASE_PART = 20


def sliding_window(
    state: State | None, rate: Rate, now_us: int, cost: int = 1, *, burst: int | None = None, lease: int = 0
) -> tuple[State | None, Outcome]:
    """
    Admit a request while the window `(now - period, now]` holds at most `limit` units with it: exact.

    State: the sorted stamps of the admitted units, each unit with a stamp of its own; at most `limit` of them.
    Memory: one stamp for each admitted unit of the last period. It forgives nothing: no interval as long as the
    period ever holds more than the limit. Source: the sliding-window log, e.g. the ZSet form of Redis's manuals.

    `burst` is the whole limit where this one is a share of it. Over 128 units a log is kept as a list that only
    grows at its end: a stamp there is never before the newest. A clock that steps back keeps later stamps in the
    log until they leave: longer by the step at most.
    """
    period, whole = rate.period_us, max(rate.limit, burst or 0)
    log = as_log(state)
    if log is None:
        log = tuple(range(now_us, now_us + min(used_units(state, rate, now_us), whole)))
    log = live(log, now_us - period)
    kept = log if log or as_log(state) is not None else state
    count, newest = len(log), log[-1] if log else now_us - period
    room = rate.limit - count
    if cost and cost > room:
        retry = None if cost > rate.limit else log[cost - rate.limit - 1] + period - now_us
        return kept, Outcome(False, max(room, 0), retry, newest + period - now_us, now_us)
    if not cost:
        return kept, Outcome(True, max(room, 0), 0, newest + period - now_us, now_us)
    units = max(cost, min(lease, room))
    ahead = period // LEASE_PART if units > cost else 0
    alone = units == 1 and whole <= LARGE and now_us not in log
    first = now_us if alone else max(now_us + ahead, newest + 1)
    stamps = list(log)
    for stamp in range(first, first + units):
        insort(stamps, stamp)
    reset = first + units - 1 + period - now_us
    return tuple(stamps), Outcome(True, room - units, 0, reset, first, granted=units)


def fixed_window(
    state: State | None, rate: Rate, now_us: int, cost: int = 1, *, burst: int | None = None, lease: int = 0
) -> tuple[State | None, Outcome]:
    """
    Admit up to `limit` units in a window that begins with its first request and lasts for the period.

    State: when the window began, and a count. Memory: a few bytes, whatever the limit. It forgives a burst around
    the end of a window: any interval as long as the period holds at most twice the limit. Source: the counter with
    an expiry of Redis's manual of INCR.

    A clock that steps back before the start is taken as still in the window. An empty window is none.
    """
    period, whole = rate.period_us, max(rate.limit, burst or 0)
    window, kept = state, state
    if not isinstance(window, FixedWindow):
        window = FixedWindow(now_us, min(used_units(state, rate, now_us), whole))
        kept = window if window.count else state
    if window.start_us <= now_us - period or not window.count:
        window = FixedWindow(now_us, 0)
    room, ends = rate.limit - window.count, window.start_us + period
    if cost and cost > room:
        retry = None if cost > rate.limit else ends - now_us
        reset = ends - now_us if window.count else 0
        return kept, Outcome(False, max(room, 0), retry, reset, now_us)
    if not cost:
        return kept, Outcome(True, max(room, 0), 0, ends - now_us if window.count else 0, now_us)
    units = max(cost, min(lease, room))
    ahead = period // LEASE_PART if units > cost else 0
    at = max(min(now_us + ahead, ends - 1), window.start_us)
    after = FixedWindow(window.start_us, window.count + units)
    return after, Outcome(True, room - units, 0, ends - now_us, at, granted=units)


def sliding_counter(
    state: State | None, rate: Rate, now_us: int, cost: int = 1, *, burst: int | None = None, lease: int = 0
) -> tuple[State | None, Outcome]:
    """
    Admit a request while the current tenth of a period and the ten before it hold at most `limit` units with it.

    State: a count for each part, aligned to the epoch, and one for the part to come (permits taken ahead end
    there). Memory: 65 bytes, whatever the limit. Error bound: what it counts lies between the exact log of the
    period and that of eleven parts (1.1 periods), so it never admits more than the limit in any interval as long
    as the period, and forgets a unit at most a part late. It forgives nothing. Source: the sub-windows of the
    sliding-window counter, without its guess of an even spread.

    A changed period sorts the counts anew, each at the end of its part or now, whichever is earlier. A clock that
    steps back charges to the part that was current.
    """
    whole, part = max(rate.limit, burst or 0), -(-rate.period_us // PARTS)
    counter = _counter(state, rate, part, whole, now_us)
    count, base = sum(counter.counts), counter.base
    same = isinstance(state, SlidingCounter) and state.part_us == part
    kept = state if same or not (count or isinstance(state, SlidingCounter)) else counter
    room = rate.limit - count
    reset = _reset(counter, now_us)
    if cost and cost > room:
        retry = None if cost > rate.limit else _wait(counter, cost - room, now_us)
        return kept, Outcome(False, max(room, 0), retry, reset, now_us)
    if not cost:
        return kept, Outcome(True, max(room, 0), 0, reset, now_us)
    units = max(cost, min(lease, room))
    ahead = rate.period_us // LEASE_PART if units > cost else 0
    at = max(now_us + ahead, base * part)
    slot = base + 1 - at // part
    counts = [n + units if i == slot else n for i, n in enumerate(counter.counts)]
    after = SlidingCounter(part, base, tuple(counts))
    return after, Outcome(True, room - units, 0, _reset(after, now_us), at, granted=units)


def _counter(state: State | None, rate: Rate, part: int, whole: int, now_us: int) -> SlidingCounter:
    """Give the state as a counter of these parts at this time, whatever it was."""
    if isinstance(state, SlidingCounter) and state.part_us == part:
        return shifted(state, now_us)
    base, counts = now_us // part, [0] * SLOTS
    if isinstance(state, SlidingCounter):
        for i, count in enumerate(state.counts):
            last = min((state.base + 2 - i) * state.part_us - 1, now_us)
            if (slot := base + 1 - last // part) < SLOTS:
                counts[slot] += count
    else:
        counts[1] = min(used_units(state, rate, now_us), whole)
    return SlidingCounter(part, base, tuple(counts))


def _wait(counter: SlidingCounter, units: int, now_us: int) -> int:
    """Give the time until so many units have left, the oldest first."""
    for i in range(SLOTS - 1, -1, -1):
        units -= counter.counts[i]
        if units <= 0:
            return _leaves(counter, i) - now_us
    msg = "more units should leave than are counted"
    raise AssertionError(msg)


def _reset(counter: SlidingCounter, now_us: int) -> int:
    newest = next((i for i, count in enumerate(counter.counts) if count), None)
    return 0 if newest is None else _leaves(counter, newest) - now_us


def _leaves(counter: SlidingCounter, slot: int) -> int:
    return (counter.base + 1 - slot + PARTS + 1) * counter.part_us
