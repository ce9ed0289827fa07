"""Compare the database with Redis and repair Redis, for cron or by hand."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

from ratelimit_app import publishing
from ratelimit_app.core.calls import StoreUnavailable

if TYPE_CHECKING:
    import argparse

FINDING = 1


class Command(BaseCommand):
    """Run one sync."""

    help = (
        "Compare rules and lists with what Redis has, and repair what differs, as the Celery task does every 30 s. "
        "Exit status: 0 Redis says what the database says, 1 --check found a difference or Redis does not answer, "
        "2 misuse."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--check", "--dry-run", action="store_true", help="compare only, write nothing")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        """Compare, repair and report."""
        try:
            report = publishing.sync(check=options["check"])
        except StoreUnavailable as error:
            message = f"Redis does not answer ({error}): nothing was compared. The next sync does it."
            raise CommandError(message, returncode=FINDING) from error
        self.stdout.write(json.dumps(report.to_dict(), indent=2) if options["json"] else _text(report))
        if options["check"] and report.has_drifted:
            sys.exit(FINDING)


def _text(report: publishing.Report) -> str:
    if not report.has_drifted:
        return f"Redis says what the database says: {report.bans} bans, version {report.version or 'none'}."
    rules = "differ" if report.snapshot_differs else "agree"
    bans = f"{report.missing} missing, {report.stale} stale, {report.wrong} with another end"
    ending = "Repaired" if report.repaired else "Nothing was written"
    return f"Rules and allowlist {rules}. Bans: {bans}. {ending}; version {report.version or 'none'}."
