"""Turn an identity away, from the shell."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

from ratelimit_app import lists, publishing
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.core.rates import RateError, parse_rate

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

FINDING, MISUSE = 1, 2


class Command(BaseCommand):
    """Block one identity."""

    help = (
        "Blacklist an identity such as ip:203.0.113.0/24, user:42 or header:x-api-key:<value>; a ban that there is "
        "is extended. Exit status: 0 done, 1 saved but not yet in Redis, 2 misuse."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("identity", help="kind:value; a secret value is stored as a digest")
        parser.add_argument("--reason", default="blocked by command", help="why, for whoever reads the list")
        parser.add_argument(
            "--period", help="how long: seconds, or such as 10m, 2h, 1 day; for ever without it"
        )
        parser.add_argument("--force", action="store_true", help="block even what would break the site")
        parser.add_argument("--dry-run", action="store_true", help="say what would be done, write nothing")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        """Block and report."""
        period = _seconds(options["period"])
        try:
            lists.check_period(period)
            kind, value = lists.read_identity(options["identity"])
        except ValueError as error:
            raise CommandError(str(error), returncode=MISUSE) from error
        danger = lists.danger(kind, value)
        if danger and not options["force"]:
            message = f"{kind}:{value} is not blocked: {danger}. Give --force if you mean it."
            raise CommandError(message, returncode=MISUSE)
        report: dict[str, Any] = {"identity": f"{kind}:{value}", "period": period, "danger": danger}
        report |= {"dry_run": options["dry_run"], "expires_at": None, "published": False}
        report["allowlisted"] = lists.allowing(kind, value)
        if not options["dry_run"]:
            entry = lists.block(report["identity"], reason=options["reason"], period=period)
            expires_at = entry.expires_at.isoformat() if entry.expires_at else None
            report |= {"expires_at": expires_at, "published": _is_published(report["identity"])}
        self.stdout.write(json.dumps(report, indent=2) if options["json"] else "\n".join(_lines(report)))
        if not options["dry_run"] and not report["published"]:
            sys.exit(FINDING)


def _is_published(identity: str) -> bool:
    try:
        return publishing.read_bans([identity])[identity] != publishing.NO_BAN
    except StoreUnavailable:
        return False


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return int(text) if text.isascii() and text.isdigit() else parse_rate(f"1/{text}").period
    except RateError as error:
        message = (
            f"{text!r} is not a period: expected seconds, or a number and a unit such as 10m, 2h or 1 day."
        )
        raise CommandError(message, returncode=MISUSE) from error


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield _text(report)
    for name in report["allowlisted"]:
        yield f"It passes all the same: {name} is on the allowlist."


def _text(report: dict[str, Any]) -> str:
    if report["dry_run"]:
        how_long = f"for {report['period']:g} s" if report["period"] else "for ever"
        return f"{report['identity']} would be blocked {how_long}. Nothing was written."
    until = f"until {report['expires_at']}" if report["expires_at"] else "for ever"
    if report["published"]:
        return f"{report['identity']} is blocked {until}."
    return (
        f"{report['identity']} is listed {until}, but Redis does not have it yet: the next sync publishes it."
    )
