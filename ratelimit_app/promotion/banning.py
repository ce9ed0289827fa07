"""One policy of one run: its bans are judged again under a lock, and written in one transaction."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, models, transaction
from django.db.models import F

from ratelimit_app import offences
from ratelimit_app.conf import conf
from ratelimit_app.core.escalation import FOREVER, START, Ban, Step, worst_first
from ratelimit_app.core.identity import kind_of, value_of
from ratelimit_app.models import BlacklistEntry, Origin, PromotionPolicy
from ratelimit_app.promotion.guards import SHARED_ADDRESS, room_of, shared_addresses
from ratelimit_app.promotion.report import Capped, Promotion, PromotionReport, Skipped, describe
from ratelimit_app.signals import alert_raised
from ratelimit_app.store.connection import client, unavailable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from ratelimit_app.core.escalation import Line
    from ratelimit_app.promotion.candidates import Candidates
    from ratelimit_app.promotion.sparing import NeverPromoted

logger = logging.getLogger("ratelimit_app")

CHUNK = 500
WARN_AGAIN_AFTER = 86_400
REASON_LENGTH = 500
WRITTEN = ("level", "expires_at", "reason", "evidence", "announced_at")


class Judgement:
    """What is done with the candidates of one policy."""

    def __init__(self, candidates: Candidates, never: NeverPromoted, *, now_s: float, dry_run: bool) -> None:
        self._candidates, self._never = candidates, never
        self._policy, self._alias = candidates.policy, candidates.alias
        self._now_s, self._dry_run = now_s, dry_run

    def run(self) -> PromotionReport:
        """Ban the worst, up to the cap of a run; report who was spared and how many were left."""
        lines = self._candidates.lines
        due = self._judge(lines, self._rows(lines))
        spared = self._never.reasons(due)
        spared |= shared_addresses([one for one in due if one not in spared], self._policy.max_users)
        bans = worst_first({identity: ban for identity, ban in due.items() if identity not in spared})
        most = self._policy.max_blocks_per_run
        room = room_of(self._policy, self._alias, self._now_s) if bans else None
        chosen = bans[: most if room is None else min(most, room)]
        capped = self._capped(len(bans) - len(chosen), by_share=room is not None and room < most)
        skipped = tuple(Skipped(identity, self._policy.name, reason) for identity, reason in spared.items())
        if not self._dry_run:
            self._tell_of(skipped)
            chosen = self._promote([identity for identity, _ in chosen])
        promoted = tuple(self._describe(identity, ban) for identity, ban in chosen)
        return PromotionReport(promoted, skipped, capped)

    def _tell_of(self, skipped: tuple[Skipped, ...]) -> None:
        for item in _warn_of(skipped):
            if item.reason == SHARED_ADDRESS:
                alert_raised.send_robust(
                    sender=PromotionPolicy,
                    kind=SHARED_ADDRESS,
                    message=f"{item.identity} is not banned: at least {self._policy.max_users} signed-in users share it.",
                    details={"identity": item.identity, "policy": item.policy},
                )

    def _judge(
        self, lines: Mapping[str, Iterable[Line]], rows: Mapping[str, BlacklistEntry]
    ) -> dict[str, Ban]:
        ladder, weights = self._candidates.ladder, self._candidates.weights
        verdicts = {
            identity: ladder.judge(own, weights, _step(rows.get(identity)), now_s=self._now_s)
            for identity, own in lines.items()
        }
        return {identity: ban for identity, ban in verdicts.items() if ban is not None}

    def _rows(self, identities: Collection[str]) -> dict[str, BlacklistEntry]:
        by_kind: dict[str, list[str]] = defaultdict(list)
        for identity in identities:
            by_kind[kind_of(identity)].append(value_of(identity))
        steps = BlacklistEntry.objects.using(self._alias).filter(policy=self._policy, source=Origin.PROMOTED)
        return {
            row.identity: row
            for kind, values in by_kind.items()
            for start in range(0, len(values), CHUNK)
            for row in steps.filter(kind=kind, value__in=values[start : start + CHUNK])
        }

    def _promote(self, identities: list[str]) -> list[tuple[str, Ban]]:
        if not identities:
            return []
        try:
            with transaction.atomic(using=self._alias):
                return self._promote_under_lock(identities)
        except IntegrityError:
            # Another run has written the same entries in spite of the lock: they stand, the next run goes on.
            logger.warning("ratelimit.promotion_collided policy=%s", self._policy.name, exc_info=True)
            return []

    def _promote_under_lock(self, identities: list[str]) -> list[tuple[str, Ban]]:
        if not self._lock():
            return []
        # Read again: another run may have banned them, or a person unblocked them, a moment ago.
        rows = self._rows(identities)
        bans = worst_first(
            self._judge({identity: offences.counts(identity) for identity in identities}, rows)
        )
        self._write(bans, rows)
        return bans

    def _lock(self) -> int:
        """
        Hold the policy's row until the transaction ends; 0 when it is gone or disabled.

        An update, so that a database which locks as a whole (SQLite) takes its write lock before it reads; a plain
        queryset, so that nothing is published for it.
        """
        policies: models.QuerySet[Any] = models.QuerySet(PromotionPolicy, using=self._alias)
        return policies.filter(pk=self._policy.pk, enabled=True).update(threshold=F("threshold"))

    def _write(self, bans: list[tuple[str, Ban]], rows: Mapping[str, BlacklistEntry]) -> None:
        begun = [self._entry(identity, ban, None) for identity, ban in bans if identity not in rows]
        again = [self._entry(identity, ban, rows[identity]) for identity, ban in bans if identity in rows]
        entries = BlacklistEntry.objects.using(self._alias)
        entries.bulk_create(begun, batch_size=CHUNK)
        entries.bulk_update(again, WRITTEN, batch_size=CHUNK)

    def _entry(self, identity: str, ban: Ban, row: BlacklistEntry | None) -> BlacklistEntry:
        promotion = self._describe(identity, ban)
        if row is None:
            kind, value = kind_of(identity), value_of(identity)
            row = BlacklistEntry(kind=kind, value=value, source=Origin.PROMOTED, policy=self._policy)
        row.level, row.expires_at = promotion.level, promotion.expires_at
        row.reason = promotion.reason[:REASON_LENGTH]
        row.evidence = json.dumps(promotion.evidence, sort_keys=True)
        row.announced_at = None
        return row

    def _describe(self, identity: str, ban: Ban) -> Promotion:
        return describe(identity, self._policy.name, ban, dry_run=self._dry_run)

    def _capped(self, left: int, *, by_share: bool) -> tuple[Capped, ...]:
        if left <= 0:
            return ()
        share = self._policy.max_share if by_share else None
        capped = Capped(self._policy.name, self._policy.max_blocks_per_run, left, share)
        logger.error("ratelimit.promotion_capped %s", capped.message)
        if not self._dry_run:
            alert_raised.send_robust(
                sender=PromotionPolicy,
                kind="promotion_capped",
                message=capped.message,
                details={
                    "policy": capped.policy,
                    "max_blocks_per_run": capped.max_blocks_per_run,
                    "max_share": capped.max_share,
                    "left": left,
                },
            )
        return (capped,)


def _warn_of(skipped: Iterable[Skipped]) -> Iterator[Skipped]:
    """Log who was spared, and give those of whom the log has not told within a day."""
    for item in skipped:
        key = f"{conf.keys.root}:spared:{item.identity}".encode("utf-8", "surrogatepass")
        with unavailable():
            is_new = client().set(key, 1, nx=True, ex=WARN_AGAIN_AFTER)
        if is_new:
            what = "ratelimit.promotion_skipped identity=%s policy=%s reason=%s"
            logger.warning(what, item.identity, item.policy, item.reason)
            yield item


def _step(row: BlacklistEntry | None) -> Step:
    if row is None:
        return START
    return Step(row.level, FOREVER if row.expires_at is None else row.expires_at.timestamp())
