"""Worker, beat, broker and web processes are killed at random, while offenders offend."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tests.chaos.findings import Finding
from tests.chaos.ground import RedisServer, run
from tests.chaos.shop import Shop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.chaos.ground import Ground
    from tests.chaos.shoppers import Note

BLOCK_S = 2
# Its offenders are banned; those of `closed` are not, so that all their offences stay to be counted.
POLICY = f"""
from ratelimit_app.models import PromotionPolicy, Rule
policy = PromotionPolicy.objects.create(
    name="chaos", kinds="ip", threshold=50, find_period=3600, block_period={BLOCK_S}, factor=2,
    max_block_period=3600, decay_period=3600,
)
policy.rules.set(Rule.objects.filter(name="open"))
"""


class Plant:
    """What runs beside the site: a broker, a worker and a beat, each of which may be killed and started again."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self.broker = RedisServer(ground.crew, "broker")
        ground.broker_url = self.broker.url
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.kills: dict[str, int] = dict.fromkeys(("worker", "beat", "broker", "web"), 0)

    def start(self, name: str) -> None:
        """Start a worker or the beat."""
        options = {
            "worker": ["--pool", "solo", "--without-gossip", "--without-mingle", "--loglevel", "warning"],
            "beat": [
                "--schedule",
                str(self._ground.crew.directory / "beat"),
                "--pidfile=",
                "--loglevel",
                "warning",
            ],
        }
        environment = [f"{key}={value}" for key, value in self._ground.environment().items()]
        command = ["env", *environment, sys.executable, "-m", "celery", "-A", "tests.chaos.celery_app", name]
        self._running[name] = self._ground.crew.start(name, [*command, *options[name]])

    def kill(self, name: str, shop: Shop) -> None:
        """Kill something with -9, and start it again as a supervisor would."""
        self.kills[name] += 1
        if name == "web":
            # The master starts another one by itself.
            with suppress(ProcessLookupError):
                os.kill(random.choice(children(shop.process.pid)), signal.SIGKILL)
        elif name == "broker":
            self.broker.kill()
            time.sleep(0.5)
            self.broker.start()
        else:
            self._running[name].kill()
            self._running[name].wait()
            self.start(name)

    def end(self) -> None:
        """End the worker and the beat as a deployment does."""
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            process.wait(30)


def crash(ground: Ground) -> Iterator[Finding]:
    """Five minutes of sudden deaths."""
    plant = Plant(ground)
    shop = Shop(ground)
    run(ground, ["shell", "--verbosity", "0", "-c", POLICY])
    for name in ("worker", "beat"):
        plant.start(name)
    began = time.monotonic()
    with shop.crowd(rate=500) as crowd:
        time.sleep(ground.seconds(10, 6))
        until = time.monotonic() + ground.seconds(300, 14)
        while time.monotonic() < until:
            plant.kill(random.choice(list(plant.kills)), shop)
            time.sleep(random.uniform(0.2, ground.seconds(4, 2)))
        time.sleep(ground.seconds(20, 10))
    elapsed = time.monotonic() - began
    time.sleep(3)  # the last offences are flushed, the last ban is published
    yield Finding(
        "killed, and started again",
        ", ".join(f"{name} {count}" for name, count in plant.kills.items()),
        held=True,
    )
    errors = sum(note.status >= 500 for note in crowd.notes if note.policy == "open")
    answered = sum(note.status > 0 for note in crowd.notes)
    yield Finding("no 5xx from `open`", f"{errors} of {answered:,} answers", not errors and answered > 0)
    yield _counted_once(ground, crowd.notes)
    plant.end()
    yield from _bans(ground, elapsed)
    shop.process.terminate()
    shop.process.wait(30)
    yield _orphans(ground)
    yield _immortal(ground.redis.admin)


def _counted_once(ground: Ground, notes: list[Note]) -> Finding:
    """Compare what clients were told with what stands in Redis: a killed process may lose a second, never double."""
    told = sum(note.policy == "closed" and note.status == 429 for note in notes)
    unknown = sum(note.policy == "closed" and note.status == 0 for note in notes)
    counted, admin = 0, cast("Any", ground.redis.admin)
    for key in admin.scan_iter(match="*{ip:10.0.1.*offences"):
        counted += sum(
            int(count) for field, count in admin.hgetall(key).items() if field.endswith(b"|closed")
        )
    return Finding(
        "no offence is counted twice",
        f"{told:,} denials told, {unknown} answers lost, {counted:,} offences counted",
        told // 2 < counted <= told + unknown,
    )


def _bans(ground: Ground, elapsed: float) -> Iterator[Finding]:
    with closing(sqlite3.connect(ground.crew.directory / "chaos.sqlite3")) as database:
        rows = database.execute(
            "SELECT value, level, announced_at FROM ratelimit_app_blacklistentry WHERE source = 'promoted'"
        ).fetchall()
    offenders = {"10.0.0.1", "10.0.0.2"}
    yield Finding(
        "every offender is banned, by one row each",
        ", ".join(f"{value} at level {level}" for value, level, _ in sorted(rows)),
        sorted(value for value, _, _ in rows) == sorted(offenders),
    )
    # A ban that is given twice climbs the ladder faster than bans can follow each other.
    least = [BLOCK_S * (2 ** (level - 1) - 1) for _, level, _ in rows]
    yield Finding(
        "no ban is given twice: their levels could be reached in the time",
        f"{max(least, default=0)} s of bans before the last, in {elapsed:.0f} s",
        bool(rows) and max(least) <= elapsed,
    )
    yield Finding(
        "every ban is announced",
        f"{sum(bool(row[2]) for row in rows)} of {len(rows)}",
        all(row[2] for row in rows),
    )
    checked = subprocess.run(
        [sys.executable, "-m", "django", "ratelimit_sync", "--check"],
        env=os.environ | ground.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    yield Finding("Redis holds what the database says", checked.stdout.strip()[:200], checked.returncode == 0)


def children(pid: int) -> list[int]:
    """Name the processes that a process has started and not buried."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _orphans(ground: Ground) -> Finding:
    """Look for processes of this drill beside its two servers."""
    mark, known, found = f"CHAOS_DIR={ground.crew.directory}".encode(), {os.getpid()}, list[str]()
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (directory / "environ").read_bytes() and int(directory.name) not in known:
                found.append((directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:80])
    return Finding("no process is left", "; ".join(found) or "none", not found)


def _immortal(admin: Any) -> Finding:
    """Look for keys of ours that would stay for ever."""
    keys = [key for key in admin.scan_iter(count=1_000) if admin.ttl(key) == -1]
    return Finding("no key without expiry", ", ".join(map(repr, keys[:3])) or "none", not keys)
