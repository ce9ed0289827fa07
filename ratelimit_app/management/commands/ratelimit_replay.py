"""Replay access logs through a rule: who would have been denied, how often, when first."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError
from django.http import HttpRequest

from ratelimit_app import models
from ratelimit_app.conf import conf
from ratelimit_app.core.access_log import Unreadable, read_lines
from ratelimit_app.core.algorithms import ALGORITHMS
from ratelimit_app.core.matching import canonical_path
from ratelimit_app.core.replay import Identifier, Recording, judge
from ratelimit_app.core.replay_report import as_data, as_text
from ratelimit_app.core.rules import Rule, parse_methods, rule_from_dict
from ratelimit_app.core.snapshot import Snapshot
from ratelimit_app.routing import route_of

if TYPE_CHECKING:
    from io import BufferedReader

    from django.core.management.base import OutputWrapper

    from ratelimit_app.core.access_log import Entry

FINDING, MISUSE = 1, 2
STDIN = "-"
PROGRESS_EVERY = 20_000
RULE_FIELDS = ("name", "rate", "key", "route", "methods", "algorithm", "cost", "scope")


class Misuse(CommandError):
    """Something that the caller must change: exit status 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message, returncode=MISUSE)


@dataclass(frozen=True, slots=True)
class Coverage:
    """
    Tell which lines are judged: those of the options, and of an admin rule's route and methods.

    Without any of them every line is, even one that asked for garbage; with one, only what is an HTTP request.
    """

    methods: frozenset[str]
    prefix: str
    rule: Rule | None
    snapshot: Snapshot

    def __call__(self, entry: Entry) -> bool:
        """Whether this line is judged."""
        if entry.method is None or entry.path is None:
            return not (self.methods or self.prefix or self.rule)
        if self.methods and entry.method not in self.methods:
            return False
        path = canonical_path(entry.path)
        if self.prefix and not (path.startswith(self.prefix) or path + "/" == self.prefix):
            return False
        return self.rule is None or self._meets(entry.path, entry.method)

    def _meets(self, path: str, method: str) -> bool:
        """Ask the project's URLs and the doors' own matching; a scope is in no log, and left aside."""
        request = HttpRequest()
        request.path = request.path_info = path
        matcher = self.snapshot.matcher
        return bool(matcher.select(matcher.place(route_of(request)), method, scope="", scopeless=True))


class Command(BaseCommand):
    """Judge recorded requests by the reference algorithm."""

    help = (
        "Replay access logs (common or combined format, plain or gzip, lines in any order) through a rule or a rate, "
        "and say who would have been denied. Changes nothing, and asks no Redis. "
        "Exit status: 0 nobody would have been denied, 1 somebody would, 2 misuse."
    )
    # A replay depends on none of what the checks look at, and its exit status has a meaning of its own.
    requires_system_checks = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("log", nargs="+", metavar="LOG", help="access log, or - for the standard input")
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument(
            "--rule", metavar="NAME", help="take rate, key, route, methods, algorithm of this rule"
        )
        what.add_argument("--rate", help="such as 30/m, or several as '10/s; 100/m'")
        parser.add_argument(
            "--key", help="with --rate: who is counted, such as ip (default), user+ip, global"
        )
        parser.add_argument(
            "--algorithm", choices=sorted(ALGORITHMS), help="with --rate (default: sliding_window)"
        )
        parser.add_argument(
            "--path-prefix", default="", metavar="P", help="judge only requests below this path"
        )
        parser.add_argument("--method", default="", metavar="M", help="judge only these methods (comma list)")
        parser.add_argument(
            "--top", type=_whole(1, 10**9), metavar="N", help="how many offenders and windows to show"
        )
        parser.add_argument("--ipv4-prefix", type=_whole(1, 32), metavar="N", help="instead of the setting")
        parser.add_argument("--ipv6-prefix", type=_whole(1, 128), metavar="N", help="instead of the setting")
        parser.add_argument(
            "--json", action="store_true", help="print JSON, with all offenders unless --top is given"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Read the logs, judge them, print the report."""
        try:
            rule = _rule(options)
            recording = Recording(_identifier(rule, options), _coverage(rule, options))
        except ValueError as error:
            raise Misuse(str(error)) from error
        self._read(options["log"], recording)
        judgement = judge(recording, rule.rates, algorithm=rule.algorithm, cost=rule.cost, burst=rule.burst)
        self._note(rule, recording)
        if options["json"]:
            text = json.dumps(as_data(rule, recording, judgement, top=options["top"]), indent=2)
        else:
            text = as_text(rule, recording, judgement, logs=options["log"], top=options["top"])
        self.stdout.write(_encodable(text, self.stdout))
        if judgement.denied:
            sys.exit(FINDING)

    def _read(self, names: list[str], recording: Recording) -> None:
        with ExitStack() as stack:
            # All are opened first: a name that is wrong is told before hours of reading.
            for name, stream in [(name, _open(name, stack)) for name in names]:
                try:
                    self._record(name, stream, recording)
                except OSError as error:
                    raise _unreadable(name, error) from error
        self._show_progress("")

    def _record(self, name: str, stream: BufferedReader, recording: Recording) -> None:
        for line in read_lines(stream):
            recording.add(line)
            if line is Unreadable.DAMAGED:
                self._warn(
                    f"{name!r}: the compressed data is damaged; what came before was read. Fetch it anew."
                )
            if not recording.lines % PROGRESS_EVERY:
                self._show_progress(f"{recording.lines:,} lines read")

    def _note(self, rule: Rule, recording: Recording) -> None:
        if rule.scope:
            self._warn(f"the scope {rule.scope!r} is set in code, not in a log: it narrowed nothing.")
        if recording.lines and not recording.requests:
            self._warn(
                f"nothing was judged: {recording.broken:,} lines are in neither common nor combined format, "
                f"{recording.unmatched:,} are not covered. Check the log's format, the route and the methods."
            )

    def _warn(self, text: str) -> None:
        self._show_progress("")
        self.stderr.write(_encodable(f"Note: {text}", self.stderr), self.style.WARNING)

    def _show_progress(self, text: str) -> None:
        if self.stderr.isatty():
            self.stderr.write(f"\r{text:<40}\r", str, ending="")
            self.stderr.flush()


def _whole(low: int, high: int) -> Any:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and low <= int(text[:12]) <= high):
            message = f"{text!r} is not a whole number from {low:,} to {high:,}"
            raise argparse.ArgumentTypeError(message)
        return int(text)

    return read


def _open(name: str, stack: ExitStack) -> BufferedReader:
    if name == STDIN:
        return sys.stdin.buffer  # type: ignore[return-value]
    try:
        return stack.enter_context(Path(name).open("rb"))
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> Misuse:
    why = getattr(error, "strerror", None) or error
    return Misuse(
        f"{name!r} cannot be read ({why}): give the path of an access log, or - for the standard input."
    )


def _rule(options: dict[str, Any]) -> Rule:
    """Make the rule that is asked for. Raises ValueError."""
    if options["rule"] is None:
        fields = {"key": options["key"] or "ip", "algorithm": options["algorithm"] or "sliding_window"}
        return rule_from_dict({"name": "", "rate": options["rate"]} | fields)
    for option in ("key", "algorithm"):
        if options[option]:
            message = f"--{option} goes with --rate: the rule {options['rule']!r} has its own. Leave one of them out."
            raise Misuse(message)
    row = _row(options["rule"])
    return rule_from_dict({field: getattr(row, field) for field in RULE_FIELDS})


def _row(name: str) -> models.Rule:
    try:
        row: models.Rule | None = models.Rule.objects.filter(name=name).first()
        names = [] if row else list(models.Rule.objects.order_by("name").values_list("name", flat=True)[:20])
    except DatabaseError as error:
        message = f"The rules cannot be read ({error}): run migrate, or use --rate and --key."
        raise Misuse(message) from error
    if row is None:
        known = ", ".join(map(repr, names)) or "there is none yet"
        message = f"No rule is named {name!r} (rules: {known}). Give one of these, or use --rate and --key."
        raise Misuse(message)
    return row


def _identifier(rule: Rule, options: dict[str, Any]) -> Identifier:
    prefixes = (options["ipv4_prefix"] or conf.ipv4_prefix, options["ipv6_prefix"] or conf.ipv6_prefix)
    return Identifier(rule.sources, conf.key_secret, *prefixes)


def _coverage(rule: Rule, options: dict[str, Any]) -> Coverage:
    prefix = options["path_prefix"]
    if prefix and not prefix.startswith("/"):
        message = f"--path-prefix {prefix!r} is not a path prefix: expected one that begins with '/'."
        raise Misuse(message)
    return Coverage(
        parse_methods(options["method"]),
        canonical_path(prefix) if prefix else "",
        rule if rule.name else None,
        Snapshot(rules=(replace(rule, scope=""),)),
    )


def _encodable(text: str, stream: OutputWrapper) -> str:
    """Escape what the stream's encoding does not have, so that no name in a log ends the report."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
