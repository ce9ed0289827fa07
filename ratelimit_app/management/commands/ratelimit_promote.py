"""Promote repeat offenders, for cron or by hand."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

from ratelimit_app import promotion
from ratelimit_app.core.calls import StoreUnavailable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

FINDING = 1


class Command(BaseCommand):
    """Run the promotion once."""

    help = (
        "Ban those who reached the threshold of an enabled promotion policy, as the Celery task does every 10 s. "
        "Exit status: 0 done, 1 a policy stopped at max_blocks_per_run or Redis does not answer, 2 misuse."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--dry-run", action="store_true", help="say who would be banned, write nothing")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run and report."""
        try:
            report = promotion.promote_repeat_offenders(dry_run=True if options["dry_run"] else None)
        except StoreUnavailable as error:
            message = (
                f"Redis does not answer ({error}): nobody was promoted. The next run does what this one left."
            )
            raise CommandError(message, returncode=FINDING) from error
        if options["json"]:
            self.stdout.write(json.dumps(report.as_dict(), indent=2))
        else:
            self.stdout.write("\n".join(_lines(report)))
        if report.capped:
            sys.exit(FINDING)


def _lines(report: promotion.PromotionReport) -> Iterator[str]:
    if report.busy:
        yield "Another run is at work, or has just done it: nothing to do."
        return
    for item in report.promoted:
        verb = "would be banned" if item.dry_run else "banned"
        yield f"{item.identity} {verb} until {item.expires_at:%Y-%m-%d %H:%M:%S} UTC, level {item.level}. {item.reason}"
    for skipped in report.skipped:
        yield f"{skipped.identity} is never banned ({skipped.reason}). Policy {skipped.policy}"
    yield from (capped.message for capped in report.capped)
    written = sum(not item.dry_run for item in report.promoted)
    yield f"{written} promoted, {len(report.promoted) - written} only found, {len(report.skipped)} spared."
