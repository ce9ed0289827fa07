"""Write a list to a file: whole, to be imported again, or as addresses for the edge."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from ratelimit_app import exporting
from ratelimit_app.core.feeds.writing import EDGE, SET_NAME

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

FINDING, MISUSE, INTERRUPTED = 1, 2, 130
STDOUT = "-"


class Command(BaseCommand):
    """Export one list."""

    help = (
        "Write what is active on the blacklist or the allowlist. csv and json hold everything and can be imported "
        "again; plain, nginx (deny), nginx-geo, haproxy (map), ipset (restore) and nftables (nft -f) hold addresses "
        "alone, less what the allowlist lets pass. The file appears whole or not at all. "
        "Exit status: 0 written, 1 an entry could not be read, 2 misuse, or a file that cannot be written."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--format", required=True, choices=exporting.FORMATS, help="form of the file")
        parser.add_argument("--output", default=STDOUT, metavar="FILE", help="default: the standard output")
        parser.add_argument(
            "--list", choices=sorted(exporting.LISTS), default="blacklist", help="default: blacklist"
        )
        parser.add_argument(
            "--set-name",
            default="ratelimit",
            help="first part of the names of sets and table (default: ratelimit)",
        )
        parser.add_argument("--json", action="store_true", help="report as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        """Write, and report: on the standard error where the list itself goes to the standard output."""
        if not SET_NAME.fullmatch(options["set_name"]):
            message = (
                f"--set-name {options['set_name']!r}: expected a letter, and up to 20 letters, digits and _."
            )
            raise CommandError(message, returncode=MISUSE)
        report = self._export(options)
        self._show_progress("")
        text = json.dumps(report.as_dict(), indent=2) if options["json"] else "\n".join(_lines(report))
        (self.stderr if options["output"] == STDOUT else self.stdout).write(text, str)
        if report.unreadable:
            sys.exit(FINDING)

    def _export(self, options: dict[str, Any]) -> exporting.Report:
        name = options["output"]
        try:
            with nullcontext() if name == STDOUT else exporting.replacing(Path(name)) as file:
                return exporting.export(
                    partial(self.stdout.write, style_func=str, ending="") if file is None else file.write,
                    options["format"],
                    options["list"],
                    set_name=options["set_name"],
                    progress=lambda count: self._show_progress(f"{count:,} written"),
                )
        except KeyboardInterrupt:
            self._show_progress("")
            message = "Interrupted: the file is as it was."
            raise CommandError(message, returncode=INTERRUPTED) from None
        except BrokenPipeError:
            message = "Whoever reads the standard output has gone: the list is not whole."
            raise CommandError(message, returncode=MISUSE) from None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            message = f"{name!r} cannot be written: {why} The file is as it was."
            raise CommandError(message, returncode=MISUSE) from error
        except DatabaseError as error:
            message = f"The list cannot be read ({error}); the file is as it was."
            raise CommandError(message, returncode=FINDING) from error

    def _show_progress(self, text: str) -> None:
        if self.stderr.isatty():
            self.stderr.write(f"\r{text:<40}\r", str, ending="")
            self.stderr.flush()


def _lines(report: exporting.Report) -> Iterator[str]:
    one, more = ("network", "networks") if report.form in EDGE else ("entry", "entries")
    what = one if report.written == 1 else more
    until = f"until {report.holds_until.isoformat()}" if report.holds_until else "until the list is edited"
    yield f"{report.name}: {report.written:,} {what} written as {report.form}; it holds {until}."
    if report.spared:
        yield f"{report.spared:,} hold addresses on the allowlist, which are left out."
    for kind, count in report.left_out.most_common():
        yield f"{count:,} of the kind {kind} are left out: {report.form} holds addresses alone."
    if report.unreadable:
        yield f"{report.unreadable:,} cannot be read as addresses: ratelimit_sync says which."
