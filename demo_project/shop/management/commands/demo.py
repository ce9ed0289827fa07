from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from demo_project.rehearsal.crew import CrewError
from demo_project.rehearsal.crowds import USERS
from demo_project.rehearsal.report import as_text, make_report
from demo_project.rehearsal.sale import rehearse
from demo_project.rehearsal.site import Plan, Site, SiteError, running
from demo_project.settings import DATA_DIR
from demo_project.shop.seeding import COUPON
from demo_project.valkey import ValkeyError


class Command(BaseCommand):
    """Run the flash sale: rehearsed against its crowds, or left open to look at."""

    help = (
        "Open a flash sale and send genuine users and scripts to it; report what happened. "
        "Exit status 0: nothing over a limit, no genuine user refused, no server error."
    )
    requires_system_checks = []  # The site runs in processes of its own, which check themselves.

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--json", action="store_true", help="print the report as JSON, the progress on stderr"
        )
        parser.add_argument(
            "--serve", action="store_true", help="leave the site running, without crowds, until Ctrl-C"
        )
        parser.add_argument("--workers", type=int, default=2, help="processes of the HTTP server (default 2)")
        parser.add_argument(
            "--seconds", type=float, default=25.0, help="how long the sale is open (default 25)"
        )
        parser.add_argument(
            "--port", type=int, help="port of the site (default: any free one; 8000 with --serve)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        self._progress = self.stderr if options["json"] else self.stdout
        if not settings.DEBUG:
            message = "DEBUG is off: the demo seeds accounts that everybody knows, and refuses. Set DEBUG=1."
            raise CommandError(message)
        try:
            good = self._serve(options) if options["serve"] else self._rehearse(options)
        except (CrewError, SiteError, ValkeyError) as error:
            raise CommandError(str(error)) from error
        if not good:
            sys.exit(1)

    def say(self, text: str) -> None:
        """Tell a person how it goes, at once: whoever reads through a pipe waits for the address."""
        self._progress.write(text, self.style.HTTP_INFO)
        self._progress.flush()

    def _serve(self, options: dict[str, Any]) -> bool:
        port = 8000 if options["port"] is None else options["port"]
        plan = Plan(directory=DATA_DIR, users=USERS, workers=options["workers"], port=port, temporary=False)
        with suppress(SystemExit), running(plan, self.say) as site:  # Here an interrupt is the ordinary end.
            self.say(f"\nThe sale is open at {site.url} and its admin at {site.url}admin/. Ctrl-C ends it.")
            while True:
                site.crew.check()
                time.sleep(1.0)
        return True

    def _rehearse(self, options: dict[str, Any]) -> bool:
        started = time.monotonic()
        directory = Path(tempfile.mkdtemp(prefix="ratelimit-demo-"))
        plan = Plan(directory=directory, users=USERS, workers=options["workers"], port=options["port"] or 0)
        with running(plan, self.say) as site:
            report = self._report(site, options["seconds"], started)
        self.stdout.write(json.dumps(report, indent=2) if options["json"] else f"\n{as_text(report)}")
        return not report["findings"]

    def _report(self, site: Site, seconds: float, started: float) -> dict[str, Any]:
        self.say(f"The sale is open for {seconds:g} s; it is to be seen live at {site.url}")
        outcome = site.crew.run_async(rehearse(site.address, COUPON, seconds=seconds, say=self.say))
        site.crew.check()
        return make_report(outcome, redis=site.describe_redis(), duration=time.monotonic() - started)
