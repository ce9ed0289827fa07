"""Starts processes of the site for tests, and talks with them."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0


class Member:
    """A process of the site, and what it has told."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.member", str(connection.settings_dict["NAME"])],
            cwd=ROOT,
            env=os.environ | {"RATELIMIT_TEST_DATA": str(settings.DATA)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self._told: dict[str, queue.Queue[Any]] = {
            name: queue.Queue() for name in ("version", "status", "forgotten")
        }
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            for name, value in json.loads(line).items():
                self._told[name].put(value)

    def _ask(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def version(self) -> Any:
        """Ask for the version of its rules, which it waits for."""
        self._ask("- -")
        return self._told["version"].get(timeout=PATIENCE)

    def status(self, at: int, address: str) -> Any:
        """Have a client served at a time, in microseconds by the Redis clock."""
        self._ask(f"{at} {address}")
        return self._told["status"].get(timeout=PATIENCE)

    def forgets(self, *identities: str) -> None:
        """Wait until it has been told to forget all of these, whatever else it is told."""
        missing = set(identities)
        while missing:
            told = self._told["forgotten"].get(timeout=PATIENCE)
            missing = set() if told is None else missing - set(told)

    def end(self) -> None:
        """Let it end by itself, as a worker does that is told to."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)

    def kill(self) -> None:
        """End it, if it still runs."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
