"""
Permits: units of a hot key that a process takes ahead, several at a time, and hands out by itself.

The script charges them as of the instant their lease ends, so whenever they are used before it, no window ever holds
more than the limit; after it they are void, and go back as far as they still count.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ratelimit_app.core.algorithms import CODES
from ratelimit_app.core.calls import charge_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from ratelimit_app.core.calls import Demand
    from ratelimit_app.core.decision import Charge

MAX_LEASES = 10_000
LOG = CODES["sliding_window"]


@dataclass(slots=True)
class Lease:
    """
    What is left of the permits of one key.

    `until`, `reset`: seconds on the process's own clock: void then, and all that is counted has left then.
    `next_us`: the stamp of the next permit; in a log each has its own, elsewhere all have one (`stride` 1 or 0).
    `remaining`: of the limit, when they were taken.
    """

    demand: Demand
    until: float
    left: int
    next_us: int
    remaining: int
    reset: float

    @property
    def stride(self) -> int:
        """How far the stamps of two permits are apart, in microseconds."""
        return 1 if self.demand.part.code == LOG else 0

    def is_for(self, demand: Demand) -> bool:
        """Whether these permits were taken for what is asked now."""
        return self.demand.part.definition == demand.part.definition


class Permit(NamedTuple):
    """Units handed out: the stamp of the first one, and what can be said of their limit."""

    first_us: int
    remaining: int
    reset: float


class Permits:
    """The leases of one process. Everything takes a lock for an instant."""

    def __init__(self) -> None:
        self.generation = 0
        self._leases: dict[bytes, Lease] = {}
        self._asking: set[bytes] = set()
        self._unused: list[Charge] = []
        self.after_fork()

    def after_fork(self) -> None:
        """Hold none, with a lock of our own: the parent's permits are the parent's."""
        self._lock = threading.Lock()
        self._leases, self._asking, self._unused = {}, set(), []

    def take(self, demand: Demand, now: float) -> Permit | None:
        """Hand out what a demand costs, None where there is not enough for it at `now`."""
        with self._lock:
            lease = self._leases.get(demand.key)
            if lease is None or lease.until <= now or lease.left < demand.cost or not lease.is_for(demand):
                return None
            first, lease.next_us = lease.next_us, lease.next_us + demand.cost * lease.stride
            lease.left -= demand.cost
            return Permit(first, lease.remaining + lease.left, lease.reset)

    def give_back(self, demand: Demand, permit: Permit) -> None:
        """Take units back that were handed out for nothing: another rule has denied the request."""
        with self._lock:
            lease = self._leases.get(demand.key)
            if lease is not None and lease.next_us == permit.first_us + demand.cost * lease.stride:
                lease.next_us, lease.left = permit.first_us, lease.left + demand.cost
            else:
                self._unused.append(charge_of(demand, permit.first_us, demand.cost))

    def claim(self, key: bytes) -> bool:
        """Be the one who asks for permits of a key now; the others ask for what they need alone."""
        with self._lock:
            if key in self._asking or len(self._leases) >= MAX_LEASES:
                return False
            self._asking.add(key)
            return True

    def release(self, key: bytes) -> None:
        """Let another one ask for permits of a key."""
        with self._lock:
            self._asking.discard(key)

    def put(self, lease: Lease, generation: int) -> None:
        """Keep permits that were asked for in this `generation`; what was left of earlier ones goes back."""
        with self._lock:
            if generation != self.generation:
                return
            self._void(self._leases.pop(lease.demand.key, None))
            if lease.left:
                self._leases[lease.demand.key] = lease

    def unused(self, now: float) -> list[Charge]:
        """Give what must be given back: all that became void and was not used."""
        with self._lock:
            ended = [key for key, lease in self._leases.items() if lease.until <= now]
            for key in ended:
                self._void(self._leases.pop(key))
            unused, self._unused = self._unused, []
        return unused

    def _void(self, lease: Lease | None) -> None:
        if lease is not None and lease.left:
            self._unused.append(charge_of(lease.demand, lease.next_us, lease.left))

    def forget(self, identities: Collection[str]) -> None:
        """Hand out no more of what was taken for these identities: their counts have been reset."""
        with self._lock:
            self.generation += 1
            for key, lease in list(self._leases.items()):
                if lease.demand.identity in identities:
                    del self._leases[key]

    def clear(self) -> None:
        """Hand out no more of anything."""
        with self._lock:
            self.generation += 1
            self._leases.clear()
            self._unused.clear()
