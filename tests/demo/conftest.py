"""The demo under test: a directory and an environment of its own, and a look at what it leaves behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent.parent


class Demo:
    """Runs `manage.py` with the demo's settings in a directory that nobody else uses."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        foreign = ("DATABASE_URL", "DEBUG", "REDIS_URL", "SECRET_KEY")
        self.environment = {name: value for name, value in os.environ.items() if name not in foreign}
        self.environment |= {
            "DJANGO_SETTINGS_MODULE": "demo_project.settings",
            "DEMO_DIR": str(directory / "data"),
            "TMPDIR": str(directory),
            "PYTHONPATH": str(ROOT),
        }

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start a command in a session of its own; its output comes in pipes."""
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(
        self, *arguments: str, timeout: float = 60, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        with self.start(*arguments, **environment) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.terminate()
                raise
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def left_running(self) -> list[str]:
        """Give the command lines of the processes that know this directory, once they have had time to go."""
        deadline = time.monotonic() + 5
        while (found := self._running()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def left_behind(self) -> list[str]:
        """Give the names of what was left beside the data directory, which `--serve` keeps."""
        return [path.name for path in self.directory.iterdir() if path.name != "data"]

    def _running(self) -> list[str]:
        needle = str(self.directory).encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if needle in (process / "environ").read_bytes() + (process / "cmdline").read_bytes():
                    found.append((process / "cmdline").read_text().replace("\0", " "))
            except OSError:  # It ended while we looked, or is not ours to see.
                continue
        return found


@pytest.fixture
def demo() -> Iterator[Demo]:
    """Give a demo with a directory of its own, whose path is short enough for a unix socket."""
    directory = Path(tempfile.mkdtemp(prefix="dt-", dir="/tmp"))
    yield Demo(directory)
    shutil.rmtree(directory, ignore_errors=True)
