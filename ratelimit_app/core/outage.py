"""
What a process grants by itself while Redis cannot answer, under the policy `local`: the reference algorithms, bounded.

Nothing of it reaches Redis, and a process knows nothing of the others: each grants its share of a limit.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from math import floor
from typing import TYPE_CHECKING, NamedTuple

from ratelimit_app.core.algorithms import ALGORITHMS, State, as_log
from ratelimit_app.core.calls import ASLEEP, DENIED, OVER, PASSED
from ratelimit_app.core.plans import METERS
from ratelimit_app.core.rates import Rate

if TYPE_CHECKING:
    from collections.abc import Collection

    from ratelimit_app.core.algorithms import Outcome
    from ratelimit_app.core.calls import Demand
    from ratelimit_app.core.plans import Part

LEAST = 10_000  # identities, where the deny cache is smaller
MAX_STAMPS = 1_000_000  # of all logs together: some 40 MB


class Held(NamedTuple):
    """What one key counts: for an identity, by an algorithm's state."""

    identity: str
    state: State
    stamps: int


class OutageLimits:
    """
    Judge and charge requests without Redis; at most `size` keys and a million stamps, the least lately used go first.

    Thread-safe. A key that has gone counts from nothing again.
    """

    def __init__(self, size: int) -> None:
        self._size = max(size, LEAST)
        self._lock = threading.Lock()
        self._held: dict[bytes, Held] = {}
        self._stamps = 0

    def __len__(self) -> int:
        return len(self._held)

    def judge(
        self, demands: list[Demand], now_us: int, share: float, *, look: bool = False
    ) -> tuple[float, ...]:
        """
        Give what the script would reply, had it a `share` of each limit to grant: all demands pass, or none is charged.

        `now_us`: the Redis clock as the process knows it, in microseconds.
        """
        with self._lock:
            judged = [self._judge(demand, now_us, share) for demand in demands]
            denied = any(
                outcome is not None and not outcome.allowed and not demand.part.rule.shadow
                for demand, (_, outcome) in zip(demands, judged, strict=True)
            )
            if not denied and not look:
                for demand, (state, outcome) in zip(demands, judged, strict=True):
                    if outcome is not None and outcome.allowed and state is not None:
                        self._hold(demand, state)
            charges = not denied and not look
            row: tuple[float, ...] = (DENIED if denied else 0, 0, now_us, 0)
            for demand, (_, outcome) in zip(demands, judged, strict=True):
                if outcome is not None and outcome.allowed and not charges:
                    outcome = self._judge(demand._replace(cost=0), now_us, share)[1]  # noqa: PLW2901 - what is there
                row += (ASLEEP, 0, 0, 0, now_us) if outcome is None else _row(outcome)
        return row

    def _judge(self, demand: Demand, now_us: int, share: float) -> tuple[State | None, Outcome | None]:
        part = demand.part
        rule = part.rule
        if now_us < rule.starts_us or 0 < rule.ends_us <= now_us:
            return None, None
        rate, burst = _shared(part, share)
        most = rate.limit if burst is None else min(burst, burst if rate.limit else 0)
        # A request that could pass by the whole limit may take all of a share that is smaller.
        cost = min(demand.cost, most) if most and demand.cost <= part.most else demand.cost
        held = self._held.get(demand.key)
        state = None if held is None else held.state
        return ALGORITHMS[rule.algorithm](state, rate, now_us, cost, burst=burst)

    def _hold(self, demand: Demand, state: State) -> None:
        """Keep a state as the latest used, and let the others go that there is no room for."""
        self._drop(demand.key)
        stamps = len(as_log(state) or ())
        self._held[demand.key] = Held(demand.identity, state, stamps)
        self._stamps += stamps
        while len(self._held) > 1 and (len(self._held) > self._size or self._stamps > MAX_STAMPS):
            self._drop(next(iter(self._held)))

    def _drop(self, key: bytes) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            self._stamps -= held.stamps

    def clear(self) -> None:
        """Count from nothing: Redis decides again, or everything is void."""
        with self._lock:
            self._held.clear()
            self._stamps = 0

    def forget(self, identities: Collection[str]) -> None:
        """Forget what is counted for identities, also where they are a part of a joined one."""
        wanted = set(identities)
        with self._lock:
            for key, held in list(self._held.items()):
                if held.identity in wanted or not wanted.isdisjoint(held.identity.split("+")):
                    self._drop(key)

    def after_fork(self) -> None:
        """Begin with nothing, and with a lock that no other thread holds."""
        self._lock, self._held, self._stamps = threading.Lock(), {}, 0


def _row(outcome: Outcome) -> tuple[float, ...]:
    state = PASSED if outcome.allowed else OVER
    retry = -1 if outcome.retry_after_us is None else outcome.retry_after_us
    return state, outcome.remaining, retry, outcome.reset_after_us, outcome.at_us


@lru_cache(maxsize=4_096)
def _shared(part: Part, share: float) -> tuple[Rate, int | None]:
    """Give a part's rate and burst as one process grants them: rounded down, and at least one unit of a share."""
    rate = part.rate
    if part.code in METERS:
        return Rate(_share(rate.limit, share), rate.period_us), _share(part.most, share)
    return Rate(_share(min(part.most, rate.limit), share), rate.period_us), None


def _share(units: int, share: float) -> int:
    return min(max(floor(units * share), 1), units) if share > 0 else 0
