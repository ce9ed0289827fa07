"""The snapshot: rules and allowlist as plain JSON, and the immutable value that a process decides with."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ratelimit_app.core.access_lists import NEVER, NetworkTable
from ratelimit_app.core.groups import share
from ratelimit_app.core.identity import NAMED_KINDS, Source
from ratelimit_app.core.matching import Matcher
from ratelimit_app.core.rules import Rule, rule_from_dict

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimit_app.core.addresses import Address

SCHEMA = 1
DEFAULT_OFFENCE_TTL = 3_600
MAX_MARKED = 200  # kinds of marks that are looked at: the script counts them in a byte


@dataclass(frozen=True, slots=True)
class Snapshot:
    """
    What one process knows of the database's rules and lists.

    `version`: `<epoch>:<counter>`. `marked_kinds`: kinds of identity that have a blacklist mark.
    `offence_ttl`: seconds that offences are kept. `networks`: blacklisted networks, published on their own.
    """

    version: str = ""
    rules: tuple[Rule, ...] = ()
    allowed_networks: NetworkTable = field(default_factory=NetworkTable)
    allowed_users: dict[str, int] = field(default_factory=dict)
    marked_kinds: frozenset[str] = frozenset({"ip", "user", "device"})
    offence_ttl: int = DEFAULT_OFFENCE_TTL
    networks: NetworkTable = field(default_factory=NetworkTable)
    plans: dict[Any, Any] = field(init=False, default_factory=dict, compare=False)
    matcher: Matcher = field(init=False, compare=False)
    mark_sources: tuple[Source, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        parts = (kind.partition(":") for kind in sorted(self.marked_kinds))
        sources = tuple(Source(kind, name) for kind, _, name in parts if name or kind not in NAMED_KINDS)
        object.__setattr__(self, "mark_sources", sources[:MAX_MARKED])
        object.__setattr__(self, "matcher", Matcher(self.rules))

    def allows_address(self, address: Address | None, now_us: int) -> bool:
        """Whether the allowlist has this address."""
        return address is not None and self.allowed_networks.find(address, now_us) is not None

    def allows_user(self, identity: str | None, now_us: int) -> bool:
        """Whether the allowlist has this user."""
        expires = self.allowed_users.get(identity) if identity else None
        return expires is not None and (expires == NEVER or expires > now_us)


EMPTY = Snapshot()


def dump(
    *,
    version: str,
    rules: list[dict[str, Any]],
    allowlist: dict[str, int],
    kinds: list[str],
    offence_ttl: int,
) -> str:
    """Write a snapshot; `allowlist` maps identities (`ip:203.0.113.0/24`, `user:42`) to expiries in microseconds."""
    body = {"schema": SCHEMA, "version": version, "rules": rules, "allowlist": allowlist}
    return json.dumps(
        body | {"kinds": kinds, "offence_ttl": offence_ttl}, sort_keys=True, separators=(",", ":")
    )


def load(text: str | bytes, networks: NetworkTable, report: Callable[[str, Exception], None]) -> Snapshot:
    """
    Read a snapshot. A bad entry is left out and reported as (what, error); the others count.

    Raises ValueError when the whole text is no snapshot of this schema.
    """
    body = json.loads(text)
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        msg = f"not a snapshot of schema {SCHEMA}: {str(text)[:80]!r}"
        raise ValueError(msg)
    allowed, users = NetworkTable(), {}
    for identity, expires in body["allowlist"].items():
        kind, _, value = identity.partition(":")
        try:
            if kind == "ip":
                allowed.set(value, int(expires))
            else:
                users[identity] = int(expires)
        except (ValueError, TypeError) as error:
            report(f"allowlist entry {identity!r}", error)
    return Snapshot(
        version=body["version"],
        rules=share(_rules(body["rules"], report), lambda rule, error: report(f"rule {rule.name!r}", error)),
        allowed_networks=allowed,
        allowed_users=users,
        marked_kinds=frozenset(body["kinds"]),
        offence_ttl=int(body["offence_ttl"]),
        networks=networks,
    )


def _rules(rows: list[dict[str, Any]], report: Callable[[str, Exception], None]) -> list[Rule]:
    rules = []
    for row in rows:
        try:
            rule = rule_from_dict(row)
        except ValueError as error:
            report(f"rule {row.get('name')!r}", error)
        else:
            if rule.mode != "off":
                rules.append(rule)
    return rules


def is_older(version: str, other: str) -> bool:
    """Whether a version, `<epoch>:<counter>`, comes before another of the same epoch."""
    (epoch, _, counter), (its_epoch, _, its) = version.rpartition(":"), other.rpartition(":")
    return epoch == its_epoch and counter.isdigit() and its.isdigit() and int(counter) < int(its)
