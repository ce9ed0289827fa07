"""Rules: what is limited, by whom it is counted, and what happens when Redis cannot answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ratelimit_app.core.algorithms import ALGORITHMS, MAX_LIMITS
from ratelimit_app.core.identity import USER_KINDS, Source, parse_sources
from ratelimit_app.core.rates import Rate, parse_rates

MODES = ("enforce", "shadow", "off")
FAILURE_POLICIES = ("open", "closed")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"})

KeyFunction = Callable[[str, Any], Any]


class RuleError(ValueError):
    """A rule that cannot be made; `field` names the part that is wrong."""

    def __init__(self, field_name: str, message: str) -> None:
        super().__init__(message)
        self.field = field_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """
    One rule, from the admin or from code.

    `slot`: its name in keys and offences. `rates`: longest period first; none: no limit. `methods`: empty: every method but OPTIONS. `starts_us`,
    `ends_us`: microseconds since the epoch by the Redis clock, 0: no bound. `key_function`: for rules in code,
    called with (group, request), its value stands for the sources.
    """

    name: str
    slot: str
    rates: tuple[Rate, ...]
    sources: tuple[Source, ...] = (Source("ip"),)
    scope: str = ""
    route: str = ""
    methods: frozenset[str] = frozenset()
    algorithm: str = "sliding_window"
    burst: int | None = None
    cost: int = 1
    mode: str = "enforce"
    on_failure: str = ""
    starts_us: int = 0
    ends_us: int = 0
    held: int = 0
    lease: int = 0
    key_function: KeyFunction | None = field(default=None, compare=False)
    needs_user: bool = field(init=False, compare=False)
    label: str = field(init=False, compare=False)
    shadow: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        needs_user = any(source.kind in USER_KINDS for source in self.sources)
        object.__setattr__(self, "needs_user", needs_user)
        object.__setattr__(self, "label", self.name if self.slot == self.name else f"@{self.name}")
        object.__setattr__(self, "shadow", self.mode == "shadow")

    def covers_method(self, method: str) -> bool:
        """Whether a request of this method is its business."""
        if not self.methods:
            return method != "OPTIONS"
        return method in self.methods


def parse_methods(text: str) -> frozenset[str]:
    """Read a comma list of HTTP methods; GET includes HEAD. Raises RuleError."""
    names = frozenset(name.strip().upper() for name in text.split(",") if name.strip())
    unknown = sorted(names - METHODS)
    if unknown:
        msg = "methods"
        raise RuleError(
            msg, f"{unknown[0]!r} is no HTTP method: expected some of {', '.join(sorted(METHODS))}."
        )
    return names | {"HEAD"} if "GET" in names else names


def check_limits(rates: tuple[Rate, ...], algorithm: str, cost: int) -> None:
    """Refuse what an algorithm cannot hold. Raises RuleError."""
    if algorithm not in ALGORITHMS:
        msg = "algorithm"
        raise RuleError(
            msg, f"{algorithm!r} is no algorithm: expected one of {', '.join(sorted(ALGORITHMS))}."
        )
    most = MAX_LIMITS[algorithm]
    for rate in rates:
        if rate.limit > most:
            msg = "rate"
            raise RuleError(msg, f"{rate}: {algorithm} takes limits up to {most:,}. Write a lower limit.")
        if cost > rate.limit > 0:
            msg = "cost"
            raise RuleError(msg, f"{cost} is more than the limit of {rate}: no request could ever pass.")


def rule_from_dict(data: dict[str, Any]) -> Rule:
    """Make a rule from a snapshot's plain data. Raises RuleError, RateError or IdentityError."""
    try:
        cost = int(data.get("cost", 1))
        rates = parse_rates(data["rate"])
        _expect(data.get("mode", "enforce"), MODES, "mode")
        _expect(data.get("on_failure", "") or "open", FAILURE_POLICIES, "on_failure")
        check_limits(rates, data.get("algorithm", "sliding_window"), cost)
        if cost < 1:
            msg = "cost"
            raise RuleError(msg, f"{cost} is not a cost: expected a whole number from 1.")
        return Rule(
            name=str(data["name"]),
            slot=str(data["name"]),
            rates=rates,
            sources=parse_sources(data["key"]),
            scope=data.get("scope", ""),
            route=data.get("route", ""),
            methods=parse_methods(data.get("methods", "")),
            algorithm=data.get("algorithm", "sliding_window"),
            burst=data.get("burst"),
            cost=cost,
            mode=data.get("mode", "enforce"),
            on_failure=data.get("on_failure", ""),
            starts_us=int(data.get("starts_us") or 0),
            ends_us=int(data.get("ends_us") or 0),
        )
    except (KeyError, TypeError, AttributeError) as error:
        msg = "rule"
        raise RuleError(msg, f"{data!r} is not a rule: {error!r}.") from error


def _expect(value: object, choices: tuple[str, ...], name: str) -> None:
    if value not in choices:
        raise RuleError(name, f"{value!r} is no {name}: expected one of {', '.join(choices)}.")
