"""What is over goes away: expired entries, steps of the ladder that have decayed, offences nobody counts any more."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import models, transaction
from django.db.models import F, Max, Q

from ratelimit_app import offences
from ratelimit_app.core.snapshot import DEFAULT_OFFENCE_TTL
from ratelimit_app.models import AllowlistEntry, BlacklistEntry, Origin, PromotionPolicy
from ratelimit_app.promotion.candidates import aliases
from ratelimit_app.promotion.clock import moment, redis_now

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

BATCH = 500


class Over(NamedTuple):
    """Rows of one table that are over."""

    model: Any
    alias: str
    condition: Q

    def size(self) -> int:
        """Say how many there are."""
        return int(self._rows().count())

    def delete_batches(self) -> Iterator[int]:
        """Delete them, some in each transaction, and give how many each time."""
        while keys := list(self._rows().values_list("pk", flat=True)[:BATCH]):
            with transaction.atomic(using=self.alias):
                self._hold(keys)
                deleted, _ = self._rows().filter(pk__in=keys).delete()
            yield deleted

    def _rows(self) -> Any:
        return self.model.objects.using(self.alias).filter(self.condition).order_by()

    def _hold(self, keys: list[int]) -> None:
        # An update locks the rows on every database, so that none is extended between the look and the deletion.
        rows: models.QuerySet[Any] = models.QuerySet(self.model, using=self.alias)
        rows.filter(self.condition, pk__in=keys).update(expires_at=F("expires_at"))


def prune_expired(*, now: float | None = None, dry_run: bool = False) -> int:
    """
    Delete what is over, and give the number of rows: expired entries and steps of the ladder whose level is 0.

    `now`: seconds since the epoch, by default the Redis clock. `dry_run`: only count. Raises StoreUnavailable.
    """
    if dry_run:
        when = moment(redis_now() if now is None else now)
        return sum(over.size() for over in _all_over(when))
    return sum(prune_batches(now=now))


def prune_batches(*, now: float | None = None) -> Iterator[int]:
    """Do what `prune_expired` does, and give the number of rows after each transaction."""
    now_s = redis_now() if now is None else now
    for over in _all_over(moment(now_s)):
        yield from over.delete_batches()
    _forget_offences(now_s)


def _all_over(when: datetime) -> Iterator[Over]:
    expired = Q(expires_at__lte=when)
    for alias in aliases():
        yield Over(AllowlistEntry, alias, expired)
        yield Over(BlacklistEntry, alias, expired & (~Q(source=Origin.PROMOTED) | Q(policy=None)))
        for policy in PromotionPolicy.objects.using(alias).order_by("pk"):
            for decayed in _decayed(policy, alias, when):
                yield Over(BlacklistEntry, alias, decayed)


def _decayed(policy: PromotionPolicy, alias: str, when: datetime) -> Iterator[Q]:
    """Give a condition for each level: a ban of level 3 is forgotten three decay periods after its end."""
    ladder = Q(policy=policy, source=Origin.PROMOTED)
    ended = BlacklistEntry.objects.using(alias).filter(ladder, expires_at__lte=when)
    for level in ended.order_by().values_list("level", flat=True).distinct():
        seconds = level * policy.decay_period
        if seconds < when.timestamp():
            yield ladder & Q(level=level, expires_at__lte=when - timedelta(seconds=seconds))


def _forget_offences(now_s: float) -> None:
    """Drop the offences that no policy counts any more of those who never stop, and so never expire as a whole."""
    longest = DEFAULT_OFFENCE_TTL
    for alias in aliases():
        periods = PromotionPolicy.objects.using(alias).order_by()
        longest = max(longest, periods.aggregate(longest=Max("find_period"))["longest"] or 0)
    before_s = int(now_s) - longest
    for identity in offences.offenders(before_s):
        offences.forget(identity, before_s)
