"""Redis behind sentinels: the limiter finds the primary, asks nobody else, and finds the next one."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from ratelimit_app import aacquire, acquire
from ratelimit_app.store.connection import client
from ratelimit_app.store.gateway import async_gateway, gateway
from tests.store.sentinels import Watched
from tests.store.servers import HOST, PATIENCE, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

FACTORY = "django_redis.pool.SentinelConnectionFactory"


@pytest.fixture(scope="module")
def site() -> Iterator[Watched]:
    """One site for all tests here: it takes seconds until the sentinels have met."""
    made = Watched()
    yield made
    made.end()


@pytest.fixture
def watched(site: Watched) -> Iterator[Watched]:
    """The site, with empty servers."""
    with site.primary.admin() as one:
        one.flushall()
    yield site
    gateway().close()


@pytest.fixture
def alias(watched: Watched, settings: Any, rules: Any) -> Any:
    """Configure an alias as django-redis documents it."""

    def use(location: Any, **options: Any) -> None:
        options |= {"SENTINELS": [(HOST, one.port) for one in watched.sentinels]}
        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}
        settings.CACHES = {**settings.CACHES, "watched": cache}
        settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "CACHE": "watched", "STORE_TIMEOUT": 0.5}
        rules()

    return use


SENTINEL_CLIENT: tuple[str, dict[str, Any]] = (
    "redis://shop/0",
    {"CLIENT_CLASS": "django_redis.client.SentinelClient", "CONNECTION_FACTORY": FACTORY},
)
DOCUMENTED: dict[str, tuple[Any, dict[str, Any]]] = {
    "the Sentinel client": SENTINEL_CLIENT,
    "the default client": (
        ["redis://shop/0?is_master=1", "redis://shop/0?is_master=0"],
        {"CLIENT_CLASS": "django_redis.client.DefaultClient", "CONNECTION_FACTORY": FACTORY},
    ),
    "a replica alone": ("redis://shop/0?is_master=0", {"CONNECTION_FACTORY": FACTORY}),
}


async def test_an_alias_when_configured_as_documented_is_decided_by_the_primary(
    watched: Watched, alias: Any
) -> None:
    """Every documented form works for both drivers, and the limiter reads from the primary alone."""
    for name, (location, options) in DOCUMENTED.items():
        alias(location, **options)
        decisions = [acquire(f"user:{name}", "2/m", group="sync") for _ in range(3)]
        decisions += [await aacquire(f"user:{name}", "2/m", group="async") for _ in range(3)]
        assert [(each.allowed, each.degraded) for each in decisions] == [
            *[(True, False)] * 2,
            (False, False),
        ] * 2, name
        primary: Any = client()
        assert primary.info("server")["tcp_port"] == watched.primary.port, name
        async_gateway().close()


async def test_a_primary_when_killed_is_followed_by_the_next_one(watched: Watched, alias: Any) -> None:
    """Under load each call of both drivers ends, and once the replica is the primary decisions are exact again."""
    alias(SENTINEL_CLIENT[0], **SENTINEL_CLIENT[1])
    killed, heir = watched.primary, watched.replica
    assert not acquire("user:1", "2/h", group="failover").degraded
    assert not (await aacquire("user:2", "2/h", group="failover")).degraded
    wait_until(lambda: heir.ask("DBSIZE") == 2, "the charges to reach the replica")
    killed.kill()
    crowd = [asyncio.to_thread(_ask_until_decided, f"user:crowd{number}") for number in range(4)]
    await asyncio.gather(_aask_until_decided("user:alone"), *crowd)
    assert heir.ask("ROLE")[0] == "master"
    assert [acquire("user:1", "2/h", group="failover").allowed for _ in range(2)] == [True, False]
    assert [(await aacquire("user:2", "2/h", group="failover")).allowed for _ in range(2)] == [True, False]
    async_gateway().close()


def test_sentinels_when_none_answers_leave_the_policy(settings: Any, rules: Any) -> None:
    """Whoever cannot be asked where the primary is costs a request its budget, not an error."""
    options = {**SENTINEL_CLIENT[1], "SENTINELS": [(HOST, 1), ("nowhere.invalid", 2)]}
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://shop/0", "OPTIONS": options}
    settings.CACHES = {**settings.CACHES, "watched": cache}
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "CACHE": "watched", "STORE_TIMEOUT": 0.5}
    rules()
    assert acquire("user:1", "5/h", group="g").degraded


def _ask_until_decided(identity: str) -> None:
    wait_until(lambda: not acquire(identity, "9999/h", group="failover").degraded, "a decision of Redis")


async def _aask_until_decided(identity: str) -> None:
    until = time.monotonic() + PATIENCE
    while (await aacquire(identity, "9999/h", group="failover")).degraded:
        assert time.monotonic() < until
        await asyncio.sleep(0.02)
