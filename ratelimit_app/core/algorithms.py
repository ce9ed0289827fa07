"""
The algorithms as pure functions: the specification that the Lua forms are held to.

Each takes a state, a rate, the time in microseconds and a cost, and gives the new state with an outcome.
A denied request leaves the state as it was (but for entries that have expired).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass

from ratelimit_app.core.rates import Rate

Log = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    What one algorithm says of one request.

    `remaining`: units left after it. `retry_after_us`: microseconds until this request could pass, 0 when it
    passes now, None when it never can (its cost is over the limit). `reset_after_us`: microseconds until all
    that is counted now has left. `at_us`: the stamp of its first unit when admitted, else the time it was judged.
    """

    allowed: bool
    remaining: int
    retry_after_us: int | None
    reset_after_us: int
    at_us: int


def sliding_window(log: Log | None, rate: Rate, now_us: int, cost: int = 1) -> tuple[Log, Outcome]:
    """
    Admit a request while the window `(now - period, now]` holds at most `limit` units with it: exact.

    State: the sorted stamps of the admitted units, each unit with a stamp of its own; at most `limit` of them.
    Memory: one stamp for each admitted unit of the last period. It forgives nothing: no interval as long as the
    period ever holds more than the limit. Source: the sliding-window log, e.g. the ZSet form of Redis's manuals.

    A clock that steps back keeps later stamps in the log until they leave: longer by the step at most.
    """
    period = rate.period_us
    live = log[bisect_right(log, now_us - period) :] if log else ()
    count = len(live)
    newest = live[-1] if live else now_us - period
    if cost and count + cost > rate.limit:
        retry = None if cost > rate.limit else live[count - rate.limit + cost - 1] + period - now_us
        return live, Outcome(False, max(rate.limit - count, 0), retry, newest + period - now_us, now_us)
    if not cost:
        return live, Outcome(True, max(rate.limit - count, 0), 0, newest + period - now_us, now_us)
    first = now_us if cost == 1 and now_us not in live else max(now_us, newest + 1)
    stamps = list(live)
    for stamp in range(first, first + cost):
        insort(stamps, stamp)
    reset = first + cost - 1 + period - now_us
    return tuple(stamps), Outcome(True, rate.limit - count - cost, 0, reset, first)


Algorithm = Callable[[Log | None, Rate, int, int], tuple[Log, Outcome]]

ALGORITHMS: dict[str, Algorithm] = {"sliding_window": sliding_window}
MAX_LIMITS: dict[str, int] = {"sliding_window": 10_000}
