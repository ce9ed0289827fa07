"""Let an identity in again, from the shell."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

from ratelimit_app import lists, publishing
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.models import BlacklistEntry

if TYPE_CHECKING:
    import argparse

FINDING, MISUSE = 1, 2


class Command(BaseCommand):
    """Unblock one identity."""

    help = (
        "Lift all bans of an identity such as ip:203.0.113.9 or user:42, and forget its offences. "
        "Exit status: 0 it may pass, 1 a banned network still holds it or Redis does not know of it yet, 2 misuse."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("identity", help="kind:value, as the list, the logs and the signals write it")
        parser.add_argument("--dry-run", action="store_true", help="say what would be done, write nothing")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        """Unblock and report."""
        try:
            kind, value = lists.read_identity(options["identity"])
        except ValueError as error:
            raise CommandError(str(error), returncode=MISUSE) from error
        identity, dry_run = f"{kind}:{value}", options["dry_run"]
        active = BlacklistEntry.objects.active().filter(kind=kind, value=value)
        ended = active.count() if dry_run else lists.unblock(identity)
        covering = lists.covering(kind, value)
        report: dict[str, Any] = {"identity": identity, "ended": ended, "covering": covering}
        report |= {"dry_run": dry_run, "published": not dry_run and _is_published(identity)}
        self.stdout.write(json.dumps(report, indent=2) if options["json"] else _text(report))
        if covering or not (dry_run or report["published"]):
            sys.exit(FINDING)


def _is_published(identity: str) -> bool:
    try:
        return publishing.read_bans([identity])[identity] == publishing.NO_BAN
    except StoreUnavailable:
        return False


def _text(report: dict[str, Any]) -> str:
    verb = "would be ended" if report["dry_run"] else "ended"
    noun = "entry" if report["ended"] == 1 else "entries"
    lines = [f"{report['identity']}: {report['ended']} {noun} {verb}."]
    if not (report["dry_run"] or report["published"]):
        lines.append(
            "Redis does not know of it yet, and may go on turning it away: the next sync publishes it."
        )
    lines += [f"It stays blocked by {network}: unblock that network too." for network in report["covering"]]
    return "\n".join(lines)
