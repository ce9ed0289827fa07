"""Bans are announced once they are in force, by whichever run comes first."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, models, transaction
from django.utils import timezone

from ratelimit_app import publishing
from ratelimit_app.models import BlacklistEntry, Origin
from ratelimit_app.signals import identity_blocked

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("ratelimit_app")


def announce_pending(databases: list[str], renew: Callable[[], None]) -> tuple[str, ...]:
    """
    Publish and announce the promoted entries that nobody has announced, and give their identities.

    A run that was killed after its transaction leaves such entries; the next one finishes them here.
    """
    return tuple(identity for alias in databases for identity in _announce_all(alias, renew))


def _announce_all(alias: str, renew: Callable[[], None]) -> list[str]:
    pending = _entries(alias).filter(source=Origin.PROMOTED, announced_at=None).order_by("pk")
    identities = [f"{kind}:{value}" for kind, value in pending.values_list("kind", "value")]
    if not identities:
        return []
    publishing.publish(identities, using=alias)
    announced = []
    for entry in pending:
        renew()
        if _announce(entry, alias):
            announced.append(entry.identity)
    return announced


def _announce(entry: BlacklistEntry, alias: str) -> bool:
    """
    Send the signal of one ban, in the transaction that notes it as announced.

    So a second run waits and then finds nothing to announce, and what a receiver writes to the database happens
    exactly once, even if this process is killed half-way.
    """
    with transaction.atomic(using=alias):
        unannounced = _entries(alias).filter(pk=entry.pk, announced_at=None)
        if not unannounced.update(announced_at=timezone.now()):
            return False
        logger.warning("ratelimit.identity_blocked identity=%s reason=%s", entry.identity, entry.reason)
        _send(entry, alias)
    return True


def _send(entry: BlacklistEntry, alias: str) -> None:
    error: DatabaseError | None = None
    is_undone = False
    try:
        with transaction.atomic(using=alias):
            identity_blocked.send_robust(sender=BlacklistEntry, identity=entry.identity, entry=entry)
            is_undone = transaction.get_rollback(using=alias)
    except DatabaseError as raised:
        error = raised
    if is_undone or error:
        # Django has logged which receiver raised; what it cost the others must be said here.
        logger.error(
            "ratelimit.receiver_failed signal=identity_blocked identity=%s: a database error of one receiver undid "
            "what all of them wrote; the ban stands. Put each receiver's writes into transaction.atomic().",
            entry.identity,
            exc_info=error,
        )


def _entries(alias: str) -> models.QuerySet[Any]:
    """Give the entries through a plain queryset: noting an announcement publishes nothing."""
    return models.QuerySet(BlacklistEntry, using=alias)
