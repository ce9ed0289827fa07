"""Tell how an installation is, from the shell: what is likely wrong, and how much it can carry."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from django.core.checks import Tags, run_checks
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from ratelimit_app import capacity
from ratelimit_app.conf import conf
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.core.capacity import Load, as_data, as_text
from ratelimit_app.store.processes import processes

if TYPE_CHECKING:
    from collections.abc import Iterator

FINDING, MISUSE = 1, 2
SERVER = "ratelimit_app.server"  # the tag of checks that ask Redis
OF_CLUSTER = "ratelimit_app.E030"
MAX_RULES = 20
DEFAULT = Load(users=100_000, rps=10_000, rules=3)


class Command(BaseCommand):
    """Look for the usual mistakes, or measure the configured Redis."""

    help = (
        "Look for the usual mistakes: in the settings, in the rules, and in what the running processes have seen. "
        "With --capacity: measure for two seconds what a decision costs here, with temporary keys, and work out what "
        "a sale needs. Exit status: 0 nothing found or measured, 1 a finding, or Redis does not answer, 2 misuse."
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
        """Look or measure, and report."""
        if not options["capacity"]:
            if any(options[name] for name in ("users", "rps", "rules")):
                message = "--users, --rps and --rules say what a sale needs: give --capacity too."
                raise CommandError(message, returncode=MISUSE)
            self._look(as_json=options["json"])
            return
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

    def _look(self, *, as_json: bool) -> None:
        """Print what is likely wrong; exit with 1 when something is."""
        found = list(_findings())
        if as_json:
            self.stdout.write(json.dumps({"findings": [finding._asdict() for finding in found]}, indent=2))
        elif found:
            self.stdout.write("\n".join(f"{one.id}: {one.message}\n    {one.hint}" for one in found))
        else:
            self.stdout.write("Nothing found.")
        if found:
            sys.exit(FINDING)


class Finding(NamedTuple):
    """One thing that is likely wrong, and what to do about it."""

    id: str
    message: str
    hint: str


def _findings() -> Iterator[Finding]:
    """Give what the system checks say of us, and then what the processes have seen."""
    said = run_checks(tags=[Tags.security, Tags.database], databases=list(connections))
    said += run_checks(tags=[SERVER], include_deployment_checks=True)
    for message in said:
        if str(message.id).startswith("ratelimit_app."):
            yield Finding(str(message.id), message.msg, message.hint or "")
    try:
        running = [] if any(message.id == OF_CLUSTER for message in said) else processes()
    except StoreUnavailable as error:
        yield Finding(
            "redis",
            f"Redis does not answer: {str(error).rstrip('.')}.",
            "See the cache alias that RATELIMIT_APP['CACHE'] names.",
        )
        return
    seen: dict[str, list[str]] = {}
    for process in running:
        if process.unlisted:
            seen.setdefault(process.unlisted, []).append(f"{process.host}:{process.pid}")
    for peer, names in sorted(seen.items()):
        yield Finding(
            "proxy",
            f"A forwarding header arrives from the private address {peer}, which is not in"
            f" RATELIMIT_APP['TRUSTED_PROXIES'] (seen by {', '.join(names)}).",
            "If it is your proxy, list it: until then all its clients share one limit.",
        )


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
