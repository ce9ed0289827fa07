"""What is known of one identity, as a value, as plain data and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """
    One rate of one rule that counts the identity.

    `used`, `remaining`: units. `opens_in`: seconds until a request would pass, 0: now, None: never. `empty_in`:
    seconds until nothing is counted any more. `note`: when the rule counts by it, blank: always.
    """

    rule: str
    key: str
    rate: str
    algorithm: str
    mode: str
    limit: int
    used: int
    remaining: int
    opens_in: float | None
    empty_in: float
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """
    One row of the blacklist or the allowlist, those that have ended included.

    `level`: how often a policy has banned it, less what has fallen since. `expires_at`: None: never.
    """

    of: str
    identity: str
    source: str
    reason: str
    active: bool
    expires_at: datetime | None
    created_at: datetime
    created_by: str
    policy: str = ""
    level: int = 0
    evidence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What somebody did in the admin to an entry of this identity, which may be gone since."""

    at: datetime
    by: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Offences:
    """Denials by one rule, or by a group in code (`@group`), that promotion can still count."""

    rule: str
    count: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What this process answers without Redis: a denial, a box or a ban of `rule`, for `seconds` more; None: for good."""

    what: str
    rule: str
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """
    All that is known of an identity.

    `banned_until`: as Redis has it now, an ISO time, `never` or blank for no ban. `joined`: rules that count it
    together with other parts. `unknown`: what could not be read, and why.
    """

    identity: str
    banned_until: str = ""
    windows: tuple[Window, ...] = ()
    joined: tuple[str, ...] = ()
    listings: tuple[Listing, ...] = ()
    history: tuple[Change, ...] = ()
    offences: tuple[Offences, ...] = ()
    remembered: tuple[Remembered, ...] = ()
    unknown: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Give it as plain data, as JSON can hold it."""
        found: dict[str, Any] = _plain(asdict(self))
        return found

    def __str__(self) -> str:
        return "\n".join(map(_printable, _lines(self)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value.isoformat() if isinstance(value, datetime) else value


def _printable(line: str) -> str:
    """Write what is no printable character as its escape: a reason may hold what a client or a feed wrote."""
    if line.isprintable():
        return line
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in line)


def _lines(found: Explanation) -> Iterator[str]:
    yield found.identity
    ban = {"": "not banned", "never": "banned for good"}.get(
        found.banned_until, f"banned until {found.banned_until}"
    )
    unread = ["not known"] if any(text.startswith("Redis") for text in found.unknown) else []
    yield from _part("in Redis", unread or [ban])
    for of in ("allowlist", "blacklist"):
        yield from _part(of, [_listing(row) for row in found.listings if row.of == of])
    if found.history:
        yield from _part("in the admin", [f"{row.at}, {row.by}: {row.what}" for row in found.history])
    windows = [_window(row) for row in found.windows] or unread
    yield from _part("rules", [*windows, *(f"{rule} (asks for the whole of it)" for rule in found.joined)])
    yield from _part(
        "offences",
        [f"{row.rule}: {row.count:,}, from {row.first_at} to {row.last_at}" for row in found.offences]
        or unread,
    )
    yield from _part("this process remembers", [_remembered(row) for row in found.remembered])
    if found.unknown:
        yield from _part("not known", list(found.unknown))


def _part(title: str, lines: list[str]) -> Iterator[str]:
    yield f"{title}:"
    yield from (f"  {line}" for line in lines or ["nothing"])


def _window(row: Window) -> str:
    opens = "never lets it pass" if row.opens_in is None else f"opens in {row.opens_in:.3f} s"
    opens = "open now" if row.opens_in == 0 else opens
    mode = "" if row.mode == "enforce" else f", {row.mode}"
    note = f" ({row.note})" if row.note else ""
    return (
        f"{row.rule} ({row.key}, {row.rate}, {row.algorithm}{mode}): {row.used:,} of {row.limit:,} used, {opens}, "
        f"empty in {row.empty_in:.3f} s{note}"
    )


def _listing(row: Listing) -> str:
    end = f"until {row.expires_at}" if row.expires_at else "for good"
    state = end if row.active else f"ended {row.expires_at}"
    by = row.policy or row.created_by
    source = f"{row.source} by {by}" if by else row.source
    level = f", level {row.level}" if row.source == "promoted" else ""
    why = f": {row.reason}" if row.reason else ""
    return f"{row.identity}, {source}{level}, since {row.created_at}, {state}{why}"


def _remembered(row: Remembered) -> str:
    left = "for good" if row.seconds is None else f"for {row.seconds:.3f} s more"
    return f"{row.what} {row.rule} {left}".replace("  ", " ")
