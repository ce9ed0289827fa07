"""The result of evaluating a request: one frozen value that every door reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    """What happens to the request."""

    ALLOWED = "allowed"
    LIMITED = "limited"
    BLOCKED = "blocked"
    UNAVAILABLE = "unavailable"


class Reason(StrEnum):
    """Why it happens."""

    WITHIN_LIMIT = "within_limit"
    OVER_LIMIT = "over_limit"
    ALLOWLISTED = "allowlisted"
    BLACKLISTED = "blacklisted"
    NO_RULE = "no_rule"
    DISABLED = "disabled"
    STORE_UNAVAILABLE = "store_unavailable"


@dataclass(frozen=True, slots=True)
class Charge:
    """What a rule charged: enough to give it back. Stamps and period are microseconds of the server's clock."""

    key: bytes
    first_us: int
    units: int
    period_us: int


@dataclass(frozen=True, slots=True)
class RuleResult:
    """
    What one rule said of one request.

    `at`: the server's time in microseconds: of the admitted entry itself, or of the judgement.
    `retry_after`, `reset_after`, `period`: seconds. `shadow`: the rule only watches. `label`: the rule's name
    among offences.
    """

    rule: str
    identity: str
    allowed: bool
    verdict: Verdict
    reason: Reason
    limit: int
    period: float
    remaining: int
    retry_after: float | None
    reset_after: float
    at: int
    shadow: bool = False
    degraded: bool = False
    label: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """
    The answer to "may this request pass?".

    Attributes:
        allowed: True when the request may pass.
        verdict: `allowed`, `limited` (429), `blocked` (403) or `unavailable` (503).
        reason: why.
        rule: name of the rule that decided: the one with the longest wait, else the one nearest its limit.
        limit, remaining: of that rule; None when no rule decided.
        retry_after: seconds until the request could pass; 0.0 when it passes, None when it never can.
        reset_after: seconds until that rule's window is empty.
        degraded: True when Redis did not decide.
        results: one for each rule.
        identity: who was denied (`ip:203.0.113.9`), blank when allowed.
        charges: what `refund` gives back.
    """

    allowed: bool
    verdict: Verdict
    reason: Reason
    rule: str | None = None
    limit: int | None = None
    remaining: int | None = None
    retry_after: float | None = 0.0
    reset_after: float = 0.0
    degraded: bool = False
    results: tuple[RuleResult, ...] = ()
    identity: str = ""
    charges: list[Charge] = field(default_factory=list, compare=False, repr=False)

    @property
    def ruling(self) -> RuleResult | None:
        """The result of the rule that decided: the longest wait, else the smallest part of its limit left."""
        return ruling(self.results)


def ruling(results: tuple[RuleResult, ...] | list[RuleResult]) -> RuleResult | None:
    """Choose the result that describes a request: never before any, then the longest wait, then the least left."""
    enforced = [result for result in results if not result.shadow]
    return max(enforced, key=_weight, default=None)


def _weight(result: RuleResult) -> tuple[bool, float, float]:
    wait = float("inf") if result.retry_after is None else result.retry_after
    return (not result.allowed, wait, -result.remaining / (result.limit or 1))
