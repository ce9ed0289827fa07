"""
The algorithms that let a level drain at the rate, each in its own terms: they admit the same requests.

All keep one `Meter`. Its numbers are whole, and so exact in the doubles of the script while `burst * unit` is below
2**53: for `100/m` up to a burst of 10**10, for `7/d` of 100,000. Beyond it an answer may be a microsecond off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ratelimit_app.core.algorithms.states import Meter, Outcome, State, drained, scale, used_units
from ratelimit_app.core.algorithms.windows import LEASE_PART

if TYPE_CHECKING:
    from ratelimit_app.core.rates import Rate


@dataclass(frozen=True, slots=True)
class _Bucket:
    """
    What a request meets: parts of a unit, parts that drain in a microsecond, parts that fit, and the meter now.

    `kept`: the state that stays when nothing is charged.
    """

    unit: int
    drain: int
    capacity: int
    lease_us: int
    meter: Meter
    kept: State | None


def token_bucket(
    state: State | None, rate: Rate, now_us: int, cost: int = 1, *, burst: int | None = None, lease: int = 0
) -> tuple[State | None, Outcome]:
    """
    Admit a request while the bucket holds a token for each of its units; `limit` tokens flow in each period.

    The bucket holds `burst` tokens (None: the limit), is full at first, and flows over. State: the tokens that are
    missing, and when that was. Memory: 25 bytes. It forgives a burst: an interval as long as the period holds up
    to `limit + burst` units. Source: the token bucket of RFC 2697, with one rate and one colour.
    """
    bucket = _begin(state, rate, now_us, burst)
    tokens = bucket.capacity - bucket.meter.level
    return _answer(bucket, now_us, cost, lease, conforms=cost * bucket.unit <= tokens)


def leaky_bucket(
    state: State | None, rate: Rate, now_us: int, cost: int = 1, *, burst: int | None = None, lease: int = 0
) -> tuple[State | None, Outcome]:
    """
    Admit a request while its units fit into the bucket, which leaks `limit` units in each period, evenly.

    The bucket takes `burst` units (None: the limit) and is empty at first. It is a meter and holds nobody up: `delay_us`
    tells who wants to be smooth how long to wait. State: the level, and when it stood there. Memory: 25 bytes. It
    forgives a burst, as the token bucket does. Source: the continuous-state leaky bucket of ITU-T I.371.
    """
    bucket = _begin(state, rate, now_us, burst)
    fits = bucket.meter.level + cost * bucket.unit <= bucket.capacity
    after, outcome = _answer(bucket, now_us, cost, lease, conforms=fits)
    return after, _delayed(outcome, rate)


def gcra(
    state: State | None, rate: Rate, now_us: int, cost: int = 1, *, burst: int | None = None, lease: int = 0
) -> tuple[State | None, Outcome]:
    """
    Admit a request that is not too early for its theoretical arrival time, which each unit puts off by an interval.

    The interval is `period / limit`, the tolerance `burst - 1` intervals (None: the limit's). State: how far the
    theoretical arrival time is ahead, and since when. Memory: 25 bytes. It forgives a burst, as the token bucket
    does. Source: the generic cell rate algorithm, virtual scheduling, of ITU-T I.371 and the ATM Forum's TM 4.0.
    """
    bucket = _begin(state, rate, now_us, burst)
    ahead, interval = bucket.meter.level, bucket.unit
    tolerance = bucket.capacity - cost * interval
    return _answer(bucket, now_us, cost, lease, conforms=ahead <= tolerance)


def smooth_delay(reset_us: int, units: int, rate: Rate) -> int:
    """Tell how many microseconds after its admission a request would leave a leaky bucket that queues."""
    unit, drain = scale(rate)
    return max(reset_us - -(-units * unit // drain), 0) if drain else 0


def _delayed(outcome: Outcome, rate: Rate) -> Outcome:
    if not outcome.granted:
        return outcome
    return replace(outcome, delay_us=smooth_delay(outcome.reset_after_us, outcome.granted, rate))


def _begin(state: State | None, rate: Rate, now_us: int, burst: int | None) -> _Bucket:
    unit, drain = scale(rate)
    capacity = (rate.limit if burst is None else burst) * unit if rate.limit else 0
    kept = state
    if isinstance(state, Meter):
        meter = drained(state, rate, now_us)
    else:
        used = used_units(state, rate, now_us)
        meter = Meter(now_us, min(used * unit, capacity), unit)
        kept = meter if used else state
    return _Bucket(unit, drain, capacity, rate.period_us // LEASE_PART, meter, kept)


def _answer(
    bucket: _Bucket, now_us: int, cost: int, lease: int, *, conforms: bool
) -> tuple[State | None, Outcome]:
    """Say what a judgement means, and charge what it admits."""
    meter, need = bucket.meter, cost * bucket.unit
    room, reset = _room(bucket, meter.level), _reset(bucket, meter, now_us)
    if cost and not conforms:
        over = meter.level + need - bucket.capacity
        never = need > bucket.capacity
        retry = None if never else meter.stamp_us - now_us + -(-over // bucket.drain)
        return bucket.kept, Outcome(False, room, retry, reset, now_us)
    if not cost:
        return bucket.kept, Outcome(True, room, 0, reset, now_us)
    # Permits are charged as if used at their very end: what drains until then is taken by them.
    held = max(meter.level, bucket.lease_us * bucket.drain)
    granted, level, at = min(lease, _room(bucket, held)), held, now_us + bucket.lease_us
    if granted <= cost:
        granted, level, at = cost, meter.level, now_us
    after = Meter(meter.stamp_us, level + granted * bucket.unit, bucket.unit)
    room, reset = _room(bucket, after.level), _reset(bucket, after, now_us)
    return after, Outcome(True, room, 0, reset, max(at, meter.stamp_us), granted=granted)


def _room(bucket: _Bucket, level: int) -> int:
    return max((bucket.capacity - level) // bucket.unit, 0)


def _reset(bucket: _Bucket, meter: Meter, now_us: int) -> int:
    """Give the time until the level is nothing; 0 for one that never drains."""
    if not meter.level or not bucket.drain:
        return 0
    return meter.stamp_us - now_us + -(-meter.level // bucket.drain)
