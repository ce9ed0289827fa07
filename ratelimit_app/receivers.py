"""Every write of a rule, list or policy, by whatever way, is published when its transaction commits."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from django.apps import apps
from django.db import DatabaseError, connections, router, transaction
from django.db.models.signals import (
    class_prepared,
    m2m_changed,
    post_delete,
    post_migrate,
    post_save,
    pre_save,
)
from django.db.transaction import TransactionManagementError

from ratelimit_app import offences, publishing, snapshot_cache
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.models import AllowlistEntry, BlacklistEntry, Origin, PromotionPolicy, Publication, Rule
from ratelimit_app.signals import identity_blocked, identity_unblocked, rows_changed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from django.db.models import Model

logger = logging.getLogger("ratelimit_app")

BLACKLIST = "ratelimit_app.blacklistentry"
_LABELS = {
    f"ratelimit_app.{name}"
    for name in ("rule", "promotionpolicy", "promotionpolicy_rules", "blacklistentry", "allowlistentry")
}
_ROWS: tuple[Any, ...] = (Rule, BlacklistEntry, AllowlistEntry, PromotionPolicy)
_UID = "ratelimit_app.receivers"


class Pending:
    """What has changed in a transaction; `identities` is None when everything is to be compared."""

    def __init__(self) -> None:
        self.identities: set[str] | None = set()

    def add(self, identities: Collection[str] | None) -> None:
        """Add to what has changed."""
        if identities is None or self.identities is None:
            self.identities = None
        else:
            self.identities.update(identities)


_pending: WeakKeyDictionary[Any, Pending] = WeakKeyDictionary()


def connect() -> None:
    """Listen to every way of writing."""
    for model in apps.get_app_config("ratelimit_app").get_models(include_auto_created=True):
        _listen(model)
    # The models of data migrations are classes of their own, made when a migration runs.
    class_prepared.connect(_on_class_prepared, dispatch_uid=_UID)
    rows_changed.connect(_on_rows_changed, dispatch_uid=_UID)
    post_migrate.connect(_on_migrated, sender=apps.get_app_config("ratelimit_app"), dispatch_uid=_UID)
    identity_unblocked.connect(_on_unblocked, dispatch_uid=_UID)


def _listen(model: type[Model]) -> None:
    if _label(model) not in _LABELS:
        return
    pre_save.connect(_on_saving, sender=model, dispatch_uid=_UID)
    post_save.connect(_on_saved, sender=model, dispatch_uid=_UID)
    post_delete.connect(_on_deleted, sender=model, dispatch_uid=_UID)
    m2m_changed.connect(_on_m2m_changed, sender=model, dispatch_uid=_UID)


def _label(model: type[Model]) -> str:
    return model._meta.label_lower  # noqa: SLF001 - public, in spite of its name


def _on_class_prepared(sender: type[Model], **_: Any) -> None:
    _listen(sender)


def _on_saving(instance: Any, *, raw: bool, using: str, **_: Any) -> None:
    """`loaddata` does not call `save`, which brings a row into its form."""
    if raw and hasattr(instance, "prepare"):
        instance.prepare()
    if _label(type(instance)) == BLACKLIST and instance.pk is not None and not _before(instance):
        instance.loaded_identity = _in_database(instance, using)


def _before(instance: Any) -> str | None:
    return getattr(instance, "loaded_identity", None)


def _in_database(instance: Any, using: str) -> str | None:
    """Give whom a row bans that is about to be written over by an instance that was not loaded from it."""
    rows = type(instance)._base_manager.using(using).filter(pk=instance.pk)  # noqa: SLF001 - public, as above
    return next((f"{kind}:{value}" for kind, value in rows.values_list("kind", "value")), None)


def _on_saved(instance: Any, *, created: bool, using: str, raw: bool, **_: Any) -> None:
    changed(using, _identities(instance))
    if isinstance(instance, BlacklistEntry) and not raw:
        _announce(instance, using, is_new=created)


def _on_deleted(instance: Any, *, using: str, **_: Any) -> None:
    changed(using, _identities(instance))


def _on_m2m_changed(action: str, *, using: str, **_: Any) -> None:
    if action.startswith("post_"):
        changed(using, ())


def _on_rows_changed(using: str, identities: Collection[str] | None, **_: Any) -> None:
    changed(using, identities)


def _on_unblocked(identity: str, **_: Any) -> None:
    """An unblock clears the offences, so that the next denial is not a ban again."""
    try:
        offences.forget(identity)
    except StoreUnavailable as error:
        logger.warning("ratelimit.offences_kept of %s, though it is unblocked: %s", identity, error)


def _on_migrated(using: str, **_: Any) -> None:
    """Data migrations, and the flush that tests end with, may have written anything."""
    if not _has_tables(using) or not _has_tables(router.db_for_write(Publication)):
        return
    is_router = using == router.db_for_write(Publication)
    if is_router or any(model.objects.using(using).exists() for model in _ROWS):
        changed(using, None)


def _has_tables(using: str) -> bool:
    table = Publication._meta.db_table  # noqa: SLF001 - public, in spite of its name
    return table in connections[using].introspection.table_names()


def _identities(instance: Any) -> list[str]:
    if _label(type(instance)) != BLACKLIST:
        return []
    identities = [f"{instance.kind}:{instance.value}"]
    before = _before(instance)
    return [*identities, before] if before else identities


def _announce(entry: BlacklistEntry, using: str, *, is_new: bool) -> None:
    """Tell of a ban that began or was extended; promotion tells of its own."""
    if entry.source != Origin.PROMOTED and entry.is_active() and (is_new or entry.is_extended()):
        sent = {"sender": BlacklistEntry, "identity": entry.identity, "entry": entry}
        _on_commit(lambda: identity_blocked.send_robust(**sent), using)
    entry.remember()


def changed(using: str, identities: Collection[str] | None) -> None:
    """Publish once this transaction commits; all that it changes is published together."""
    connection = connections[using]
    if not connection.run_on_commit:
        # What a transaction that was rolled back has left here is of no interest.
        _pending.pop(connection, None)
    _pending.setdefault(connection, Pending()).add(identities)
    _on_commit(lambda: _publish(using), using)


def _on_commit(work: Callable[[], object], using: str) -> None:
    try:
        transaction.on_commit(work, using=using, robust=True)
    except TransactionManagementError:
        logger.warning(
            "ratelimit.publish_late: %r is in manual transaction management, so nobody says when it commits; "
            "the periodic sync publishes the change.",
            using,
        )


def _publish(using: str) -> None:
    pending = _pending.pop(connections[using], None)
    if pending is None:
        return
    try:
        publishing.publish(pending.identities or (), using=using)
        if pending.identities is None:
            publishing.sync()
    except (StoreUnavailable, DatabaseError) as error:
        # It is told once, not for each of a hundred rows.
        log = logger.error if snapshot_cache.unpublished() else logger.debug
        log("ratelimit.publish_failed: saved, and to be published when Redis answers: %s", error)
