"""Processes on a clock that the test drives: the real flow and the real scripts, each with a memory of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from ratelimit_app import engine
from ratelimit_app.conf import conf
from ratelimit_app.core.asking import Ask, Door
from ratelimit_app.core.deny_cache import DenyCache
from ratelimit_app.core.evaluation import evaluate
from ratelimit_app.core.keys import Keys
from ratelimit_app.core.local_answers import Local
from ratelimit_app.core.outage import OutageLimits
from ratelimit_app.core.permits import Permits
from ratelimit_app.core.plans import Plan
from ratelimit_app.core.snapshot import Snapshot
from ratelimit_app.identities import IdentityFacts, named

if TYPE_CHECKING:
    from ratelimit_app.core.decision import Decision
    from ratelimit_app.core.evaluation import Flow
    from ratelimit_app.core.penalty_box import PenaltyBox
    from ratelimit_app.core.rules import Rule

START_US = 1_800_000_000_000_000
_numbers = count()


def new_keys() -> Keys:
    """Give a prefix that no test has used."""
    return Keys(f"driven{next(_numbers)}", conf.key_secret)


@dataclass
class Clock:
    """The one clock of a test, in microseconds since its start: Redis's and everybody's."""

    us: int = 0

    @property
    def now_us(self) -> int:
        """The time that the scripts are told."""
        return START_US + self.us


@dataclass
class Process:
    """A process that decides by the real flow, with a deny cache of `size` entries."""

    clock_: Clock
    keys: Keys
    size: int = 1_000
    penalties: PenaltyBox | None = None
    calls: int = 0
    on_failure: str = "open"
    local_share: float = 1.0
    memory: Local = field(init=False)

    def __post_init__(self) -> None:
        self.memory = Local(DenyCache(self.size), self.penalties, Permits(), OutageLimits(0))

    def local(self) -> Local:
        """What it remembers."""
        return self.memory

    def clock(self) -> float:
        """Its own clock."""
        return self.clock_.us / 1_000_000

    def now_us(self) -> int:
        """The Redis clock as it knows it."""
        return self.clock_.now_us

    frozen_now = now_us

    def ask(self, identity: str, *rules: Rule, cost: int = 1, look: bool = False) -> Decision:
        """Decide one request of an identity that the caller names."""
        door = Door(sender=None, units=cost, look=look)
        facts = IdentityFacts(named(identity))
        ask = Ask(facts, door, Plan(rules, self.keys), Snapshot(), self)
        decision: Decision = engine.run(self._counting(ask))
        return decision

    def _counting(self, ask: Ask) -> Flow:
        flow = evaluate(ask)
        answer = None
        try:
            while True:
                step = flow.send(answer)
                self.calls += 1
                answer = yield step
        except StopIteration as end:
            decision: Decision = end.value
            return decision
