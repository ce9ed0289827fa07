"""An import from its first row to the last mark in Redis."""

from __future__ import annotations

import json
import logging
import tempfile
import weakref
from contextlib import nullcontext, suppress
from itertools import islice
from typing import IO, TYPE_CHECKING

from django.db import DatabaseError, router, transaction

from ratelimit_app import publishing, snapshot_cache
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.core.feeds import PassedOver
from ratelimit_app.importing.judging import Judge
from ratelimit_app.importing.report import Report
from ratelimit_app.importing.staging import BATCH, Staging
from ratelimit_app.models import BlacklistEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ratelimit_app.core.feeds import Listed
    from ratelimit_app.importing.judging import Terms
    from ratelimit_app.importing.rows import Row

    Progress = Callable[[str, int], object]

logger = logging.getLogger("ratelimit_app")

READ, SAVE, PUBLISH = "rows read", "entries saved", "bans published"
_SPOOLED = 4_000_000
# Fewer change no plan of the database, and its own count comes soon enough.
_MANY = 1_000


class NothingToKeep(Exception):
    """A list without a single entry would replace all that there are."""


def import_rows(
    rows: Iterable[Listed | PassedOver],
    terms: Terms,
    *,
    dry_run: bool = False,
    progress: Progress = lambda *_: None,
) -> Report:
    """
    Bring the rows of a list into the database in one transaction, and to Redis when that commits.

    Imported entries are made, or changed where they are there; all others are left as they are. `progress` is
    called with a step's name and a count. Raises NothingToKeep, UnsupportedDatabase, and what reading the rows
    raises: then nothing is changed.
    """
    return _Import(terms, dry_run=dry_run, progress=progress).run(rows)


class _Import:
    def __init__(self, terms: Terms, *, dry_run: bool, progress: Progress) -> None:
        self._terms, self._dry_run, self._progress = terms, dry_run, progress
        self._alias = router.db_for_write(terms.model)
        self._staging = Staging(terms.model, self._alias)
        self._bans = issubclass(terms.model, BlacklistEntry)
        self._report = Report(name="blacklist" if self._bans else "allowlist", dry_run=dry_run)
        # Whom it changed stands outside the database: after the commit the connection may be another one.
        self._changed: IO[str] = tempfile.SpooledTemporaryFile(_SPOOLED, "w+", encoding="utf-8")  # noqa: SIM115
        # At the latest when a transaction around this is rolled back.
        weakref.finalize(self, self._changed.close)

    def run(self, rows: Iterable[Listed | PassedOver]) -> Report:
        """Do it all."""
        fills, saves = nullcontext[None](), transaction.atomic(using=self._alias)
        if self._staging.fills_in_transaction:
            fills, saves = saves, fills  # type: ignore[assignment]
        try:
            with fills:
                self._staging.create()
                self._fill(rows)
                with nullcontext() if self._dry_run else saves:
                    self._save()
                self._staging.drop()
        except BaseException:
            self._changed.close()
            if not self._staging.fills_in_transaction:
                with suppress(DatabaseError):
                    self._staging.drop()
            raise
        return self._report

    def _fill(self, rows: Iterable[Listed | PassedOver]) -> None:
        report, accepted = self._report, self._accepted(rows)
        while batch := list(islice(accepted, BATCH)):
            self._staging.add(batch)
            report.accepted += len(batch)
            self._progress(READ, report.accepted)
        kept = self._staging.count()
        report.repeated = report.accepted - kept
        if self._terms.replace and not kept and not self._terms.force:
            msg = "the list names nobody who can be taken, and would replace all that were imported"
            raise NothingToKeep(msg)

    def _accepted(self, rows: Iterable[Listed | PassedOver]) -> Iterator[Row]:
        judge = Judge(self._terms)
        for row in rows:
            found = row if isinstance(row, PassedOver) else judge.row(row)
            if isinstance(found, PassedOver):
                self._report.pass_over(found)
            else:
                yield found

    def _save(self) -> None:
        staging, report, replaces = self._staging, self._report, self._terms.replace
        known, report.unchanged = staging.compare()
        report.updated = known - report.unchanged
        report.created = report.accepted - report.repeated - known
        report.removed = staging.count_missing() if replaces else 0
        if self._dry_run:
            return
        self._progress(SAVE, report.created + report.updated)
        if replaces:
            staging.remove_missing()
        staging.leave_unchanged()
        staging.merge()
        if report.created + report.removed > _MANY:
            staging.count_anew()
        if self._bans:
            for identities in staging.changed():
                self._changed.write("".join(f"{json.dumps(identity)}\n" for identity in identities))
        transaction.on_commit(self._follow, using=self._alias)

    def _follow(self) -> None:
        """Have Redis follow, a thousand bans at a time, so that whoever else edits is not kept waiting."""
        self._report.published = False
        try:
            self._changed.seek(0)
            changed = (json.loads(line) for line in self._changed)
            for done in publishing.publish_many(changed, using=self._alias):
                self._progress(PUBLISH, done)
        except (StoreUnavailable, DatabaseError) as error:
            snapshot_cache.unpublished()
            logger.error(  # noqa: TRY400 - what went wrong is known, where is of no interest
                "ratelimit.publish_failed: imported, and to be published when Redis answers: %s",
                error,
            )
        else:
            self._report.published = True
        finally:
            self._changed.close()
