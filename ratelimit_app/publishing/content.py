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
from ratelimit_app.core.entries import canonical
from ratelimit_app.core.identity import IdentityError, kind_of, value_of
from ratelimit_app.core.snapshot import DEFAULT_OFFENCE_TTL, dump
from ratelimit_app.models import AllowlistEntry, BlacklistEntry, PromotionPolicy, Publication, Rule, to_us
from ratelimit_app.publishing import ledger

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from datetime import datetime

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


def body(row: Publication, kinds: list[str] | None = None) -> Body:
    """Read rules and lists of all databases; `kinds` of marks where they are known."""
    names = aliases(row)
    return Body(
        rules=_rules(names),
        allowlist=_allowlist(names),
        kinds=_marked_kinds(names) if kinds is None else kinds,
        offence_ttl=_offence_ttl(names),
    )


def are_rules_in(row: Publication, text: bytes | None) -> bool:
    """Whether a snapshot in Redis has the rules as the databases have them."""
    try:
        held = json.loads(text or b"null")["rules"]
    except (ValueError, KeyError, TypeError):
        return False
    return bool(held == json.loads(json.dumps(_rules(aliases(row)))))


def kinds_after(row: Publication, text: bytes | None, identities: Collection[str]) -> list[str] | None:
    """
    Give the kinds of marks after a change of these identities' bans, by a snapshot in Redis; None: it has none.

    A look at all rows can take seconds where a million of them are about to be committed, and an edit of a rule, or
    a ban, says all there is to know. Where bans are lifted, others of their kind are looked for.
    """
    try:
        found = json.loads(text or b"null")["kinds"]
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(found, list) or not all(isinstance(kind, str) for kind in found):
        return None
    kinds = set(found)
    by_kind: dict[str, list[str]] = {}
    for identity in identities:
        by_kind.setdefault(kind_of(identity), []).append(identity)
    for kind, some in by_kind.items():
        clients = [identity for identity in some if ledger.is_client(identity)][:_CHUNK]
        if bans(row, clients) or any(_has_marks(alias, kind) for alias in aliases(row)):
            kinds.add(kind)
        else:
            kinds.discard(kind)
    return sorted(kinds)


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
    Give all banned identities, some at a time, with the end of their longest ban: microseconds, 0 for never.

    On one database each is given once. Rows that raw SQL left in another form are brought into theirs (`mend`) or
    given as they are; what has none is left out, with one error in the log.
    """
    for alias in aliases(row):
        active = BlacklistEntry.objects.using(alias).active()
        for kind in _kinds(alias):
            for rows in _by_value(active.filter(kind=kind), size):
                ends: dict[str, int] = {}
                for pk, value, expires_at in rows:
                    identity = _identity(kind, value) or _mended(pk, alias, mend=mend)
                    if identity is not None:
                        _lengthen(ends, identity, to_us(expires_at))
                yield ends


def _by_value(rows: QuerySet[Any], size: int) -> Iterator[list[tuple[int, str, datetime | None]]]:
    """Give rows of one kind in the order of their index, some at a time, all those of one value together."""
    last = ""
    ordered = rows.order_by("value").values_list("pk", "value", "expires_at")
    while found := list(ordered.filter(value__gt=last)[:size]):
        last = found[-1][1]
        if len(found) == size:
            # There may be more of the last value: they come with the next ones, or now where there is no other.
            whole = [one for one in found if one[1] != last]
            found = whole or list(ordered.filter(value=last))
            last = found[-1][1]
        yield found


def _identity(kind: str, value: str) -> str | None:
    """Give the identity of a row that has its one form; None: it has not."""
    try:
        is_canonical = (kind, value) == canonical(kind, value, conf.key_secret)
    except IdentityError:
        return None
    return f"{kind}:{value}" if is_canonical else None


def _mended(pk: int, alias: str, *, mend: bool) -> str | None:
    """Bring a row into its form; gives its identity, as it is where it is not to be mended, None: it has no form."""
    entry = BlacklistEntry.objects.using(alias).filter(pk=pk).first()
    if entry is None:
        return None
    before = entry.identity
    try:
        entry.prepare()
        if mend:
            with transaction.atomic(using=alias):
                rows: QuerySet[BlacklistEntry] = QuerySet(BlacklistEntry, using=alias)
                rows.filter(pk=pk).update(kind=entry.kind, value=entry.value)
    except (ValidationError, IntegrityError) as error:
        report(f"blacklist entry {pk} of {alias!r}", error)
        return None
    return str(entry.identity if mend else before)


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
    return sorted({kind for alias in names for kind in _kinds(alias) if _has_marks(alias, kind)})


def _has_marks(alias: str, kind: str) -> bool:
    rows = BlacklistEntry.objects.using(alias).active().order_by().filter(kind=kind)
    return (rows.filter(_clients()) if kind == "ip" else rows).exists()


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
