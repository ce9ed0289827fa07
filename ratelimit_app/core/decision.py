"""The result of evaluating a request: one frozen value that every door reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
_new = object.__new__


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


@dataclass(slots=True)
class Charge:
    """
    What a rule charged: enough to give it back, once.

    `code`: the algorithm's, as the scripts know it. `first_us`, `period_us`: microseconds of the server's clock.
    """

    code: int
    key: bytes
    first_us: int
    units: int
    period_us: int
    limit: int
    refunded: bool = False


@dataclass(frozen=True)
class RuleResult:
    """
    What one rule said of one request.

    `at`: the server's time in microseconds: of the admitted entry itself, or of the judgement.
    `retry_after`, `reset_after`, `period`: seconds. `shadow`: the rule only watches. `label`: the rule's name
    among offences. `delay`: seconds after which a `leaky_bucket` would let the request through smoothly.
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
    delay: float = 0.0


@dataclass(frozen=True)
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
        delay: seconds after which a `leaky_bucket` would let the request through smoothly: the longest of them.
        identity: who was denied (`ip:203.0.113.9`), blank when allowed.
        charges: what `refund` gives back.

    Made by `quick` with a `tell`, results and charges are written out when somebody asks for them.
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
    def delay(self) -> float:
        """Seconds after which the request would be let through smoothly."""
        return max((result.delay for result in self.results), default=0.0)

    @property
    def ruling(self) -> RuleResult | None:
        """The result of the rule that decided: the longest wait, else the smallest part of its limit left."""
        return ruling(self.results)


class Telling:
    """Results and charges that are written out once, however many threads and copies of a decision ask for them."""

    __slots__ = ("_asked", "_told", "_write")

    def __init__(self, write: Callable[..., Any], *asked: Any) -> None:
        self._write, self._asked = write, asked
        self._told: list[Any] = []

    def __call__(self) -> Any:
        """Give the results and the charges."""
        if not self._told:
            # Of several that write at once the first one counts: appending is one step.
            self._told.append(self._write(*self._asked))
        return self._told[0]


class _Told:
    """A field that is written out by `tell` when it is first asked for: most callers ask only whether they may pass."""

    def __init__(self, place: int, default: Any) -> None:
        self.place, self.default = place, default

    def __get__(self, decision: Decision | None, owner: type) -> Any:
        tell = None if decision is None else decision.__dict__.get("tell")
        if tell is None:
            return self.default
        told = tell()
        decision.__dict__.update(results=told[0], charges=told[1])
        return told[self.place]


# Not data descriptors: a decision that has the field in its own __dict__ never comes here.
Decision.results = _Told(0, ())  # type: ignore[assignment]
Decision.charges = _Told(1, ())  # type: ignore[assignment]


def quick(kind: type[T], fields: dict[str, Any]) -> T:
    """
    Make a frozen value of its fields; those left out have the class's defaults.

    A frozen dataclass sets each field by a call of its own: made so, it takes a quarter of the time.
    """
    made = _new(kind)
    made.__dict__.update(fields)
    return made


def ruling(results: Sequence[RuleResult]) -> RuleResult | None:
    """Choose the result that describes a request: never before any, then the longest wait, then the least left."""
    if len(results) == 1:
        return None if results[0].shadow else results[0]
    chosen, heaviest = None, _LIGHTEST
    for result in results:
        if not result.shadow and (weight := _weight(result)) > heaviest:
            chosen, heaviest = result, weight
    return chosen


_LIGHTEST = (False, -1.0, float("-inf"))


def _weight(result: RuleResult) -> tuple[bool, float, float]:
    wait = float("inf") if result.retry_after is None else result.retry_after
    return (not result.allowed, wait, -result.remaining / (result.limit or 1))
