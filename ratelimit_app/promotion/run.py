"""One run of the promotion, from the offences to the announced ban."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ratelimit_app.promotion.announcing import announce_pending
from ratelimit_app.promotion.banning import Judgement
from ratelimit_app.promotion.candidates import aliases, collect
from ratelimit_app.promotion.clock import moment, redis_now
from ratelimit_app.promotion.report import PromotionReport
from ratelimit_app.promotion.sparing import NeverPromoted
from ratelimit_app.store.turns import turn

if TYPE_CHECKING:
    from collections.abc import Callable


def promote_repeat_offenders(*, dry_run: bool | None = None, now: float | None = None) -> PromotionReport:
    """
    Ban those who reached the threshold of a policy, and finish what a killed run has left.

    Safe to run twice, late, or in several processes at once: the same offences give one entry and one signal.
    `dry_run`: None does as each policy says; True writes nothing; False writes even where the policy rehearses.
    `now`: seconds since the epoch, by default the Redis clock. Raises StoreUnavailable.
    """
    if dry_run:
        return _promote(now, True, lambda: None)
    with turn("promotion") as mine:
        if mine is None:
            return PromotionReport(busy=True)
        report = _promote(now, dry_run, mine.renew)
        return replace(report, announced=announce_pending(aliases(), mine.renew))


def _promote(now: float | None, dry_run: bool | None, renew: Callable[[], None]) -> PromotionReport:
    now_s = redis_now() if now is None else now
    databases = aliases()
    never = NeverPromoted(databases, moment(now_s))
    reports = []
    for candidates in collect(databases, now_s, renew):
        renew()
        rehearses = candidates.policy.dry_run if dry_run is None else dry_run
        reports.append(Judgement(candidates, never, now_s=now_s, dry_run=rehearses).run())
    return PromotionReport(
        promoted=tuple(item for report in reports for item in report.promoted),
        skipped=tuple(item for report in reports for item in report.skipped),
        capped=tuple(item for report in reports for item in report.capped),
        dry_run=bool(dry_run),
    )
