"""Giving units back: the specification of the refund script."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ratelimit_app.core.algorithms.states import (
    PARTS,
    SLOTS,
    FixedWindow,
    Log,
    Meter,
    SlidingCounter,
    State,
    as_log,
    scale,
)

if TYPE_CHECKING:
    from ratelimit_app.core.rates import Rate


def refund(
    state: State | None, rate: Rate, now_us: int, first_us: int, units: int
) -> tuple[State | None, int]:
    """
    Give back a charge of `units` whose first was stamped `first_us`, as far as it still counts.

    Returns the state without them, and how many came back: of a meter all that were asked for, when any part of
    them had not drained. Never more than the charge still weighs. A charge made by another period gives nothing
    back to a sliding counter, since its parts were others.
    """
    log = as_log(state)
    if log is not None:
        return _from_log(log, rate, now_us, first_us, units)
    if isinstance(state, FixedWindow):
        return _from_window(state, rate, now_us, first_us, units)
    if isinstance(state, SlidingCounter):
        return _from_counter(state, rate, now_us, first_us, units)
    if isinstance(state, Meter):
        return _from_meter(state, rate, now_us, first_us, units)
    return state, 0


def _from_log(log: Log, rate: Rate, now_us: int, first_us: int, units: int) -> tuple[Log, int]:
    if first_us <= now_us - rate.period_us:
        return log, 0
    kept = tuple(stamp for stamp in log if not first_us <= stamp < first_us + units)
    return kept, len(log) - len(kept)


def _from_window(
    window: FixedWindow, rate: Rate, now_us: int, first_us: int, units: int
) -> tuple[FixedWindow, int]:
    ends = window.start_us + rate.period_us
    if ends <= now_us or not window.start_us <= first_us < ends:
        return window, 0
    back = min(units, window.count)
    return replace(window, count=window.count - back), back


def _from_counter(
    counter: SlidingCounter, rate: Rate, now_us: int, first_us: int, units: int
) -> tuple[SlidingCounter, int]:
    part = first_us // counter.part_us
    slot = counter.base + 1 - part
    gone = part + PARTS < max(counter.base, now_us // counter.part_us)
    if counter.part_us != -(-rate.period_us // PARTS) or gone or not 0 <= slot < SLOTS:
        return counter, 0
    back = min(units, counter.counts[slot])
    counts = [n - back if i == slot else n for i, n in enumerate(counter.counts)]
    return replace(counter, counts=tuple(counts)), back


def _from_meter(meter: Meter, rate: Rate, now_us: int, first_us: int, units: int) -> tuple[Meter, int]:
    unit, drain = scale(rate)
    weighs = units * unit - max(now_us - first_us, 0) * drain
    if weighs <= 0 or not meter.level:
        return meter, 0
    if meter.unit != unit:
        weighs = int(float(weighs) * meter.unit // unit)
    return replace(meter, level=max(meter.level - weighs, 0)), units
