"""What the database says: rules, lists and bans as they are to stand in Redis."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from django.core.exceptions import ValidationError
from django.db import IntegrityError, connections, router, transaction
from django.db.models import Max, Q, QuerySet
from django.utils import timezone

from ratelimit_app.conf import conf
from ratelimit_app.core.access_lists import NEVER
from ratelimit_app.core.identity import kind_of, value_of
from ratelimit_app.core.snapshot import DEFAULT_OFFENCE_TTL, dump
from ratelimit_app.models import AllowlistEntry, BlacklistEntry, PromotionPolicy, Publication, Rule, to_us

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

logger = logging.getLogger("ratelimit_app")

OFFENCE_SLACK = 60
_CHUNK = 500
_MAX_REPORTED = 1_000
_reported: set[str] = set()


class Body(NamedTuple):
    """A snapshot without its version."""

    rules: list[dict[str, Any]]
    allowlist: dict[str, int]
    kinds: list[str]
    offence_ttl: int

    def text(self, version: str) -> str:
        """Write it as Redis holds it."""
        return dump(version=version, **self._asdict())

    def is_in(self, text: bytes | None) -> bool:
        """Whether a snapshot in Redis says the same, whatever its version."""
        try:
            held = json.loads(text or b"null")
        except ValueError:
            return False
        return (
            bool(held == json.loads(self.text(held.get("version", "")))) if isinstance(held, dict) else False
        )


def write_alias() -> str:
    """Name the database that the router sends our writes to."""
    return router.db_for_write(Publication)


def aliases(row: Publication) -> list[str]:
    """Name the databases whose rows count: the router's first, and each that was ever written."""
    others = [alias for alias in row.aliases if alias in connections.settings and alias != write_alias()]
    return [write_alias(), *others]


def body(row: Publication) -> Body:
    """Read rules and lists of all databases."""
    names = aliases(row)
    return Body(
        rules=_rules(names),
        allowlist=_allowlist(names),
        kinds=_marked_kinds(names),
        offence_ttl=_offence_ttl(names),
    )


def bans(row: Publication, identities: Collection[str]) -> dict[str, int]:
    """Give the end of the longest active ban of each banned one of these: microseconds, 0 for never."""
    by_kind: dict[str, list[str]] = {}
    for identity in identities:
        by_kind.setdefault(kind_of(identity), []).append(value_of(identity))
    found: dict[str, int] = {}
    for alias in aliases(row):
        active = BlacklistEntry.objects.using(alias).active().order_by()
        for kind, values in by_kind.items():
            for start in range(0, len(values), _CHUNK):
                chunk = active.filter(kind=kind, value__in=values[start : start + _CHUNK])
                for value, expires_at in chunk.values_list("value", "expires_at"):
                    _lengthen(found, f"{kind}:{value}", to_us(expires_at))
    return found


def banned(row: Publication, size: int, *, mend: bool) -> Iterator[dict[str, int]]:
    """
    Give all banned identities, some at a time, with the end of one of their bans: microseconds, 0 for never.

    Rows that raw SQL left in another form are brought into theirs (`mend`) or given as they are; what has none is
    left out, with one error in the log.
    """
    for alias in aliases(row):
        last = 0
        active = BlacklistEntry.objects.using(alias).active().order_by("pk")
        while entries := list(active.filter(pk__gt=last).only("pk", "kind", "value", "expires_at")[:size]):
            last = entries[-1].pk
            ends: dict[str, int] = {}
            for entry in entries:
                if _is_canonical(entry) or _mend(entry, alias, mend=mend):
                    _lengthen(ends, entry.identity, to_us(entry.expires_at))
            yield ends


def _is_canonical(entry: BlacklistEntry) -> bool:
    before = (entry.kind, entry.value)
    try:
        entry.prepare()
    except ValidationError:
        return False
    is_same = (entry.kind, entry.value) == before
    entry.kind, entry.value = before
    return is_same


def _mend(entry: BlacklistEntry, alias: str, *, mend: bool) -> bool:
    """Bring a row into its form; whether it has one."""
    before = (entry.kind, entry.value)
    try:
        entry.prepare()
        if mend:
            with transaction.atomic(using=alias):
                rows: QuerySet[BlacklistEntry] = QuerySet(BlacklistEntry, using=alias)
                rows.filter(pk=entry.pk).update(kind=entry.kind, value=entry.value)
    except (ValidationError, IntegrityError) as error:
        report(f"blacklist entry {entry.pk} of {alias!r}", error)
        return False
    if not mend:
        entry.kind, entry.value = before
    return True


def _rules(names: list[str]) -> list[dict[str, Any]]:
    rules: dict[str, dict[str, Any]] = {}
    for alias in reversed(names):
        rows = _readable(Rule.objects.using(alias).exclude(mode="off").order_by("name"))
        rules |= {str(rule.name): row for rule in rows if (row := _plain(rule))}
    return [rules[name] for name in sorted(rules)]


def _plain(rule: Rule) -> dict[str, Any] | None:
    try:
        row = rule.to_dict()
        json.dumps(row)
    except (ValueError, TypeError, AttributeError) as error:
        report(f"rule {rule.pk}", error)
        return None
    return row


def _allowlist(names: list[str]) -> dict[str, int]:
    allowed: dict[str, int] = {}
    now = timezone.now()
    for alias in names:
        active = AllowlistEntry.objects.using(alias).filter(Q(expires_at=None) | Q(expires_at__gt=now))
        for entry in _readable(active.order_by()):
            _lengthen(allowed, entry.identity, to_us(entry.expires_at))
    return allowed


def _marked_kinds(names: list[str]) -> list[str]:
    kinds: set[str] = set()
    for alias in names:
        active = BlacklistEntry.objects.using(alias).active().order_by()
        for kind in _kinds(alias):
            rows = active.filter(kind=kind)
            if kind not in kinds and (rows.filter(_clients()) if kind == "ip" else rows).exists():
                kinds.add(kind)
    return sorted(kinds)


def _kinds(alias: str) -> Iterator[str]:
    """Give the kinds of all rows, from one to the next by the index: there may be millions of rows, and few kinds."""
    rows = BlacklistEntry.objects.using(alias).order_by("kind").values_list("kind", flat=True)
    kind = rows.first()
    while kind is not None:
        yield kind
        kind = rows.filter(kind__gt=kind).first()


def _clients() -> Q:
    """Tell addresses and networks that are one client from those that are searched, as `ledger.is_client` does."""
    clients = ~Q(value__contains="/") | Q(value__endswith=f"/{conf.ipv6_prefix}", value__contains=":")
    return clients | Q(value__endswith=f"/{conf.ipv4_prefix}") & ~Q(value__contains=":")


def _offence_ttl(names: list[str]) -> int:
    longest = DEFAULT_OFFENCE_TTL
    for alias in names:
        policies = PromotionPolicy.objects.using(alias).filter(enabled=True).order_by()
        period = policies.aggregate(longest=Max("find_period"))["longest"]
        longest = max(longest, (period or 0) + OFFENCE_SLACK)
    return longest


def _readable(rows: QuerySet[Any]) -> Iterator[Any]:
    """Give rows; where raw SQL has left one that cannot even be read, the others."""
    try:
        found = list(rows)
    except (ValueError, TypeError, ArithmeticError):
        found = [row for pk in rows.values_list("pk", flat=True) if (row := _row(rows, pk))]
    yield from found


def _row(rows: QuerySet[Any], pk: int) -> Any:
    try:
        return rows.get(pk=pk)
    except (ValueError, TypeError, ArithmeticError) as error:
        report(f"{rows.model.__name__} {pk}", error)
        return None


def _lengthen(ends: dict[str, int], identity: str, expires_us: int) -> None:
    known = ends.get(identity)
    if known is None or (known != NEVER and (expires_us == NEVER or expires_us > known)):
        ends[identity] = expires_us


def report(what: str, error: Exception) -> None:
    """Log a row that is left out, once in this process."""
    text = f"{what}: {error}"
    if text not in _reported and len(_reported) < _MAX_REPORTED:
        _reported.add(text)
        logger.error("ratelimit.row_disabled %s is left out: %s", what, error)
