"""Blocking and unblocking by hand: what the functions, the commands and the admin share."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import router, transaction
from django.db.models import Q
from django.utils import timezone

from ratelimit_app import offences, snapshot_cache
from ratelimit_app.conf import conf
from ratelimit_app.core.addresses import Address, parse_network
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.core.entries import block_danger, holding, parse_identity
from ratelimit_app.core.identity import IdentityError
from ratelimit_app.models import AllowlistEntry, BlacklistEntry, Origin
from ratelimit_app.normalizing import normalized

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from django.db.models import QuerySet

logger = logging.getLogger("ratelimit_app")

MAX_PERIOD = 100 * 365 * 86_400
_MAX_REASON = 500
_CHUNK = 500


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
    return lift(BlacklistEntry.objects.filter(kind=kind, value=value), [f"{kind}:{value}"])


def lift(entries: QuerySet[BlacklistEntry], identities: Collection[str]) -> int:
    """End the bans of these entries, which are those of these identities, and give how many ended."""
    pks, count = list(entries.order_by().values_list("pk", flat=True)), 0
    with transaction.atomic(using=entries.db):
        for start in range(0, len(pks), _CHUNK):
            rows = BlacklistEntry.objects.using(entries.db).filter(pk__in=pks[start : start + _CHUNK])
            count += rows.filter(source=Origin.PROMOTED).active().update(expires_at=timezone.now())
            count += rows.exclude(source=Origin.PROMOTED).delete()[0]
        transaction.on_commit(lambda: _forget(identities), using=entries.db, robust=True)
    return count


def _forget(identities: Collection[str]) -> None:
    """Forget offences and what processes remember, also of those whom Redis had not banned at all."""
    try:
        for identity in identities:
            offences.forget(identity)
        snapshot_cache.have_forgotten(identities)
    except StoreUnavailable as error:
        logger.warning("ratelimit.offences_kept of some who are unblocked: %s", error)


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


def danger(kind: str, value: str, own: Address | None = None, owned: str | None = None) -> str | None:
    """
    Say what blocking an identity would break, None: nothing. The value is canonical, as rows have it.

    `own`, `owned`: of whoever blocks, the address, and the identity of this kind. It asks no database.
    """
    if kind != "ip":
        return f"it is your own {kind}: you would lock yourself out" if owned == f"{kind}:{value}" else None
    return block_danger(parse_network(value), conf.trusted_proxies, own)


def covering(kind: str, value: str) -> list[str]:
    """Give the networks that are banned and hold this address or network, itself left out."""
    return _active(BlacklistEntry.objects.all(), kind, _wider(kind, value))


def allowing(kind: str, value: str) -> list[str]:
    """Give what is on the allowlist and lets this identity pass: itself, and the networks that hold it."""
    return _active(AllowlistEntry.objects.all(), kind, [value, *_wider(kind, value)])


def _wider(kind: str, value: str) -> list[str]:
    try:
        return holding(value) if kind == "ip" else []
    except ValueError:
        return []  # Raw SQL can write what is no network.


def _active(rows: QuerySet[Any], kind: str, values: list[str]) -> list[str]:
    active = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    found = rows.filter(active, kind=kind, value__in=values).order_by().values_list("value", flat=True)
    return sorted({f"{kind}:{text}" for text in found})


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    return None if one is None or other is None else max(one, other)


ablock = sync_to_async(block)
aunblock = sync_to_async(unblock)
