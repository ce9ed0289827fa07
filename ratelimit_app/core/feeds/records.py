"""What one row of a list says, whatever the list's form: an identity, why and how long, or why it is passed over."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ratelimit_app.core.identity import LISTABLE_KINDS, NAMED_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VALUE_NAMES = ("value", "ip", "address", "ip_address", "network", "cidr", "range", "subnet", "identity")
REASON_NAMES = ("reason", "comment", "description")
END_NAMES = ("expires_at", "expires", "expiry", "until")
# What only a decision of CrowdSec's has.
DECISION_NAMES = frozenset({"scope", "scenario", "duration", "expiration", "action", "simulated", "origin"})

NO_VALUE = "names nobody"
NO_END = "its end is no date and time"
NO_DURATION = "its duration is none"
NO_TEXT = "is no text"
OTHER_SCOPE = "its scope is neither Ip nor Range"
NOT_A_BAN = "is no ban"
SIMULATED = "is simulated"

_GO_DURATION = re.compile(r"([+-]?)((?:\d+(?:\.\d*)?(?:h|ms|m|s|us|\u00b5s|\u03bcs|ns))+)")
_GO_PART = re.compile(r"(\d+(?:\.\d*)?)(h|ms|m|s|us|\u00b5s|\u03bcs|ns)")
_GO_UNITS = {
    "h": 3_600.0,
    "m": 60.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "\u00b5s": 1e-6,
    "\u03bcs": 1e-6,
    "ns": 1e-9,
}
# Not the first group of an IPv6 address.
_SCOPED = re.compile(r"(?![A-Fa-f]+:)([A-Za-z]+):(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Terms:
    """What a row means that does not say it: the kind of its value; `now`, from which durations count."""

    kind: str
    now: datetime


@dataclass(frozen=True, slots=True)
class Listed:
    """A row: the number of its line, whom it names as it was written, why (blank: it does not say), until when."""

    line: int
    kind: str
    value: str
    reason: str = ""
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A row that lists nobody: its line, what it says, and why; `is_fault`: somebody should have a look."""

    line: int
    text: str
    why: str
    is_fault: bool = True


def identity_in(text: str, terms: Terms) -> tuple[str, str]:
    """Give kind and value of `user:42` or `ip:203.0.113.9`, or of a bare value, which is of the terms' kind."""
    kind, colon, value = text.partition(":")
    if colon and kind in LISTABLE_KINDS and terms.kind == "ip":
        name, _, rest = value.partition(":")
        return (f"{kind}:{name}", rest) if kind in NAMED_KINDS else (kind, value)
    return terms.kind, text


def read_record(record: Mapping[str, Any], line: int, terms: Terms) -> Listed | PassedOver:
    """Read a row with names, such as a CSV row or a JSON object: ours, or a decision of CrowdSec's."""
    if not DECISION_NAMES.isdisjoint(record):
        return _read_decision(record, line, terms)
    value = _first(record, VALUE_NAMES)
    if not value:
        return PassedOver(line, _shown(record), NO_VALUE)
    kind = _first(record, ("kind",))
    kind, value = (kind, value) if kind else identity_in(value, terms)
    end = _first(record, END_NAMES)
    try:
        expires_at = read_date(end) if end else None
    except ValueError:
        return PassedOver(line, end, NO_END)  # the value may be a secret
    return Listed(line, kind, value, _first(record, REASON_NAMES), expires_at)


def _read_decision(record: Mapping[str, Any], line: int, terms: Terms) -> Listed | PassedOver:
    value, scope = _first(record, VALUE_NAMES), _first(record, ("scope",))
    scoped = _SCOPED.fullmatch(value)
    if not scope and scoped:
        scope, value = scoped.groups()
    why = _unlisted(record, value, scope)
    if why is not None:
        return PassedOver(line, value or _shown(record), *why)
    try:
        expires_at = _decided_until(record, terms.now)
    except (ValueError, OverflowError):
        end = _first(record, ("until", "duration", "expiration"))
        return PassedOver(line, f"{value} {end}", NO_DURATION)
    return Listed(line, "ip", value, _first(record, ("scenario", "reason")), expires_at)


def _unlisted(record: Mapping[str, Any], value: str, scope: str) -> tuple[str, bool] | None:
    """Say why a decision bans nobody whom we can ban, and whether that is a fault."""
    action = _first(record, ("type", "action")).lower()
    simulated = _first(record, ("simulated",)).lower()
    if action.startswith("(simul)") or simulated in {"true", "1"}:
        return SIMULATED, False
    if action not in {"", "ban"}:
        return NOT_A_BAN, False
    if not value:
        return NO_VALUE, True
    return None if scope.lower() in {"", "ip", "range"} else (OTHER_SCOPE, True)


def _decided_until(record: Mapping[str, Any], now: datetime) -> datetime | None:
    if until := _first(record, ("until", "expires_at")):
        return read_date(until)
    duration = _first(record, ("duration", "expiration"))
    return now + timedelta(seconds=read_go_duration(duration)) if duration else None


def read_go_duration(text: str) -> float:
    """Give the seconds of a duration as Go writes it, such as `3h59m49.2s`. Raises ValueError."""
    found = _GO_DURATION.fullmatch(text.strip())
    if found is None:
        msg = f"{text!r:.80} is not a duration: expected such as 4h or 3h59m49.2s."
        raise ValueError(msg)
    seconds = sum(float(number) * _GO_UNITS[unit] for number, unit in _GO_PART.findall(found[2]))
    return -seconds if found[1] == "-" else seconds


def read_date(text: str) -> datetime:
    """Read an ISO 8601 date, or date and time; without a zone it is UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text.strip())
    return (moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment).astimezone(UTC)


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Give the first of these fields that says something, as text."""
    for name in names:
        value = record.get(name)
        if isinstance(value, str):
            text = value.strip()
        else:
            text = str(value) if isinstance(value, int | float) else ""
        if text:
            return text
    return ""


def _shown(record: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in record.items() if value)[:200]


def each_of(value: Any, line: int, terms: Terms, show: Callable[[Any], str]) -> list[Listed | PassedOver]:
    """Read a JSON value: a text, a record, or an alert of CrowdSec's, which has several decisions."""
    if isinstance(value, str):
        kind, text = identity_in(value.strip(), terms)
        return [Listed(line, kind, text) if text else PassedOver(line, "", NO_VALUE)]
    if isinstance(value, dict):
        decisions = value.get("decisions")
        if isinstance(decisions, list):
            return [row for one in decisions for row in each_of(one, line, terms, show)]
        if "decisions" in value:
            return []  # an alert whose decisions have all ended
        return [read_record(value, line, terms)]
    return [PassedOver(line, show(value), NO_TEXT)]
