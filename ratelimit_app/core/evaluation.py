"""
The flow of a decision, written once for sync and async.

`evaluate` is a generator: it yields what it needs (the user, a script call), gets the answer sent in, or the
failure thrown in. The order off, allowlist, blacklist, rules, verdict stands here and nowhere else, as do the
failure policy, shadow mode and "the longest wait wins".
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from ratelimit_app.core.calls import (
    Demand,
    StoreUnavailable,
    blocked,
    decide_call,
    read_reply,
)
from ratelimit_app.core.decision import Decision, Reason, RuleResult, Verdict, ruling
from ratelimit_app.core.identity import split

if TYPE_CHECKING:
    from ratelimit_app.core.addresses import Address
    from ratelimit_app.core.keys import Keys
    from ratelimit_app.core.rules import Rule
    from ratelimit_app.core.snapshot import Snapshot

RETRY_UNAVAILABLE = 1.0


class Need:
    """Ask the driver to make a fact known before the flow goes on: `user` or `session`."""

    __slots__ = ("fact",)

    def __init__(self, fact: str) -> None:
        self.fact = fact


class Uncountable(Exception):
    """A request that hides what an enforcing rule counts by; `rule_identity` may raise it."""


Flow = Generator[Any, Any, Decision]


class Facts(Protocol):
    """The read-only view of a request that rules may use."""

    @property
    def address(self) -> Address | None: ...

    @property
    def is_spared(self) -> bool: ...

    def user_identity(self) -> str | None: ...

    def mark_identities(self, snapshot: Snapshot, with_user: bool) -> Iterable[str]: ...

    def rule_identity(self, rule: Rule) -> str: ...

    def needs(self, rules: Iterable[Rule], snapshot: Snapshot, with_user: bool) -> Iterable[str]: ...


@dataclass(slots=True)
class Memory:
    """What earlier doors have already said of this request."""

    allowlisted: bool = False
    denied: Decision | None = None
    snapshot: Snapshot | None = None
    store_failed: bool = False
    charged: dict[bytes, int] = field(default_factory=dict)
    marks: set[str] = field(default_factory=set)
    results: dict[tuple[str, str, float], RuleResult] = field(default_factory=dict)

    @property
    def ruling(self) -> RuleResult | None:
        """The result that describes the request over all doors."""
        return ruling(list(self.results.values()))

    def remember(self, marks: list[str], decision: Decision) -> None:
        """Keep what one door decided; a mark that was found is found again by the next door."""
        if decision.verdict is not Verdict.BLOCKED:
            self.marks.update(marks)
        for charge in decision.charges:
            self.charged[charge.key] = self.charged.get(charge.key, 0) + charge.units
        for result in decision.results:
            self.results[result.rule, result.identity, result.period] = result


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """
    What one door wants decided.

    `with_user`: whether this door may learn who the user is.
    `units`: how many requests' worth. `now_us`: the Redis clock as this process knows it.
    `frozen_now`: a time for the script, which production never sends.
    """

    rules: list[Rule]
    facts: Facts
    snapshot: Snapshot
    keys: Keys
    now_us: int
    enabled: bool = True
    lists: bool = True
    with_user: bool = True
    late_user: bool = False
    units: int = 1
    look: bool = False
    on_failure: str = "open"
    frozen_now: int | None = None
    memory: Memory = field(default_factory=Memory)


DISABLED = Decision(True, Verdict.ALLOWED, Reason.DISABLED)
NO_RULE = Decision(True, Verdict.ALLOWED, Reason.NO_RULE)
ALLOWLISTED = Decision(True, Verdict.ALLOWED, Reason.ALLOWLISTED)


def evaluate(ask: Ask) -> Flow:
    """Decide one request at one door. Raises Uncountable."""
    if not ask.enabled:
        return DISABLED
    if ask.memory.allowlisted or ask.snapshot.allows_address(ask.facts.address, ask.now_us):
        return ALLOWLISTED
    for fact in ask.facts.needs(ask.rules, ask.snapshot, ask.with_user):
        yield Need(fact)
    if ask.with_user and _allows_user(ask):
        return ALLOWLISTED
    try:
        decision = _banned_network(ask) or (yield from _ask_store(ask))
    except Uncountable:
        if (yield from _allows_late_user(ask)):
            return ALLOWLISTED
        raise
    is_listed = not decision.allowed and (yield from _allows_late_user(ask))
    return ALLOWLISTED if is_listed else decision


def _allows_late_user(ask: Ask) -> Generator[Any, Any, bool]:
    if not (ask.late_user and ask.snapshot.allowed_users):
        return False
    yield Need("user")
    return _allows_user(ask)


def _allows_user(ask: Ask) -> bool:
    users = ask.snapshot.allowed_users
    return bool(users) and ask.snapshot.allows_user(ask.facts.user_identity(), ask.now_us)


def _banned_network(ask: Ask) -> Decision | None:
    address = ask.facts.address
    if not ask.lists or address is None:
        return None
    expires = ask.snapshot.networks.find(address, ask.now_us)
    return None if expires is None else blocked(f"ip:{address}", expires, ask.now_us)


def _ask_store(ask: Ask) -> Flow:
    marks = _marks(ask) if ask.lists else []
    demands = list(_demands(ask))
    if not marks and not demands:
        return NO_RULE
    if ask.memory.store_failed:
        return _unavailable(ask, marks, demands)  # Once for a request is what the budget has.
    try:
        reply = yield decide_call(ask.keys, marks, demands, ask.frozen_now)
        decision = read_reply(reply, marks, demands)
    except StoreUnavailable:
        ask.memory.store_failed = True
        return _unavailable(ask, marks, demands)
    ask.memory.remember(marks, decision)
    return decision


def _marks(ask: Ask) -> list[str]:
    found = ask.facts.mark_identities(ask.snapshot, ask.with_user)
    return [identity for identity in dict.fromkeys(found) if identity not in ask.memory.marks]


def _demands(ask: Ask) -> Iterable[Demand]:
    memory = ask.memory
    look = ask.look or memory.denied is not None
    for rule in ask.rules:
        identity = ask.facts.rule_identity(rule)
        for part, rate in enumerate(rule.rates):
            key = ask.keys.log(identity, ask.keys.rule_name(rule.slot, part))
            cost = rule.cost * ask.units - memory.charged.get(key, 0)
            if cost > 0 or not rule.cost * ask.units:
                yield Demand(rule, rate, identity, key, cost, look)


def _unavailable(ask: Ask, marks: list[str], demands: list[Demand]) -> Decision:
    """Follow each rule's failure policy; marks that cannot be read follow the setting."""
    enforced = [demand for demand in demands if not demand.rule.shadow]
    closing = [d for d in enforced if (d.rule.on_failure or ask.on_failure) == "closed"]
    closed = bool(closing or (marks and ask.on_failure == "closed" and not ask.facts.is_spared))
    return Decision(
        not closed,
        Verdict.UNAVAILABLE if closed else Verdict.ALLOWED,
        Reason.STORE_UNAVAILABLE,
        rule=closing[0].rule.name if closed and closing else None,
        retry_after=RETRY_UNAVAILABLE if closed else 0.0,
        degraded=True,
    )


def recalled(memory: Memory) -> Decision:
    """Say again what earlier doors found, for a door that has nothing to add."""
    chosen = memory.ruling
    results = tuple(memory.results.values())
    if chosen is None:
        return replace(NO_RULE, results=results)
    return Decision(
        True,
        Verdict.ALLOWED,
        Reason.WITHIN_LIMIT,
        rule=chosen.rule,
        limit=chosen.limit,
        remaining=chosen.remaining,
        reset_after=chosen.reset_after,
        results=results,
    )


def offences_of(decision: Decision) -> set[tuple[str, str]]:
    """Give (identity, label) for each part of what the denying rules counted by; a ban's denial is no offence."""
    if decision.verdict is not Verdict.LIMITED:
        return set()
    denying = [result for result in decision.results if not result.allowed and not result.shadow]
    return {(part, result.label) for result in denying for part in split(result.identity)}
