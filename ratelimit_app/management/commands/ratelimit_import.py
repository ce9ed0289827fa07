"""Take over a list of others: plain, netset, CSV, JSON, CrowdSec's decisions."""

from __future__ import annotations

import gzip
import io
import json
import sys
import zlib
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError
from django.utils import timezone

from ratelimit_app import importing, lists
from ratelimit_app.core import feeds
from ratelimit_app.core.entries import canonical_kind
from ratelimit_app.core.feeds.records import read_date
from ratelimit_app.core.identity import IdentityError
from ratelimit_app.core.rates import RateError, parse_rate
from ratelimit_app.models import AllowlistEntry, BlacklistEntry

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from datetime import datetime

FINDING, MISUSE, INTERRUPTED = 1, 2, 130
STDIN = "-"
MODELS: dict[str, Any] = {"blacklist": BlacklistEntry, "allowlist": AllowlistEntry}
_GZIP = b"\x1f\x8b"


class Misuse(CommandError):
    """Something that the caller must change: exit status 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message, returncode=MISUSE)


class Command(BaseCommand):
    """Import one list."""

    help = (
        "Bring a list into the blacklist or the allowlist as imported entries, in one transaction, and to Redis. "
        "Exit status: 0 done, 1 something was refused or Redis has not followed yet, 2 misuse, or a file that cannot "
        "be read to its end: then nothing was imported."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("file", metavar="FILE", help="a list, plain or .gz, or - for the standard input")
        parser.add_argument(
            "--format",
            choices=feeds.FORMATS,
            default="auto",
            help="form of the list (default: what it looks like)",
        )
        parser.add_argument(
            "--kind", default="ip", help="kind of values that do not say theirs (default: ip)"
        )
        parser.add_argument("--list", choices=sorted(MODELS), default="blacklist", help="default: blacklist")
        parser.add_argument(
            "--expires",
            metavar="WHEN",
            help="end of entries that do not say theirs: a period such as 10m, 2h, 7d, or an ISO date (default: never)",
        )
        parser.add_argument(
            "--reason", help="why, for entries that do not say it (default: imported from FILE)"
        )
        parser.add_argument(
            "--replace", action="store_true", help="remove imported entries that are not in the list"
        )
        parser.add_argument("--force", action="store_true", help="take even what would break the site")
        parser.add_argument("--dry-run", action="store_true", help="say what would be done, write nothing")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        """Read, import, publish, report."""
        now = timezone.now()
        terms = _terms(options, now)
        kind = _kind(options["kind"], terms.model)
        with ExitStack() as stack:
            source = _Source(options["file"], stack)
            report = self._import(source, feeds.Terms(kind, now), terms, options)
        self._show_progress("")
        self.stdout.write(
            json.dumps(report.to_dict(), indent=2) if options["json"] else "\n".join(_lines(report))
        )
        if report.is_finding:
            sys.exit(FINDING)

    def _import(
        self, source: _Source, said: feeds.Terms, terms: importing.Terms, options: dict[str, Any]
    ) -> importing.Report:
        step = ""

        def progress(name: str, count: int) -> None:
            nonlocal step
            step = name
            self._show_progress(f"{source.part_read() if name == importing.READ else ''}{count:,} {name}")

        try:
            _, rows = feeds.read(source.text, said, options["format"])
            return importing.import_rows(rows, terms, dry_run=options["dry_run"], progress=progress)
        except KeyboardInterrupt:
            self._show_progress("")
            if step == importing.PUBLISH:
                message = "Interrupted: the list is saved, and the next sync brings the rest of it to Redis."
                raise CommandError(message, returncode=FINDING) from None
            message = "Interrupted: nothing was imported."
            raise CommandError(message, returncode=INTERRUPTED) from None
        except DatabaseError as error:
            message = (
                f"Nothing was imported: the database refuses ({error}). Try again when it can be written to."
            )
            raise CommandError(message, returncode=FINDING) from error
        except importing.NothingToKeep as error:
            message = f"Nothing was imported: {error}. Give --force if you mean it."
            raise Misuse(message) from error
        except (feeds.Broken, importing.UnsupportedDatabase, OSError, EOFError, zlib.error) as error:
            message = f"Nothing was imported: {options['file']!r} cannot be read to its end ({error})."
            if isinstance(error, feeds.Broken | importing.UnsupportedDatabase):
                message = f"Nothing was imported: {error}"
            raise Misuse(message) from error

    def _show_progress(self, text: str) -> None:
        if self.stderr.isatty():
            self.stderr.write(f"\r{text:<60}\r", str, ending="")
            self.stderr.flush()


class _Source:
    """A list as text, unpacked where it is packed."""

    def __init__(self, name: str, stack: ExitStack) -> None:
        self._raw, self._size = _open(name, stack)
        packed = io.BufferedReader(self._raw) if isinstance(self._raw, io.RawIOBase) else self._raw
        if packed.peek(2)[:2] == _GZIP:  # type: ignore[attr-defined]
            packed = stack.enter_context(gzip.GzipFile(fileobj=packed))  # type: ignore[assignment]
        # What is no UTF-8 is replaced: such a row is refused, the others count.
        self.text = io.TextIOWrapper(packed, encoding="utf-8-sig", errors="replace")
        stack.callback(self.text.detach)

    def part_read(self) -> str:
        """Tell how much of the file was read, where that is known."""
        return f"{min(self._raw.tell() * 100 // self._size, 100)} %, " if self._size else ""


def _open(name: str, stack: ExitStack) -> tuple[BinaryIO, int]:
    if name == STDIN:
        return sys.stdin.buffer, 0
    try:
        path = Path(name)
        return stack.enter_context(path.open("rb")), path.stat().st_size
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        message = f"{name!r} cannot be read ({why}): give the path of a list, or - for the standard input."
        raise Misuse(message) from error


def _terms(options: dict[str, Any], now: datetime) -> importing.Terms:
    name = "the standard input" if options["file"] == STDIN else Path(options["file"]).name
    reason = f"imported from {name}" if options["reason"] is None else options["reason"]
    return importing.Terms(
        model=MODELS[options["list"]],
        now=now,
        reason=reason,
        expires_at=_end(options["expires"], now),
        force=options["force"],
        replace=options["replace"],
    )


def _kind(text: str, model: Any) -> str:
    try:
        return canonical_kind(text, model.listable)
    except IdentityError as error:
        raise Misuse(str(error)) from error


def _end(text: str | None, now: datetime) -> datetime | None:
    if text is None:
        return None
    end = _after(text, now) or _date(text)
    if end is None or end <= now:
        message = (
            f"--expires {text!r}: expected a period such as 10m, 2h or 7d, or an ISO date in the future."
        )
        raise Misuse(message)
    return end


def _after(text: str, now: datetime) -> datetime | None:
    try:
        period = parse_rate(f"1/{text}").period
        lists.check_period(period)
    except (RateError, ValueError):
        return None
    return now + timedelta(seconds=period)


def _date(text: str) -> datetime | None:
    try:
        return read_date(text)
    except ValueError:
        return None


def _lines(report: importing.Report) -> Iterator[str]:
    done = "would be" if report.dry_run else "were"
    yield (
        f"{report.name}: {report.created:,} entries {done} made, {report.updated:,} changed, "
        f"{report.removed:,} removed; {report.unchanged:,} are as they were."
    )
    if report.repeated:
        yield f"{report.repeated:,} rows named somebody whom another row names: the longest counts."
    for why, count in report.left_out.most_common():
        yield f"{count:,} left out: {why}."
    for why, count in report.refused.most_common():
        yield f"{count:,} refused: {why}."
    for row in report.samples:
        yield f"  line {row.line:,}: {row.text!r} {row.why}"
    if report.dry_run:
        yield "Nothing was written."
    elif report.published is False:
        yield "Redis has not followed yet: the next sync publishes the rest."
