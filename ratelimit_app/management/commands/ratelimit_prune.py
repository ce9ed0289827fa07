"""Delete entries that are over, for cron or by hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

from ratelimit_app import promotion
from ratelimit_app.core.calls import StoreUnavailable

if TYPE_CHECKING:
    import argparse

FINDING = 1


class Command(BaseCommand):
    """Prune once."""

    help = (
        "Delete expired entries of both lists, and promoted ones whose level has fallen to 0, as the Celery task does "
        "every hour. Exit status: 0 done, 1 Redis does not answer, 2 misuse."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--dry-run", action="store_true", help="count them, delete nothing")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        """Prune and report."""
        dry_run: bool = options["dry_run"]
        try:
            count = promotion.prune_expired(dry_run=True) if dry_run else self._prune()
        except StoreUnavailable as error:
            message = f"Redis does not answer ({error}): try again, what was deleted so far stays deleted."
            raise CommandError(message, returncode=FINDING) from error
        if options["json"]:
            self.stdout.write(json.dumps({"pruned": count, "dry_run": dry_run}))
        else:
            self.stdout.write(f"{count} entries {'would be' if dry_run else 'were'} deleted.")

    def _prune(self) -> int:
        total = 0
        for deleted in promotion.prune_batches():
            total += deleted
            self._show_progress(f"{total:,} entries deleted")
        self._show_progress("")
        return total

    def _show_progress(self, text: str) -> None:
        if self.stderr.isatty():
            self.stderr.write(f"\r{text:<40}\r", str, ending="")
            self.stderr.flush()
