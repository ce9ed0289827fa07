"""A request that meets leased rules: permits of the process stand for a call, and a call brings more permits."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ratelimit_app.core.calls import PASSED, ROW, ROWS, judged, read_reply, unpack
from ratelimit_app.core.decision import Verdict
from ratelimit_app.core.local_answers import LIVES
from ratelimit_app.core.permits import Lease

if TYPE_CHECKING:
    from ratelimit_app.core.calls import Demand
    from ratelimit_app.core.decision import Decision
    from ratelimit_app.core.local_answers import Asked
    from ratelimit_app.core.permits import Permit, Permits

_SECOND = 1_000_000


class Drawn(NamedTuple):
    """The demands that permits answer, and the rest of the question, for Redis."""

    taken: list[tuple[Demand, Permit]]
    rest: Asked
    generation: int

    def judge(self, reply: object, now_us: int) -> Decision:
        """Decide by the reply and the permits together. Raises StoreUnavailable for a reply that is none."""
        asked = self.rest
        row: tuple[float, ...] = (0, 0, now_us, 0)
        if asked.words:
            decision = read_reply(reply, asked.marks, asked.demands, look=False)
            if not self.taken or decision.verdict is Verdict.BLOCKED:
                return decision
            row = unpack(reply, len(asked.demands))  # type: ignore[arg-type]
        for _, permit in self.taken:
            left = max(permit.reset - asked.at, 0.0) * _SECOND
            row += (PASSED, permit.remaining, 0, left, permit.first_us)
        return judged(row, [*asked.demands, *(demand for demand, _ in self.taken)], look=False)

    def settle(self, permits: Permits, reply: bytes | None, decision: Decision | None) -> None:
        """Keep the permits that came, give back those that nobody used, and let others ask."""
        if decision is None or not decision.allowed:
            for demand, permit in self.taken:
                permits.give_back(demand, permit)
        elif reply is not None:
            self._keep(permits, unpack(reply, len(self.rest.demands)))
        for demand in self.rest.demands:
            if demand.leased:
                permits.release(demand.key)

    def _keep(self, permits: Permits, row: tuple[float, ...]) -> None:
        asked, start = self.rest, ROWS
        for demand in asked.demands:
            state, remaining, granted, reset, at = row[start : start + ROW]
            start += ROW
            if not demand.leased or state != PASSED:
                continue
            life_us = min(at - row[2], demand.part.rate.period_us // LIVES)
            lease = Lease(
                demand,
                until=asked.at + life_us / _SECOND,
                left=int(granted) - demand.cost,
                next_us=int(at),
                remaining=int(remaining),
                reset=asked.at + reset / _SECOND,
            )
            lease.next_us += demand.cost * lease.stride
            permits.put(lease, self.generation)


def draw(permits: Permits, asked: Asked) -> Drawn:
    """Take permits for the demands that have some, and prepare to ask for the rest and for more."""
    taken, rest = [], []
    counts = Counter(demand.key for demand in asked.demands)
    for demand in asked.demands:
        # Rules of a group that take turns share a key; which of them is awake only Redis knows.
        leases = bool(demand.part.rule.lease) and counts[demand.key] == 1
        permit = permits.take(demand, asked.at) if leases else None
        if permit is not None:
            taken.append((demand, permit))
        else:
            rest.append(demand._replace(leased=leases and permits.claim(demand.key)))
    words = [*asked.words[: len(asked.marks)], *(demand.key for demand in rest)]
    return Drawn(taken, asked._replace(words=words, demands=rest), permits.generation)
