"""Get the server and every process ready ahead of a sale, and say who is."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

from ratelimit_app import publishing
from ratelimit_app.conf import conf
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.store import warmup
from ratelimit_app.store.processes import Process, processes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

FINDING, MISUSE = 1, 2
CONNECTIONS = 4
SLACK = 2.0
MAX_WAIT = 3_600.0
LOOK_INTERVAL = 0.1
SETTLING = 0.5


@dataclass(frozen=True, slots=True)
class Readiness:
    """The processes beside what they should hold; `token`: of the warm-up, None when none was asked for."""

    version: str
    networks: str
    token: str | None
    found: list[Process]

    def holds(self, process: Process) -> bool:
        """Whether a process has the newest rules, lists and networks."""
        return (process.version, process.networks) == (self.version, self.networks)

    def is_warm(self, process: Process) -> bool:
        """Whether a process has done the warm-up, any one when none was asked for now."""
        return bool(process.warm) if self.token is None else process.warm == self.token

    def lagging(self) -> list[Process]:
        """Give those that do not hold the newest version, or have not warmed up when they were asked to."""
        return [
            process
            for process in self.found
            if not self.holds(process) or (self.token is not None and not self.is_warm(process))
        ]

    def as_dict(self) -> dict[str, Any]:
        """Give it as plain data."""
        return {
            "version": self.version,
            "networks": self.networks,
            "processes": len(self.found),
            "newest": sum(map(self.holds, self.found)),
            "warm": sum(map(self.is_warm, self.found)),
            "lagging": [
                {
                    "host": process.host,
                    "pid": process.pid,
                    "version": process.version,
                    "networks": process.networks,
                    "age": round(process.age, 1),
                    "warm": self.is_warm(process),
                }
                for process in self.lagging()
            ],
        }


class Command(BaseCommand):
    """Warm up once."""

    help = (
        "Publish what the database says, load the scripts, have every process open connections, and say how many "
        "processes there are and how many hold the newest version. "
        "Exit status: 0 all of them do, 1 some lag behind, there are none, or Redis does not answer, 2 misuse."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--connections",
            type=int,
            default=CONNECTIONS,
            metavar="N",
            help=f"idle connections that each process opens, 0 to {warmup.MAX_CONNECTIONS} (default: {CONNECTIONS})",
        )
        parser.add_argument(
            "--wait",
            type=float,
            metavar="SECONDS",
            help="how long to wait for the processes (default: REFRESH_INTERVAL + 2)",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="compare and count, write nothing, wait for nobody"
        )
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        """Warm up and report."""
        wait = conf.refresh_interval + SLACK if options["wait"] is None else options["wait"]
        _check(options["connections"], wait)
        dry_run: bool = options["dry_run"]
        try:
            synced = publishing.sync(check=dry_run)
            scripts = 0 if dry_run else warmup.load_scripts()
            token = None if dry_run else warmup.wish(options["connections"]).token
            ready = _look(None) if dry_run else self._await(token, wait)
        except StoreUnavailable as error:
            message = f"Redis does not answer ({error}): nothing is warm. Mend it, then run this again."
            raise CommandError(message, returncode=FINDING) from error
        report = {"drift": synced.has_drifted, "dry_run": dry_run, "scripts": scripts, **ready.as_dict()}
        self.stdout.write(json.dumps(report, indent=2) if options["json"] else "\n".join(_lines(report)))
        if report["lagging"] or not report["processes"]:
            sys.exit(FINDING)

    def _await(self, token: str | None, wait: float) -> Readiness:
        """Look until every process that there is has warmed up, or the time is over."""
        began = time.monotonic()
        while True:
            ready = _look(token)
            passed = time.monotonic() - began
            left = wait - passed
            # One that has no entry, since Redis has lost it, writes one at its next refresh.
            are_all = ready.found and passed > conf.refresh_interval + SETTLING
            if left <= 0 or (are_all and not ready.lagging()):
                self._show_progress("")
                return ready
            self._show_progress(f"{len(ready.found) - len(ready.lagging())} of {len(ready.found)} ready")
            time.sleep(min(LOOK_INTERVAL, left))

    def _show_progress(self, text: str) -> None:
        if self.stderr.isatty():
            self.stderr.write(f"\r{text:<40}\r", str, ending="")
            self.stderr.flush()


def _check(connections: int, wait: float) -> None:
    message = ""
    if not 0 <= connections <= warmup.MAX_CONNECTIONS:
        message = f"--connections {connections}: expected a number from 0 to {warmup.MAX_CONNECTIONS}."
    if not (math.isfinite(wait) and 0 <= wait <= MAX_WAIT):
        message = f"--wait {wait}: expected seconds from 0 to {MAX_WAIT:g}."
    if message:
        raise CommandError(message, returncode=MISUSE)


def _look(token: str | None) -> Readiness:
    held = publishing.read_snapshot()
    return Readiness(held.version or "", held.networks or "", token, processes())


def _lines(report: dict[str, Any]) -> Iterator[str]:
    if report["dry_run"]:
        agree = "differs from" if report["drift"] else "says"
        yield f"Redis {agree} what the database says. Nothing was written."
    else:
        done = "repaired" if report["drift"] else "as the database says"
        yield f"Rules and lists in Redis: {done}. {report['scripts']} scripts loaded."
    yield (
        f"{report['processes']} processes: {report['newest']} hold version {report['version'] or 'none'}, "
        f"{report['warm']} are warm."
    )
    for one in report["lagging"]:
        yield (
            f"{one['host']}:{one['pid']} lags behind: version {one['version'] or 'none'}, "
            f"{'warm' if one['warm'] else 'not warm'}, heard of {one['age']:g} s ago."
        )
    if not report["processes"]:
        yield "No process of the site has told of itself: each does at its first request. Send them one."
