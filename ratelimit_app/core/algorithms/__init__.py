"""
The algorithms as pure functions: the specification that the Lua forms are held to.

Each takes a state, a rate, the time in microseconds, a cost, a burst and a number of permits to take at a time,
and gives the new state with an outcome. A state of another algorithm is carried over: what it counts now is charged
now, as far as it fits. A denied request leaves the state as it was, but for what has expired or was carried over.
"""

from __future__ import annotations

from typing import Protocol

from ratelimit_app.core.algorithms.meters import gcra, leaky_bucket, smooth_delay, token_bucket
from ratelimit_app.core.algorithms.refunds import refund
from ratelimit_app.core.algorithms.states import (
    FixedWindow,
    Log,
    Meter,
    Outcome,
    SlidingCounter,
    State,
    as_log,
)
from ratelimit_app.core.algorithms.windows import LARGE, fixed_window, sliding_counter, sliding_window
from ratelimit_app.core.rates import MAX_LIMIT, Rate

__all__ = [
    "ALGORITHMS",
    "CODES",
    "LARGE",
    "MAX_LIMITS",
    "Algorithm",
    "FixedWindow",
    "Log",
    "Meter",
    "Outcome",
    "SlidingCounter",
    "State",
    "as_log",
    "carry",
    "fixed_window",
    "gcra",
    "leaky_bucket",
    "refund",
    "sliding_counter",
    "sliding_window",
    "smooth_delay",
    "token_bucket",
]


class Algorithm(Protocol):
    """Judge one request, and charge it when it passes."""

    def __call__(
        self,
        state: State | None,
        rate: Rate,
        now_us: int,
        cost: int = 1,
        /,
        *,
        burst: int | None = None,
        lease: int = 0,
    ) -> tuple[State | None, Outcome]:
        """Give the state after it, and what is said of it."""
        ...


ALGORITHMS: dict[str, Algorithm] = {
    "sliding_window": sliding_window,
    "fixed_window": fixed_window,
    "sliding_counter": sliding_counter,
    "token_bucket": token_bucket,
    "leaky_bucket": leaky_bucket,
    "gcra": gcra,
}
CODES = {name: code for code, name in enumerate(ALGORITHMS)}
MAX_LIMITS = dict.fromkeys(ALGORITHMS, MAX_LIMIT) | {"sliding_window": 10_000}


def carry(
    state: State | None, algorithm: str, rate: Rate, now_us: int, burst: int | None = None
) -> State | None:
    """Turn a state of any algorithm into one of this algorithm: what it counts now is charged now."""
    return ALGORITHMS[algorithm](state, rate, now_us, 0, burst=burst)[0]
