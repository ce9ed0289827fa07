"""Querysets that validate what they write, and tell publishing of every write that sends no signal of Django's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models, transaction
from django.db.models import F, Q
from django.utils import timezone

from ratelimit_app.signals import rows_changed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime

# Above so many rows, everything is compared instead of a list of what changed.
MAX_IDENTITIES = 50_000


class PublishedQuerySet(models.QuerySet[Any]):
    """Rows that are published: `update`, `bulk_create` and `bulk_update` validate, and publish on commit."""

    def update(self, **kwargs: Any) -> int:
        """Update as Django does. Raises ValidationError for literal values that no row may have."""
        clean = getattr(self.model, "clean_update", None)
        self._for_write = True
        if clean is not None:
            kwargs = clean(self.all().using(self.db), kwargs)
        with transaction.atomic(using=self.db, savepoint=False):
            before = self._identities()
            count = super().update(**kwargs)
            after = self._moved(before, kwargs)
            self._changed([*before.values(), *after])
        return count

    update.alters_data = True  # type: ignore[attr-defined]

    def bulk_create(self, objs: Iterable[Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Create as Django does. Raises ValidationError for a row that may not be."""
        rows = list(objs)
        self._for_write = True
        self._prepare(rows)
        with transaction.atomic(using=self.db, savepoint=False):
            made = super().bulk_create(rows, *args, **kwargs)
            # Rows that were written over may have been anybody's: then all is published.
            self._changed(None if kwargs.get("update_conflicts") else self._identities_of(rows))
        return made

    def bulk_update(self, objs: Iterable[Any], fields: Iterable[str], *args: Any, **kwargs: Any) -> int:
        """Update as Django does. Raises ValidationError for a row that may not be."""
        rows = list(objs)
        self._for_write = True
        self._prepare(rows)
        with transaction.atomic(using=self.db, savepoint=False):
            count = super().bulk_update(rows, fields, *args, **kwargs)
            self._changed(self._identities_of(rows))
        return count

    def _prepare(self, rows: list[Any]) -> None:
        # The models of a migration have no such methods: they are what they were at their time.
        for prepare in (prepare for row in rows if (prepare := getattr(row, "prepare", None))):
            prepare()
        together = getattr(self.model, "prepare_together", None)
        if together is not None:
            together(rows, self.db)

    def _changed(self, identities: Sequence[str] | None) -> None:
        known = identities if identities is not None and len(identities) <= MAX_IDENTITIES else None
        rows_changed.send(sender=self.model, using=self.db, identities=known)

    def _identities(self) -> dict[Any, str]:
        """Give the identities of these rows by primary key, where rows have marks of their own."""
        return {}

    def _identities_of(self, rows: Iterable[Any]) -> list[str]:
        return []

    def _moved(self, before: Collection[Any], kwargs: dict[str, Any]) -> list[str]:
        """Give the identities that rows have after an update that changed them."""
        return []


class BlacklistQuerySet(PublishedQuerySet):
    """Rows of the blacklist, each with a mark or network of its own in Redis."""

    def active(self, now: datetime | None = None) -> BlacklistQuerySet:
        """Give the rows that ban at this time."""
        return self.filter(Q(expires_at=None) | Q(expires_at__gt=now or timezone.now()))

    def _identities(self) -> dict[Any, str]:
        rows = self.all().order_by().values_list("pk", "kind", "value")
        return {pk: f"{kind}:{value}" for pk, kind, value in rows}

    def _identities_of(self, rows: Iterable[Any]) -> list[str]:
        return [f"{row.kind}:{row.value}" for row in rows]

    def _moved(self, before: Collection[Any], kwargs: dict[str, Any]) -> list[str]:
        if not {"kind", "value"} & kwargs.keys():
            return []
        keys = list(before)
        chunks = (keys[start : start + 500] for start in range(0, len(keys), 500))
        rows = BlacklistQuerySet(self.model, using=self.db)
        return [
            f"{kind}:{value}"
            for chunk in chunks
            for kind, value in rows.filter(pk__in=chunk).values_list("kind", "value")
        ]


class PublicationQuerySet(models.QuerySet[Any]):
    """The one row that orders the publishers."""

    def lock(self) -> Any:
        """
        Give the row, locked until the transaction ends; it is made where it is missing.

        The update comes first, so that a database which locks as a whole (SQLite) takes its write lock here.
        """
        if not self.filter(pk=1).update(counter=F("counter")):
            self.bulk_create([self.model(pk=1)], ignore_conflicts=True)
            self.filter(pk=1).update(counter=F("counter"))
        return self.get(pk=1)


_PublishedBase = models.Manager.from_queryset(PublishedQuerySet)
_BlacklistBase = models.Manager.from_queryset(BlacklistQuerySet)
PublicationManager = models.Manager.from_queryset(PublicationQuerySet)


class PublishedManager(_PublishedBase[Any]):
    """The manager of published rows, in data migrations too."""

    use_in_migrations = True


class BlacklistManager(_BlacklistBase[Any]):
    """The manager of the blacklist, in data migrations too."""

    use_in_migrations = True
