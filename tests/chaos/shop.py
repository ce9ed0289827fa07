"""The site as a drill needs it: its database, two processes that serve it, and a crowd that asks."""

from __future__ import annotations

import json
import sys
import urllib.request
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tests.chaos.ground import HOST, Ground, end, free_port, run, wait_until
from tests.chaos.shoppers import BANNED, POLICIES, Note

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

LIMIT = 20
PERIOD_US = 1_000_000
RATE = 2_000  # requests a second, or what the machine gives


class Shop:
    """Two processes of the site behind one port; `site` is the name of their log."""

    def __init__(self, ground: Ground, redis_url: str | None = None) -> None:
        self.ground, self.port = ground, free_port()
        self._crowds = 0
        run(ground, ["migrate", "--verbosity", "0"])
        run(ground, ["shell", "--verbosity", "0", "-c", _SEED])
        options = [
            "--bind",
            f"{HOST}:{self.port}",
            "--workers",
            "2",
            "--worker-class",
            "gthread",
            "--threads",
            "16",
        ]
        options += [
            "--keep-alive",
            "60",
            "--log-level",
            "warning",
            "--worker-tmp-dir",
            str(ground.crew.directory),
        ]
        environment = [f"{name}={value}" for name, value in ground.environment(redis_url).items()]
        command = [sys.executable, "-m", "gunicorn", "tests.chaos.wsgi", "--no-control-socket", *options]
        self.process = ground.crew.start("site", ["env", *environment, *command])
        wait_until(self.answers, "the site to answer")

    def answers(self, path: str = "admin/login/") -> bool:
        """Whether the site answers, and not with an error."""
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://{HOST}:{self.port}/{path}", timeout=10) as answer,
        ):
            return bool(answer.status == 200)
        return False

    @contextmanager
    def crowd(self, rate: float = RATE, passers_by: int = 0) -> Iterator[Crowd]:
        """Have a crowd ask while the block runs; its notes are there after it."""
        self._crowds += 1
        path = self.ground.crew.directory / f"notes-{self._crowds}.jsonl"
        program = self.ground.program("shoppers", str(self.port), str(rate), str(path), str(passers_by))
        crowd = Crowd(program, path)
        try:
            wait_until(lambda: path.exists() and path.stat().st_size, "the crowd to ask")
            yield crowd
        finally:
            end(program)
        crowd.read()


class Crowd:
    """A crowd that asks, and its notes."""

    def __init__(self, program: subprocess.Popen[str], path: Path) -> None:
        self.program, self._path = program, path
        self.notes: list[Note] = []

    def read(self) -> None:
        """Read what it has noted."""
        with self._path.open() as lines:
            self.notes = [Note(*json.loads(line)) for line in lines]


_SEED = f"""
from django.contrib.auth.models import User
from ratelimit_app.models import BlacklistEntry, Rule
for policy in {POLICIES!r}:
    Rule.objects.get_or_create(
        name=policy,
        defaults=dict(route=f"/{{policy}}/", key="ip", rate="{LIMIT}/s", on_failure=policy),
    )
BlacklistEntry.objects.get_or_create(kind="ip", value="{BANNED}", defaults=dict(reason="chaos"))
User.objects.filter(username="admin").exists() or User.objects.create_superuser("admin")
"""
