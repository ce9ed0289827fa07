"""Judges what a limiter has said: a pure function over the answers' own times."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple


class Try(NamedTuple):
    """One answer: whether it passed, at which microsecond by the server, and whether Redis decided it."""

    allowed: bool
    at: int
    degraded: bool = False


def faults(tries: list[Try], limit: int, period_us: int) -> list[str]:
    """
    Name what was wrong: a window `(t - period, t]` with more than the limit, or a denial when it held fewer.

    Windows are those that end at an admitted entry: no other can be the first to be too full.
    """
    stamps = sorted(one.at for one in tries if one.allowed)
    found = [f"not decided by Redis: {one}" for one in tries if one.degraded]
    for last in stamps:
        held = _held(stamps, last, period_us)
        if held > limit:
            found.append(f"{held} were admitted in the window that ends at {last}")
    found.extend(
        f"denied at {one.at}, when the window held {held}"
        for one in tries
        if not one.allowed and (held := _held(stamps, one.at, period_us)) < limit
    )
    return found


def _held(stamps: list[int], end: int, period_us: int) -> int:
    return bisect_right(stamps, end) - bisect_right(stamps, end - period_us)
