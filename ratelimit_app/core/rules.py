"""Rules: what is limited, by whom it is counted, and what happens when Redis cannot answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ratelimit_app.core.algorithms import ALGORITHMS, MAX_LIMITS
from ratelimit_app.core.identity import USER_KINDS, Source, parse_sources
from ratelimit_app.core.rates import Rate, parse_rates

MODES = ("enforce", "shadow", "off")
FAILURE_POLICIES = ("open", "closed", "local")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"})

MAX_LEASE = 1_000
# Of a limit that is leased by parts, the most that one part may be.
LEASES_IN_LIMIT = 10
METERS = frozenset({"token_bucket", "leaky_bucket", "gcra"})

KeyFunction = Callable[[str, Any], Any]
_GROUP = re.compile(r"[A-Za-z0-9_\-]{1,100}")


class RuleError(ValueError):
    """A rule that cannot be made; `field` names the part that is wrong."""

    def __init__(self, field_name: str, message: str) -> None:
        super().__init__(message)
        self.field = field_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """
    One rule, from the admin or from code.

    `slot`: its name in keys; rules of one group have one. `rates`: longest period first; none: no limit.
    `methods`: empty: every method but OPTIONS. `starts_us`, `ends_us`: microseconds since the epoch by the Redis
    clock, 0: no bound. `key_function`: for rules in code, called with (group, request), its value stands for the
    sources. `group`: whose limit it shares. `reserve`: units of that limit that it keeps for itself; `held`: units
    that the others of its group keep from it. `lease`: units that a process takes at a time, 0: as they come.
    `shadow`: whether it only watches. `shared`: whether it is one of a group that share a log. `needs_user`: whether its
    identity cannot be known before the user is. `label`: its name among offences: rules in code count under their
    group.
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
    group: str = ""
    reserve: int = 0
    held: int = 0
    lease: int = 0
    key_function: KeyFunction | None = field(default=None, compare=False)
    shadow: bool = field(init=False, repr=False, compare=False)
    shared: bool = field(init=False, repr=False, compare=False)
    needs_user: bool = field(init=False, repr=False, compare=False)
    label: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        known = {
            "shadow": self.mode == "shadow",
            "shared": bool(self.group) and self.mode == "enforce",
            "needs_user": any(source.kind in USER_KINDS for source in self.sources),
            "label": f"@{self.name}" if self.slot.startswith("@") else self.name,
        }
        # Worked out once: every request asks for them, and a frozen value has no other way to keep them.
        for name, value in known.items():
            object.__setattr__(self, name, value)

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


def room(rule: Rule, rate: Rate) -> int:
    """Give the units that a rate can hold at once."""
    return rule.burst or rate.limit if rule.algorithm in METERS else rate.limit


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
        rule = Rule(
            name=str(data["name"]),
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
            **_sharing(data),
        )
    except (KeyError, TypeError, AttributeError) as error:
        msg = "rule"
        raise RuleError(msg, f"{data!r} is not a rule: {error!r}.") from error
    _check_reserve(rule)
    _check_lease(rule)
    # What only watches takes nothing ahead.
    return replace(rule, lease=0) if rule.shadow and rule.lease else rule


def _sharing(data: dict[str, Any]) -> dict[str, Any]:
    """Give what a rule has of a shared limit; one that is not enforced counts on its own."""
    group, enforced = data.get("group") or "", data.get("mode", "enforce") == "enforce"
    if group and not (isinstance(group, str) and _GROUP.fullmatch(group)):
        msg = "group"
        raise RuleError(
            msg, f"{group!r} is not a group: expected 1 to 100 letters, digits, '-' or '_', or nothing."
        )
    lease = _units(data, "lease")
    return {
        # No name of a rule and no slot of code begins with this.
        "slot": f"%{group}" if group and enforced else str(data["name"]),
        "group": group,
        "reserve": _units(data, "reserve"),
        "lease": lease if lease > 1 else 0,
    }


def _units(data: dict[str, Any], name: str) -> int:
    value = data.get(name)
    try:
        units = 0 if value is None else int(str(value))
    except ValueError:
        units = -1
    if units < 0:
        raise RuleError(name, f"{value!r} is not a {name}: expected a whole number of units, or nothing.")
    return units


def _check_reserve(rule: Rule) -> None:
    if rule.reserve and not rule.group:
        msg = "reserve"
        raise RuleError(
            msg,
            f"{rule.reserve} units are reserved of a limit that nobody shares: name its group too, or leave the "
            "reserve blank.",
        )
    for rate in rule.rates:
        if rate.limit and rule.reserve >= room(rule, rate):
            msg = "reserve"
            raise RuleError(
                msg,
                f"{rule.reserve} is not less than the {room(rule, rate)} that {rate} holds: a reserve is a part of "
                "the limit. Write a lower reserve.",
            )


def _check_lease(rule: Rule) -> None:
    if not rule.lease:
        return
    if rule.cost > rule.lease:
        msg = "lease"
        raise RuleError(
            msg,
            f"{rule.lease} is less than the cost of {rule.cost}: a lease holds whole requests. Write more.",
        )
    for rate in rule.rates:
        most = min(rate.limit // LEASES_IN_LIMIT, MAX_LEASE)
        if rate.limit and rule.lease > most:
            advice = f"Write at most {most}" if most > 1 else "This limit is too low for one"
            msg = "lease"
            raise RuleError(
                msg,
                f"{rule.lease} is too much to take at a time of {rate}: a lease is at most a tenth of the limit and "
                f"{MAX_LEASE:,}. {advice}, or leave it blank.",
            )


def _expect(value: object, choices: tuple[str, ...], name: str) -> None:
    if value not in choices:
        raise RuleError(name, f"{value!r} is no {name}: expected one of {', '.join(choices)}.")
