"""What a door asks: of which request, by which rules, and in what world."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ratelimit_app.core.calls import Demand, StoreUnavailable
from ratelimit_app.core.decision import Charge, Decision, RuleResult, Verdict, ruling
from ratelimit_app.core.keys import MARK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ratelimit_app.core.addresses import Address
    from ratelimit_app.core.local_answers import Local
    from ratelimit_app.core.plans import Plan
    from ratelimit_app.core.rules import Rule
    from ratelimit_app.core.snapshot import Snapshot


class Need:
    """Ask the driver to make a fact known before the flow goes on: `user` or `session`."""

    __slots__ = ("fact",)

    def __init__(self, fact: str) -> None:
        self.fact = fact


class Uncountable(Exception):
    """A request that hides what an enforcing rule counts by; `rule_identity` may raise it."""


class Facts(Protocol):
    """The read-only view of a request that rules may use."""

    memory: Memory

    @property
    def address(self) -> Address | None: ...

    @property
    def is_spared(self) -> bool: ...

    def user_identity(self) -> str | None: ...

    def question(self, plan: Plan, snapshot: Snapshot, door: Door) -> Question: ...

    def unknown(self, facts: Sequence[str]) -> Sequence[str]: ...


Question = tuple["Sequence[str]", list[bytes], list[Demand]]


class Memory:
    """What earlier doors have already said of this request."""

    allowlisted = False
    denied: Decision | None = None
    snapshot: Snapshot | None = None
    store_failed = False
    marks: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    granted: dict[bytes, int] | None = None  # units by key that this process granted without Redis

    @property
    def results(self) -> dict[tuple[str, str, float], RuleResult]:
        """The newest result of each rule, over all doors."""
        found = [result for decision in self.decisions for result in decision.results]
        return {(result.rule, result.identity, result.period): result for result in found}

    @property
    def charges(self) -> list[Charge]:
        """All charges that stand, of all doors."""
        found = [charge for decision in self.decisions for charge in decision.charges]
        return [charge for charge in found if not charge.refunded]

    @property
    def ruling(self) -> RuleResult | None:
        """The result that describes the request over all doors."""
        return ruling(list(self.results.values()))

    def charged(self) -> dict[bytes, int]:
        """Give the units that stand charged in each log."""
        units: dict[bytes, int] = dict(self.granted or {})
        for charge in self.charges:
            units[charge.key] = units.get(charge.key, 0) + charge.units
        return units

    def require_store(self) -> None:
        """Raise StoreUnavailable when Redis has failed this request before: once is what the budget has."""
        if self.store_failed:
            msg = "Redis did not answer this request before"
            raise StoreUnavailable(msg)

    def remember(self, marks: Sequence[str], decision: Decision) -> None:
        """Keep what one door decided; a mark that was found is found again by the next door."""
        if decision.verdict is not Verdict.BLOCKED:
            self.marks += tuple(marks)
        self.decisions += (decision,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Door:
    """
    What one door decides. Doors of the admin's rules are made once: plans are remembered for each of them.

    `plan`: its own rules; None: the snapshot's of `scope`, and those without a scope when `scopeless`. `beside`:
    rules in code that are decided together with these.
    `users`: which rules and marks: `all` at once, `none` of those that need the user, or `only` those.
    `late_user`: whether a denial may still ask whether the user is on the allowlist. `units`: how many requests'
    worth. `look`: charge nothing.
    """

    sender: Any
    plan: Plan | None = None
    beside: tuple[Rule, ...] = ()
    scope: str = ""
    scopeless: bool = True
    users: str = "all"
    late_user: bool = False
    units: int = 1
    look: bool = False
    with_user: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "with_user", self.users != "none")


class World(Protocol):
    """
    What a process knows beside its snapshot.

    `now_us`: the Redis clock as this process knows it. `clock`: its own clock, in seconds, which never goes back.
    `frozen_now`: a time for the script, which production never has. `on_failure`: for rules that do not say.
    `local_share`: the part of a limit that this process grants where that is `local`.
    """

    @property
    def on_failure(self) -> str: ...

    @property
    def local_share(self) -> float: ...

    def local(self) -> Local: ...

    def clock(self) -> float: ...

    def now_us(self) -> int: ...

    def frozen_now(self) -> int | None: ...


class Ask(NamedTuple):
    """One request at one door."""

    facts: Facts
    door: Door
    plan: Plan
    snapshot: Snapshot
    world: World


def question(plan: Plan, units: int, marks: Sequence[str], identity_of: Callable[[Rule], str]) -> Question:
    """Give the marks, each once, the keys of all that is looked at, and what is to be judged."""
    base = plan.keys.base
    bases = {identity: base(identity) for identity in marks}
    words = [start + MARK for start in bases.values()]
    demands: list[Demand] = []
    rule, identity, start = None, "", b""
    for part in plan.parts:
        if part.rule is not rule:
            rule = part.rule
            identity = identity_of(rule)
            start = bases.get(identity) or base(identity)
        key = start + part.name
        words.append(key)
        demands.append(Demand(part, identity, key, part.cost * units))
    return tuple(bases), words, demands
