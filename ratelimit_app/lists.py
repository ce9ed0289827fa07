"""Blocking and unblocking by hand: what the functions, the commands and the admin share."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import router, transaction
from django.utils import timezone

from ratelimit_app.conf import conf
from ratelimit_app.core.addresses import Address, parse_network
from ratelimit_app.core.entries import block_danger, parse_identity
from ratelimit_app.core.identity import IdentityError
from ratelimit_app.models import BlacklistEntry, Origin
from ratelimit_app.normalizing import normalized

if TYPE_CHECKING:
    from datetime import datetime

    from django.db.models import QuerySet

MAX_PERIOD = 100 * 365 * 86_400
_MAX_REASON = 500


def block(
    identity: str, *, reason: str, period: float | None = None, created_by: Any = None
) -> BlacklistEntry:
    """
    Turn an identity away, and give its manual entry.

    `identity`: such as `ip:203.0.113.0/24`, `user:42` or `header:x-api-key:<value>`. `period`: seconds, None for
    ever. An entry that there is already is extended, never shortened. Every process knows it within
    `REFRESH_INTERVAL` + 1 seconds of the commit. Raises IdentityError (a ValueError) for what is no identity, and
    ValueError for what is no period.
    """
    kind, value = read_identity(identity)
    check_period(period)
    reason = reason[:_MAX_REASON]
    expires_at = None if period is None else timezone.now() + timedelta(seconds=period)
    with transaction.atomic(using=router.db_for_write(BlacklistEntry)):
        entry: BlacklistEntry
        entry, is_new = BlacklistEntry.objects.get_or_create(
            kind=kind,
            value=value,
            source=Origin.MANUAL,
            defaults={"reason": reason, "expires_at": expires_at, "created_by": created_by},
        )
        if not is_new:
            entry = BlacklistEntry.objects.select_for_update().get(pk=entry.pk)
            entry.expires_at = _later(entry.expires_at, expires_at)
            entry.reason, entry.created_by = reason, created_by or entry.created_by
            entry.save()
    return entry


def unblock(identity: str) -> int:
    """
    Lift all bans of an identity, forget its offences, and give how many entries that ended.

    Manual and imported entries are deleted. A promoted one ends now and stays: it knows how often the identity
    was banned, and that its offences until now are used up.
    """
    kind, value = read_identity(identity)
    return lift(BlacklistEntry.objects.filter(kind=kind, value=value))


def lift(entries: QuerySet[BlacklistEntry]) -> int:
    """End the bans of these entries, and give how many ended."""
    pks = list(entries.order_by().values_list("pk", flat=True))
    with transaction.atomic(using=entries.db):
        rows = BlacklistEntry.objects.using(entries.db).filter(pk__in=pks)
        ended: int = rows.filter(source=Origin.PROMOTED).active().update(expires_at=timezone.now())
        deleted, _ = rows.exclude(source=Origin.PROMOTED).delete()
    return ended + deleted


def extend(entries: QuerySet[BlacklistEntry], period: float) -> int:
    """Let the bans that are active last `period` seconds longer, and give how many do; endless ones stay so."""
    extended = 0
    with transaction.atomic(using=entries.db):
        for entry in entries.select_for_update().filter(expires_at__gt=timezone.now()):
            entry.expires_at = (entry.expires_at or timezone.now()) + timedelta(seconds=period)
            entry.save(update_fields=["expires_at"])
            extended += 1
    return extended


def read_identity(identity: str) -> tuple[str, str]:
    """Give kind and value of an identity. Raises IdentityError."""
    if type(identity) is not str:
        msg = f"{identity!r} is no identity: expected text such as 'ip:203.0.113.9' or 'user:42'."
        raise IdentityError(msg)
    return parse_identity(identity, conf.key_secret, normalize=normalized)


def check_period(period: float | None) -> None:
    """Raise ValueError for what is no period, in seconds; None is for ever."""
    if period is not None and (type(period) not in (int, float) or not 0 < period <= MAX_PERIOD):
        msg = f"{period!r} is not a period: expected seconds, more than 0 and at most a hundred years; None for ever."
        raise ValueError(msg)


def danger(kind: str, value: str, own: Address | None = None) -> str | None:
    """Say what blocking an address or network would break; `own`: the address of whoever blocks. None: nothing."""
    if kind != "ip":
        return None
    return block_danger(parse_network(value), conf.trusted_proxies, own)


def covering(kind: str, value: str) -> list[str]:
    """Give the networks that are banned and hold this address or network, itself left out."""
    if kind != "ip":
        return []
    network = parse_network(value)
    wider = BlacklistEntry.objects.active().filter(kind="ip", value__contains="/").exclude(value=value)
    found = {
        f"ip:{text}"
        for text in wider.order_by().values_list("value", flat=True).iterator()
        if _holds(text, network)
    }
    return sorted(found)


def _holds(text: str, network: Any) -> bool:
    wider = parse_network(text)
    return bool(wider.version == network.version and network.subnet_of(wider))


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    return None if one is None or other is None else max(one, other)


ablock = sync_to_async(block)
aunblock = sync_to_async(unblock)
