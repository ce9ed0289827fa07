"""
The flow of a decision, written once for sync and async.

`evaluate` is a generator: it yields what it needs (the user, a script call), gets the answer sent in, or the
failure thrown in. The order off, allowlist, blacklist, rules, verdict stands here and nowhere else, as do the
failure policy, shadow mode and "the longest wait wins".
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

from ratelimit_app.core.access_lists import NEVER
from ratelimit_app.core.addresses import Address
from ratelimit_app.core.decision import Charge, Decision, Reason, RuleResult, Verdict, ruling
from ratelimit_app.core.identity import split
from ratelimit_app.core.keys import Keys
from ratelimit_app.core.rates import Rate
from ratelimit_app.core.rules import Rule
from ratelimit_app.core.snapshot import Snapshot

RETRY_UNAVAILABLE = 1.0
SHADOW, LOOK = 1, 2
_ALGORITHM_CODES = {"sliding_window": 0}
_RULE = struct.Struct("<BBdddddd")
_REFUND = struct.Struct("<ddd")
_HEAD = struct.Struct("<BBdd")
_RESULT = struct.Struct("<Bdddd")
_PASSED, _OVER, _ASLEEP = 0, 1, 2


class StoreUnavailable(Exception):
    """Redis could not answer: refused, hung, slow, or with a reply that makes no sense."""


class Need:
    """Ask the driver to make a fact known before the flow goes on: `user` or `session`."""

    __slots__ = ("fact",)

    def __init__(self, fact: str) -> None:
        self.fact = fact


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """Ask the driver to run one script."""

    script: str
    keys: list[bytes]
    args: list[bytes]


Flow = Generator[Any, Any, Decision]


class Facts(Protocol):
    """The read-only view of a request that rules may use."""

    @property
    def address(self) -> Address | None: ...

    def user_identity(self) -> str | None: ...

    def mark_identities(self, snapshot: Snapshot, with_user: bool) -> Iterable[str]: ...

    def rule_identity(self, rule: Rule) -> str: ...

    def needs(self, rules: Iterable[Rule], snapshot: Snapshot, with_user: bool) -> Iterable[str]: ...


@dataclass(slots=True)
class Memory:
    """What earlier doors have already said of this request."""

    allowlisted: bool = False
    denied: Decision | None = None
    charged: dict[bytes, int] = field(default_factory=dict)
    marks: set[str] = field(default_factory=set)
    results: dict[tuple[str, str, float], RuleResult] = field(default_factory=dict)

    @property
    def ruling(self) -> RuleResult | None:
        """The result that describes the request over all doors."""
        return ruling(list(self.results.values()))

    def remember(self, marks: list[str], decision: Decision) -> None:
        """Keep what one door decided."""
        self.marks.update(marks)
        for charge in decision.charges:
            self.charged[charge.key] = self.charged.get(charge.key, 0) + charge.units
        for result in decision.results:
            self.results[result.rule, result.identity, result.period] = result


@dataclass(frozen=True, slots=True)
class Demand:
    """One rate of one rule, to be judged and charged for one identity."""

    rule: Rule
    rate: Rate
    identity: str
    key: bytes
    cost: int
    look: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """
    What one door wants decided.

    `with_user`: whether this door may learn who the user is. `exempt`: whether marks that cannot be read spare it.
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
    exempt: bool = False
    units: int = 1
    look: bool = False
    on_failure: str = "open"
    frozen_now: int | None = None
    memory: Memory = field(default_factory=Memory)


DISABLED = Decision(True, Verdict.ALLOWED, Reason.DISABLED)
NO_RULE = Decision(True, Verdict.ALLOWED, Reason.NO_RULE)
ALLOWLISTED = Decision(True, Verdict.ALLOWED, Reason.ALLOWLISTED)


def evaluate(ask: Ask) -> Flow:
    """Decide one request at one door."""
    if not ask.enabled:
        return DISABLED
    if ask.memory.allowlisted or ask.snapshot.allows_address(ask.facts.address, ask.now_us):
        return ALLOWLISTED
    for fact in ask.facts.needs(ask.rules, ask.snapshot, ask.with_user):
        yield Need(fact)
    if ask.with_user and _allows_user(ask):
        return ALLOWLISTED
    decision = _banned_network(ask) or (yield from _ask_store(ask))
    if not decision.allowed and ask.late_user and ask.snapshot.allowed_users:
        yield Need("user")
        if _allows_user(ask):
            return ALLOWLISTED
    return decision


def _allows_user(ask: Ask) -> bool:
    users = ask.snapshot.allowed_users
    return bool(users) and ask.snapshot.allows_user(ask.facts.user_identity(), ask.now_us)


def _banned_network(ask: Ask) -> Decision | None:
    address = ask.facts.address
    if not ask.lists or address is None:
        return None
    expires = ask.snapshot.networks.find(address, ask.now_us)
    return None if expires is None else _blocked(f"ip:{address}", expires, ask.now_us)


def _ask_store(ask: Ask) -> Flow:
    marks = _marks(ask) if ask.lists else []
    demands = list(_demands(ask))
    if not marks and not demands:
        return NO_RULE
    try:
        reply = yield decide_call(marks, demands, ask)
        decision = read_reply(reply, marks, demands)
    except StoreUnavailable:
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


def decide_call(marks: list[str], demands: list[Demand], ask: Ask) -> ScriptCall:
    """Write the one script call that decides all of this."""
    now = b"" if ask.frozen_now is None else b"%d" % ask.frozen_now
    keys = [ask.keys.mark(identity) for identity in marks]
    keys += [demand.key for demand in demands]
    args = [b"%d" % len(marks), now]
    args += [_rule_argument(d.rate, d.rule, d.cost, d.look) for d in demands]
    return ScriptCall("decide", keys, args)


def refund_call(charges: list[Charge], frozen_now: int | None) -> ScriptCall:
    """Write the script call that gives charges back."""
    now = b"" if frozen_now is None else b"%d" % frozen_now
    args = [now] + [_REFUND.pack(charge.first_us, charge.units, charge.period_us) for charge in charges]
    return ScriptCall("refund", [charge.key for charge in charges], args)


@lru_cache(maxsize=4_096)
def _rule_argument(rate: Rate, rule: Rule, cost: int, look: bool) -> bytes:
    flags = (SHADOW if rule.shadow else 0) | (LOOK if look else 0)
    code, burst = _ALGORITHM_CODES[rule.algorithm], rule.burst or rate.limit
    return _RULE.pack(code, flags, rate.period_us, rate.limit, burst, cost, rule.starts_us, rule.ends_us)


def read_reply(reply: object, marks: list[str], demands: list[Demand]) -> Decision:
    """Read the script's reply. Raises StoreUnavailable when it is not one."""
    size = _HEAD.size + _RESULT.size * len(demands)
    if not isinstance(reply, bytes) or len(reply) not in (_HEAD.size, size):
        raise StoreUnavailable(f"malformed reply: expected {size} bytes, got {str(reply)[:80]!r}")
    verdict, mark, now_us, expires = _HEAD.unpack_from(reply)
    if verdict == 2 and 0 < mark <= len(marks):
        return _blocked(marks[mark - 1], int(expires), int(now_us))
    if verdict > 1 or len(reply) != size:
        raise StoreUnavailable(
            f"malformed reply: verdict {verdict}, mark {mark}, {len(reply)} of {size} bytes"
        )
    rows = _RESULT.iter_unpack(reply[_HEAD.size :])
    return _judged(verdict == 0, demands, rows)


def _judged(passed: bool, demands: list[Demand], rows: Iterable[tuple[Any, ...]]) -> Decision:
    results, charges = [], []
    for demand, (state, remaining, retry_us, reset_us, at_us) in zip(demands, rows, strict=True):
        if state == _ASLEEP:
            continue
        results.append(_result(demand, state, remaining, retry_us, reset_us, at_us))
        if passed and state == _PASSED and demand.cost > 0 and not demand.look:
            charges.append(Charge(demand.key, int(at_us), demand.cost, demand.rate.period_us))
    chosen = ruling(results)
    if passed and chosen is None:
        return Decision(True, Verdict.ALLOWED, Reason.NO_RULE, results=tuple(results), charges=charges)
    if chosen is None:
        raise StoreUnavailable("malformed reply: denied by no rule")
    return Decision(
        passed,
        Verdict.ALLOWED if passed else Verdict.LIMITED,
        Reason.WITHIN_LIMIT if passed else Reason.OVER_LIMIT,
        rule=chosen.rule,
        limit=chosen.limit,
        remaining=chosen.remaining,
        retry_after=0.0 if passed else chosen.retry_after,
        reset_after=chosen.reset_after,
        results=tuple(results),
        identity="" if passed else chosen.identity,
        charges=charges,
    )


def _result(
    demand: Demand, state: int, remaining: float, retry: float, reset: float, at: float
) -> RuleResult:
    passed = state == _PASSED
    return RuleResult(
        rule=demand.rule.name,
        identity=demand.identity,
        allowed=passed,
        verdict=Verdict.ALLOWED if passed else Verdict.LIMITED,
        reason=Reason.WITHIN_LIMIT if passed else Reason.OVER_LIMIT,
        limit=demand.rate.limit,
        period=demand.rate.period,
        remaining=int(remaining),
        retry_after=None if retry < 0 else retry / 1_000_000,
        reset_after=reset / 1_000_000,
        at=int(at),
        shadow=demand.rule.shadow,
        label=demand.rule.label,
    )


def _blocked(identity: str, expires_us: int, now_us: int) -> Decision:
    wait = None if expires_us == NEVER else max(expires_us - now_us, 0) / 1_000_000
    return Decision(
        False,
        Verdict.BLOCKED,
        Reason.BLACKLISTED,
        retry_after=wait,
        reset_after=wait or 0.0,
        identity=identity,
    )


def _unavailable(ask: Ask, marks: list[str], demands: list[Demand]) -> Decision:
    """Follow each rule's failure policy; marks that cannot be read follow the setting."""
    enforced = [demand for demand in demands if not demand.rule.shadow]
    closing = [d for d in enforced if (d.rule.on_failure or ask.on_failure) == "closed"]
    closed = bool(closing or (marks and ask.on_failure == "closed" and not ask.exempt))
    return Decision(
        not closed,
        Verdict.UNAVAILABLE if closed else Verdict.ALLOWED,
        Reason.STORE_UNAVAILABLE,
        rule=closing[0].rule.name if closed and closing else None,
        retry_after=RETRY_UNAVAILABLE if closed else 0.0,
        degraded=True,
    )


def offences_of(decision: Decision) -> set[tuple[str, str]]:
    """Give (identity, label) for each part of what the denying rules counted by; a ban's denial is no offence."""
    if decision.verdict is not Verdict.LIMITED:
        return set()
    denying = [result for result in decision.results if not result.allowed and not result.shadow]
    return {(part, result.label) for result in denying for part in split(result.identity)}
