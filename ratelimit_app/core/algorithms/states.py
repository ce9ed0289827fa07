"""What the algorithms remember of one identity, and what each state weighs for another algorithm."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import ceil, gcd
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratelimit_app.core.rates import Rate

PARTS = 10
SLOTS = PARTS + 2

Log = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    What one algorithm says of one request.

    `remaining`: units left after it. `retry_after_us`: microseconds until this request could pass, 0 when it
    passes now, None when it never can (its cost is over the limit). `reset_after_us`: microseconds until all
    that is counted now has left; of a log that was charged, until these units have. `at_us`: the stamp of its
    first unit when admitted, else the time it was judged. `delay_us`: of an admitted request and a leaky bucket,
    the microseconds after which it would leave the bucket if it had to queue. `granted`: units charged.
    """

    allowed: bool
    remaining: int
    retry_after_us: int | None
    reset_after_us: int
    at_us: int
    delay_us: int = 0
    granted: int = 0


@dataclass(frozen=True, slots=True)
class FixedWindow:
    """The window that began with a request at `start_us`, and the units counted in it."""

    start_us: int
    count: int


@dataclass(frozen=True, slots=True)
class SlidingCounter:
    """
    Units by part of a window; `counts[0]` is of the part after `base`, `counts[1]` of `base`, then older ones.

    `part_us`: how long a part is. `base`: the number of the part that was current, counted from the epoch.
    """

    part_us: int
    base: int
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Meter:
    """
    A level at `stamp_us`, in parts of which `unit` are one unit of cost.

    A rate of `limit` units in `period_us` drains `limit / g` parts each microsecond, and a unit is `period_us / g`
    parts, `g` being their greatest common divisor: so every level is a whole number.
    """

    stamp_us: int
    level: int
    unit: int


State = Log | FixedWindow | SlidingCounter | Meter
_KINDS = (FixedWindow, SlidingCounter, Meter)


def as_log(state: State | None) -> Log | None:
    """Give the state when it is a log, else None."""
    return None if state is None or isinstance(state, _KINDS) else state


def live(log: Log, cut_us: int) -> Log:
    """Leave out the stamps at or before a time."""
    return log[bisect_right(log, cut_us) :]


def shifted(state: SlidingCounter, now_us: int) -> SlidingCounter:
    """Move a counter on to the part of a time; a time before its part leaves it as it is."""
    base = max(now_us // state.part_us, state.base)
    kept = state.counts[: max(SLOTS - (base - state.base), 0)]
    return SlidingCounter(state.part_us, base, (0,) * (SLOTS - len(kept)) + kept)


def drained(state: Meter, rate: Rate, now_us: int) -> Meter:
    """
    Let a meter drain until a time, by the rate that holds now.

    A level that an earlier rate left is rescaled, rounded up, in the doubles that the script works with. A time
    before the stamp drains nothing and moves nothing.
    """
    unit, drain = scale(rate)
    level = state.level if state.unit == unit else ceil(float(state.level) * unit / state.unit)
    gone = max(now_us - state.stamp_us, 0) * drain
    return Meter(max(now_us, state.stamp_us), max(level - gone, 0), unit)


def scale(rate: Rate) -> tuple[int, int]:
    """Give a rate's parts of a unit, and how many of them drain in a microsecond."""
    shared = gcd(rate.limit, rate.period_us)
    return rate.period_us // shared, rate.limit // shared


def used_units(state: State | None, rate: Rate, now_us: int) -> int:
    """Count the units that a state of any kind holds now: a log and a fixed window by the period of this rate."""
    if state is None:
        return 0
    if isinstance(state, FixedWindow):
        return state.count if state.start_us > now_us - rate.period_us else 0
    if isinstance(state, SlidingCounter):
        return sum(shifted(state, now_us).counts)
    if isinstance(state, Meter):
        level = drained(state, rate, now_us)
        return -(-level.level // level.unit)
    return len(live(state, now_us - rate.period_us))
