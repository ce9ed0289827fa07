"""Processes of the site beside a test, and what they show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection

from ratelimit_app.conf import conf

ROOT = Path(__file__).resolve().parents[2]
STARTING = 30.0
WATCHERS = 2


class Watcher:
    """A process of the site, and what it showed last; it also serves further clients of these addresses."""

    def __init__(self, *addresses: str) -> None:
        self.seen: dict[str, Any] = {}
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.integration.watcher",
                str(connection.settings_dict["NAME"]),
                *addresses,
            ],
            cwd=ROOT,
            env=os.environ | {"RATELIMIT_TEST_DATA": str(settings.DATA)},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.seen = json.loads(line)

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def expect(watchers: list[Watcher], wanted: dict[str, Any], *, within: float | None = None) -> None:
    """Wait until every process shows this, at most for the contract's time (seconds)."""
    deadline = time.monotonic() + (within or conf.refresh_interval + 1)
    while not all(wanted.items() <= watcher.seen.items() for watcher in watchers):
        assert time.monotonic() < deadline, (wanted, [watcher.seen for watcher in watchers])
        time.sleep(0.01)
