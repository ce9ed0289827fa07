"""The baseline, ours, and redis-py's own async client for comparison."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio as aredis

from benchmarks.project import LIMIT, RATE, request_of
from benchmarks.rounds import Contender

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from django.http import HttpRequest

AT_ONCE = 200
PERIOD_US = 60_000_000
ONE, REQUEST, THREE, ASYNC = "one rule", "a request, one rule by IP", "three rules", "async"
EXACT = "exact log"
TEXTBOOK = """
local now, period, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - period)
if redis.call('ZCARD', KEYS[1]) >= limit then return 0 end
redis.call('ZADD', KEYS[1], now, ARGV[4])
redis.call('EXPIRE', KEYS[1], math.ceil(period / 1000000))
return 1
"""


def textbook_words(key: str, period_us: int = PERIOD_US, limit: int = LIMIT) -> tuple[Any, ...]:
    """Give the key and the arguments of one textbook call, with the client's clock."""
    now = time.time_ns() // 1_000
    return key, now, period_us, limit, f"{now}-{os.urandom(4).hex()}"


def each(call: Callable[[Any], bool]) -> Callable[[list[Any]], list[bool]]:
    """Make calls one after the other."""
    return lambda things: [call(thing) for thing in things]


def name_of(prefix: str, n: int) -> str:
    """Name identity number `n` of a run."""
    return f"{prefix}-{n}"


def plain_request(prefix: str, n: int) -> HttpRequest:
    """Make the request of a client that is known by its address alone."""
    return request_of(prefix, n, signed_in=False)


def full_request(prefix: str, n: int) -> HttpRequest:
    """Make the request of a client that has an address, a user and a device."""
    return request_of(prefix, n, signed_in=True)


def baseline(url: str) -> Contender:
    """Give the least that a limiter can do: redis-py's EVALSHA of the textbook script."""
    client = redis.Redis.from_url(url)
    sha = str(client.script_load(TEXTBOOK))

    def textbook(key: str) -> bool:
        return bool(client.evalsha(sha, 1, *textbook_words(key)))

    return Contender(
        name="redis-py textbook", group=ONE, work="baseline", make=name_of, decide=each(textbook)
    )


def ours() -> list[Contender]:
    """Give ours, sync: the whole of `acquire()` and of `check(request)`."""
    from ratelimit_app import acquire, check  # noqa: PLC0415 - Django is set up by now

    def one(name: str) -> bool:
        return acquire(f"user:{name}", RATE, group="bench").allowed

    def checked(scope: str) -> Callable[[list[Any]], list[bool]]:
        return each(lambda request: check(request, scope=scope).allowed)

    def row(name: str, group: str, make: Any, decide: Any) -> Contender:
        return Contender(name=name, group=group, work=EXACT, make=make, decide=decide, ours=True)

    return [
        row("acquire", ONE, name_of, each(one)),
        row("check(request)", REQUEST, plain_request, checked("one")),
        row("check(request), three rules and marks", THREE, full_request, checked("three")),
    ]


class Loop:
    """Ours and redis.asyncio on one event loop, alone or many at once."""

    def __init__(self, url: str, runner: asyncio.Runner) -> None:
        self.runner = runner
        self.pool = aredis.ConnectionPool.from_url(url, max_connections=2 * AT_ONCE)
        self.client = aredis.Redis(connection_pool=self.pool)
        self.sha = str(redis.Redis.from_url(url).script_load(TEXTBOOK))

    def contenders(self) -> list[Contender]:
        """Give the async contenders."""
        from ratelimit_app import aacquire, acheck  # noqa: PLC0415 - Django is set up by now

        async def textbook(name: str) -> bool:
            return bool(await self.client.evalsha(self.sha, 1, *textbook_words(name)))

        async def one(name: str) -> bool:
            return (await aacquire(f"user:{name}", RATE, group="bench")).allowed

        async def three(request: HttpRequest) -> bool:
            return (await acheck(request, scope="three")).allowed

        many = f"{AT_ONCE} at once"
        return [
            self._row("redis.asyncio textbook, one at a time", "baseline's script", textbook, 1),
            self._row("aacquire, one at a time", EXACT, one, 1),
            self._row(f"redis.asyncio textbook, {many}", "baseline's script", textbook, AT_ONCE),
            self._row(f"aacquire, {many}", EXACT, one, AT_ONCE),
            self._row(f"acheck, three rules, {many}", EXACT, three, AT_ONCE, full_request),
        ]

    def _row(
        self,
        name: str,
        work: str,
        call: Callable[[Any], Awaitable[bool]],
        workers: int,
        make: Callable[[str, int], Any] = name_of,
    ) -> Contender:
        decide = self._together(call, workers)
        return Contender(name=name, group=ASYNC, work=work, make=make, decide=decide, ours=work == EXACT)

    def _together(
        self, call: Callable[[Any], Awaitable[bool]], workers: int
    ) -> Callable[[list[Any]], list[bool]]:
        async def work(things: list[Any]) -> list[bool]:
            return [await call(thing) for thing in things]

        async def all_of(things: list[Any]) -> list[bool]:
            parts = await asyncio.gather(*(work(things[start::workers]) for start in range(workers)))
            return [answer for part in parts for answer in part]

        return lambda things: self.runner.run(all_of(things))

    def close(self) -> None:
        """Close redis.asyncio's connections."""
        self.runner.run(self.pool.disconnect())
