"""How many admissions a window held: the measure by which the demo judges its own limiter."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def most_in_window(times: Iterable[int], period: int) -> int:
    """Give the most times that any half-open window `(t - period, t]` holds; all in microseconds."""
    ordered = sorted(times)
    oldest = most = 0
    for newest, time in enumerate(ordered):
        while ordered[oldest] <= time - period:
            oldest += 1
        most = max(most, newest - oldest + 1)
    return most


def most_by_fixed_windows(times: Iterable[int], limit: int, period: int) -> int:
    """Give the most in any window if windows fixed to the clock had admitted these times; in microseconds."""
    taken: Counter[int] = Counter()
    admitted = []
    for time in sorted(times):
        taken[time // period] += 1
        if taken[time // period] <= limit:
            admitted.append(time)
    return most_in_window(admitted, period)
