"""Tell how an installation is, from the shell: for now, how much it can carry."""

from __future__ import annotations

import argparse
import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ratelimit_app import capacity
from ratelimit_app.conf import conf
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.core.capacity import Load, as_data, as_text

FINDING, MISUSE = 1, 2
MAX_RULES = 20
DEFAULT = Load(users=100_000, rps=10_000, rules=3)


class Command(BaseCommand):
    """Measure the configured Redis."""

    help = (
        "With --capacity: measure for two seconds what a decision costs here, with temporary keys, and work out what "
        "a sale needs. Exit status: 0 measured, 1 Redis does not answer, 2 misuse."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--capacity",
            action="store_true",
            help="how many Redis primaries, processes and bytes a sale needs",
        )
        parser.add_argument("--users", type=_positive, help=f"users of the sale ({DEFAULT.users:,})")
        parser.add_argument("--rps", type=_positive, help=f"decisions a second ({DEFAULT.rps:,})")
        parser.add_argument("--rules", type=_positive, help=f"rules that decide a request ({DEFAULT.rules})")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        """Measure and report."""
        if not options["capacity"]:
            message = "Nothing was asked. ratelimit_doctor can say what a sale needs: give --capacity."
            raise CommandError(message, returncode=MISUSE)
        load = _load(options)
        try:
            costs = capacity.measure(load.rules)
        except StoreUnavailable as error:
            message = (
                f"Redis does not answer, or does not let itself be measured ({error}): nothing is known."
            )
            raise CommandError(message, returncode=FINDING) from error
        report = json.dumps(as_data(costs, load), indent=2) if options["json"] else as_text(costs, load)
        self.stdout.write(report)


def _load(options: dict[str, Any]) -> Load:
    load = Load(**{name: options[name] or getattr(DEFAULT, name) for name in ("users", "rps", "rules")})
    if load.rules > MAX_RULES:
        message = f"--rules {load.rules}: expected 1 to {MAX_RULES}, the rules that meet in one request."
        raise CommandError(message, returncode=MISUSE)
    if not conf.enabled:
        message = "RATELIMIT_APP['ENABLED'] is False: no decision is made here. Measure where it is True."
        raise CommandError(message, returncode=MISUSE)
    return load


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        message = f"{text!r}: expected a whole number from 1"
        raise argparse.ArgumentTypeError(message)
    return int(text)
