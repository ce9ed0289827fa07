"""Tell all that is known of one identity."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from ratelimit_app.explaining import explain

if TYPE_CHECKING:
    import argparse

FINDING, MISUSE = 1, 2


class Command(BaseCommand):
    """Explain one identity."""

    help = (
        "Which rules count an identity, what their windows hold and when they open, list entries, offences, level, "
        "bans and their reasons. It charges nothing. Exit status: 0 told, 1 Redis or the database does not answer, "
        "2 misuse."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "identity", metavar="IDENTITY", help="such as ip:203.0.113.9, user:42 or user:42+ip:…"
        )
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        """Look, and tell."""
        try:
            found = explain(options["identity"])
        except ValueError as error:
            raise CommandError(str(error), returncode=MISUSE) from error
        except DatabaseError as error:
            message = f"The database does not answer ({error}): nothing can be told."
            raise CommandError(message, returncode=FINDING) from error
        self.stdout.write(json.dumps(found.as_dict(), indent=2) if options["json"] else str(found))
        if found.unknown:
            sys.exit(FINDING)
