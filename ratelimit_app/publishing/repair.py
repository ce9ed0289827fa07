"""The full comparison of the database with Redis, which repairs whatever publishing on commit has missed."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, connections

from ratelimit_app.core.access_lists import NEVER
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.models import Publication
from ratelimit_app.publishing import content, ledger, publisher

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CLAIM_MS = 5_000
LONG_CLAIM_MS = 15_000  # a comparison of a million bans takes about so long
LINGERING_MS = 1_000
ACCURACY = 0.1  # seconds, to which processes know the Redis clock
PATIENCE = 1.0


@dataclass(slots=True)
class Report:
    """
    What a sync has compared and found.

    `version`: of the snapshot in Redis, when it ended. `snapshot_differs`: rules or allowlist were not what the
    database says. `bans`: active in the database. `missing`, `stale`, `wrong`: bans that Redis did not have, still
    had, or had with another end. `repaired`: whether that was mended.
    """

    version: str = ""
    snapshot_differs: bool = False
    bans: int = 0
    missing: int = 0
    stale: int = 0
    wrong: int = 0
    repaired: bool = False

    @property
    def has_drifted(self) -> bool:
        """Whether Redis said anything else than the database."""
        return self.snapshot_differs or bool(self.missing or self.stale or self.wrong)

    def to_dict(self) -> dict[str, Any]:
        """Give it as plain data."""
        return asdict(self) | {"drift": self.has_drifted}


def sync(*, check: bool = False) -> Report:
    """
    Compare the database with Redis, and repair Redis unless `check`. Raises StoreUnavailable.

    It repairs what differs and nothing else, holding the publishers' lock for one part at a time, and renews the
    lives of what never ends.
    """
    report = Report(repaired=not check)
    began = ledger.now()
    row, held = _row(), ledger.read_snapshot()
    same_epoch = ledger.counter_of(held.version, row.epoch.hex) is not None
    report.snapshot_differs = not (same_epoch and content.body(row).is_in(held.body))
    report.version = held.version or ""
    if not check:
        ledger.drop_strangers()
        report.version = publisher.publish_snapshot()
    known = sum(_compare(row, ends, report) for ends in content.banned(row, ledger.CHUNK, mend=not check))
    _compare_strangers(row, known if len(content.aliases(row)) == 1 else None, report)
    if not check:
        ledger.note_synced(began)
    return report


def has_rules() -> bool:
    """Whether Redis has the database's rules; lists may be long, and are not looked at. Raises StoreUnavailable."""
    return content.are_rules_in(_row(), ledger.read_snapshot().body)


def _compare_strangers(row: Publication, known: int | None, report: Report) -> None:
    """
    Compare those of whom Redis has a ban, and the database none.

    `known`: how many it has rightly, None: unknown. Where no more are there than these and those that have ended by
    themselves, there is nobody to look for among a million.
    """
    strangers = None if known is None else ledger.count() - known
    if strangers:
        now_us = time.time() * 1_000_000
        for noted in ledger.noted():
            strangers -= _compare_gone(
                row, [identity for identity, end in noted.items() if end and end <= now_us], report
            )
    if strangers is None or strangers:
        for noted in ledger.noted():
            _compare_gone(row, list(noted), report)


def _compare_gone(row: Publication, identities: list[str], report: Report) -> int:
    """Compare those of these who are not banned any more, and give how many they are."""
    banned = content.bans(row, identities)
    gone = {identity: None for identity in identities if identity not in banned}
    _compare(row, gone, report)
    return len(gone)


def _row() -> Publication:
    """Give the publishers' row without its lock, as it would be where there is none yet."""
    rows = Publication.objects.using(content.write_alias())
    return rows.filter(pk=1).first() or Publication(pk=1)


def _compare(row: Publication, ends: Mapping[str, int | None], report: Report) -> int:
    """
    Compare some bans with those in Redis, repair these, and give of how many Redis knows.

    The ends may be those of one database.
    """
    report.bans += sum(end is not None for end in ends.values())
    found = ledger.read_bans(ends)
    drifted = publisher.differing(ends, found)
    if drifted:
        # Now exactly: several rows may ban one identity, and what is committed between two readings is no drift.
        wanted, held = content.bans(row, drifted), ledger.read_bans(drifted)
        drifted = publisher.differing(wanted, held)
        for identity in drifted:
            _count(report, wanted.get(identity), held[identity])
    if not report.repaired:
        return sum(ban.noted is not None for ban in found.values())
    publisher.publish_bans(drifted)
    ledger.renew([identity for identity, end in ends.items() if end == NEVER and ledger.is_client(identity)])
    return len(ends)


def _count(report: Report, wanted: int | None, held: ledger.Ban) -> None:
    """Count one difference; a ban that has ended by itself is none, it only leaves the index."""
    if wanted is None:
        report.stale += publisher.is_live(held)
    else:
        report.missing += held.decides is None
        report.wrong += held.decides is not None


def _await_snapshot() -> None:
    """Wait until whoever is at it has published, so that this process need not wait for its next refresh."""
    deadline = time.monotonic() + PATIENCE
    while ledger.read_snapshot().version is None and time.monotonic() < deadline:
        time.sleep(0.02)


def publish_missing() -> None:
    """
    Publish everything from the database when Redis has no snapshot; one process does it, the others wait a second.

    For a thread of its own, off the request path: it closes the thread's database connections, and what goes wrong
    is only logged, since it is tried again at the next refresh.
    """
    try:
        with _own_connections():
            if ledger.claim(CLAIM_MS):
                try:
                    if ledger.read_snapshot().version is None:
                        sync()
                finally:
                    ledger.release()
            else:
                _await_snapshot()
    except (StoreUnavailable, DatabaseError) as error:
        content.report("publishing from the database", error)


def publish_missed(missed_at: float) -> bool:
    """
    Publish what Redis may have missed until `missed_at`, the last instant of an outage (seconds by the Redis clock).

    Whether nothing is missing any more: then everything was compared since, here or in another process. Else it is to
    be tried again. For a thread of its own, as `publish_missing`. Raises StoreUnavailable, and what the database raises.
    """
    try:
        if _is_synced_since(missed_at):
            return True
        if not ledger.claim(LONG_CLAIM_MS):
            return False
    except StoreUnavailable:
        return False  # it cost nothing, and may be over at any moment
    try:
        with _own_connections():
            if not _is_synced_since(missed_at):
                sync()
    except (StoreUnavailable, DatabaseError):
        ledger.linger(LINGERING_MS)  # no other process begins the same at once
        raise
    ledger.release()
    return True


def _is_synced_since(instant: float) -> bool:
    began = ledger.synced_at()
    return began is not None and began > instant + ACCURACY


@contextmanager
def _own_connections() -> Iterator[None]:
    try:
        yield
    finally:
        for connection in connections.all(initialized_only=True):
            if not connection.in_atomic_block:
                connection.close()
