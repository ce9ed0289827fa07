"""The running site: Redis, database, HTTP server and Celery worker, in order and ready to be visited."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from demo_project import valkey
from demo_project.rehearsal.crew import Crew, CrewError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST = "127.0.0.1"
READY_TIMEOUT = 30.0  # seconds
ROOT = Path(__file__).resolve().parent.parent.parent


class SiteError(RuntimeError):
    """The site cannot be opened; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to run the site. `port` 0: any free one; `temporary`: leave nothing behind, not even in a given Redis."""

    directory: Path
    users: int
    workers: int = 2
    port: int = 0
    temporary: bool = True


@dataclass(frozen=True, slots=True)
class Site:
    """A site that answers: its address, the Redis behind it, and the processes that make it."""

    address: tuple[str, int]
    redis_url: str
    crew: Crew

    @property
    def url(self) -> str:
        """The address of its page."""
        return f"http://{self.address[0]}:{self.address[1]}/"

    def describe_redis(self) -> dict[str, Any]:
        """Say which server decided: name, version, embedded or given. Raises RedisError when it is gone."""
        with redis.Redis.from_url(self.redis_url) as client:
            info = client.info("server")
        return {
            "server": "Valkey" if "valkey_version" in info else "Redis",
            "version": info.get("valkey_version", info["redis_version"]),
            "where": "given by REDIS_URL" if os.environ.get("REDIS_URL") else "embedded",
        }


@contextmanager
def running(plan: Plan, say: Callable[[str], None]) -> Iterator[Site]:
    """Run the site for the time of the block. Raises SiteError, CrewError or ValkeyError when it cannot."""
    given = os.environ.get("REDIS_URL", "")
    prefix = f"demo-{secrets.token_hex(4)}" if plan.temporary else "demo"
    environment = {
        "DJANGO_SETTINGS_MODULE": "demo_project.settings",
        "DEMO_DIR": str(plan.directory),
        "DEMO_PREFIX": prefix,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    with ExitStack() as stack:
        if given and plan.temporary:
            stack.enter_context(_forgetting(given, prefix))
        crew = stack.enter_context(Crew(plan.directory, environment, temporary=plan.temporary))
        listener = stack.enter_context(_listener(plan.port))
        url = _redis_url(given, crew)
        say(f"Redis: {'given by REDIS_URL' if given else 'an embedded Valkey'}.")
        _start(crew, plan, listener, say=say)
        yield Site(listener.getsockname(), url, crew)


def _redis_url(given: str, crew: Crew) -> str:
    if given and not valkey.answers(given):
        message = (
            "No Redis answers at REDIS_URL: start it, correct the URL, or unset it to use an embedded one."
        )
        raise SiteError(message)
    return given or valkey.start(crew)


def _start(crew: Crew, plan: Plan, listener: socket.socket, *, say: Callable[[str], None]) -> None:
    manage = [sys.executable, str(ROOT / "manage.py")]
    crew.run("migrate", [*manage, "migrate", "--verbosity", "0"])
    crew.run("seed", [*manage, "seed", "--users", str(plan.users)])
    say(crew.log_of("seed"))
    crew.start(
        "server",
        [sys.executable, "-m", "gunicorn", *_server_options(plan, listener)],
        fds=[listener.fileno()],
    )
    crew.start("worker", [sys.executable, "-m", "celery", "-A", "demo_project", *_worker_options()])
    address = listener.getsockname()
    _wait_for(f"http://{address[0]}:{address[1]}/sale.json", crew)
    say(f"Server: {plan.workers} processes at http://{address[0]}:{address[1]}/. Celery: a worker with beat.")


def _server_options(plan: Plan, listener: socket.socket) -> list[str]:
    options = {
        # The socket is bound already: nobody can take the port between the choice and the start.
        "--bind": f"fd://{listener.fileno()}",
        "--workers": str(plan.workers),
        "--worker-class": "gthread",
        "--threads": "8",
        "--keep-alive": "30",
        "--graceful-timeout": "3",
        "--log-level": "warning",
        "--worker-tmp-dir": str(plan.directory),
    }
    return ["demo_project.wsgi", "--no-control-socket", *(part for pair in options.items() for part in pair)]


def _worker_options() -> list[str]:
    lean = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    return [
        "--workdir",
        str(ROOT),
        "worker",
        "-B",
        # Its memory is enough for a sale, and a file that SQLite holds (Python 3.13) fails now and then.
        "--scheduler",
        "celery.beat:Scheduler",
        "--pool",
        "solo",
        "--loglevel",
        "warning",
        *lean,
    ]


def _listener(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        message = f"Port {port} of {HOST} is not to be had ({error.strerror}): choose another with --port, 0 for any."
        raise SiteError(message) from error
    listener.listen(1024)
    return listener


def _wait_for(url: str, crew: Crew) -> None:
    deadline = time.monotonic() + READY_TIMEOUT
    while not _is_up(url):
        crew.check()
        if time.monotonic() > deadline:
            raise CrewError(crew.account_of("server"))
        time.sleep(0.1)


def _is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - an address of this very demo
            return True
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def _forgetting(url: str, prefix: str) -> Iterator[None]:
    """Remove what this demo wrote to a Redis that others use: all of it has the prefix of this one run."""
    try:
        yield
    finally:
        with suppress(redis.RedisError), redis.Redis.from_url(url) as client:
            for key in client.scan_iter(match=f"{prefix}*", count=1_000):
                client.unlink(key)
