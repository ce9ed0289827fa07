"""Gateways run script calls, within one deadline: a sync one for each alias, an async one for each loop."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from redis.exceptions import NoScriptError, ResponseError

from ratelimit_app.conf import conf
from ratelimit_app.core.calls import ScriptCall, StoreTimeout, StoreUnavailable
from ratelimit_app.store import connection, health, names, scripts
from ratelimit_app.store.aliases import is_cluster
from ratelimit_app.store.cluster_gateway import AsyncClusterGateway, ClusterGateway
from ratelimit_app.store.multiplex import Multiplexed

if TYPE_CHECKING:
    from collections.abc import Callable

PING = b"*1\r\n$4\r\nPING\r\n"


class Gateway:
    """Run script calls for threads."""

    def __init__(self, alias: str) -> None:
        self._connections = connection.Connections(alias)
        self._breaker = health.breaker(alias)

    def call(self, call: ScriptCall) -> Any:
        """
        Run a script and give its reply. A script that the server has lost is sent once with the call.

        Raises StoreUnavailable, within `STORE_TIMEOUT` seconds, and at once while the breaker is open.
        """
        now, breaker = time.monotonic(), self._breaker
        if breaker.is_open:
            health.require(breaker, now)
        try:
            reply = self._run(call, now)
        except StoreUnavailable as error:
            breaker.failed(now, time.monotonic(), timed_out=isinstance(error, StoreTimeout))
            raise
        if breaker.troubled:
            breaker.succeeded(now)
        return reply

    def _run(self, call: ScriptCall, now: float) -> Any:
        deadline = now + conf.store_timeout
        try:
            try:
                return self._connections.execute(scripts.evalsha(call), deadline, now)
            except NoScriptError:
                return self._connections.execute(scripts.evaluate(call), deadline, time.monotonic())
        except ResponseError as error:
            connection.fail(error)

    def close(self) -> None:
        """Close the idle connections."""
        self._connections.close()

    def warm(self, count: int) -> int:
        """Have this many connections idle, and give how many there are. Raises StoreUnavailable."""
        return self._connections.warm(count)


class AsyncGateway:
    """Run script calls for the tasks of one event loop."""

    def __init__(self, alias: str) -> None:
        self._connection = Multiplexed(alias)
        self._warming: asyncio.Task[None] | None = None
        self._breaker = health.breaker(alias)

    async def call(self, call: ScriptCall) -> Any:
        """
        Run a script and give its reply.

        Raises StoreUnavailable, within `STORE_TIMEOUT` seconds, and at once while the breaker is open.
        """
        began, breaker = time.monotonic(), self._breaker
        if breaker.is_open:
            health.require(breaker, began)
        try:
            reply = await self._run(call, began)
        except StoreUnavailable as error:
            breaker.failed(began, time.monotonic(), timed_out=isinstance(error, StoreTimeout))
            raise
        if breaker.troubled:
            breaker.succeeded(began)
        return reply

    async def _run(self, call: ScriptCall, began: float) -> Any:
        try:
            link = self._connection.link
            if link is None:
                return await self._call_unhurried(call, began)
            return await link.send(scripts.evalsha(call))
        except NoScriptError:
            return await self._call_unhurried(call, began, lost=True)
        except ResponseError as error:
            connection.fail(error)

    async def _call_unhurried(self, call: ScriptCall, began: float, *, lost: bool = False) -> Any:
        """Connect before the call, or send the script with it: what is left of the time is for all of it."""
        try:
            async with asyncio.timeout(max(began + conf.store_timeout - time.monotonic(), 0)):
                link = await self._connection.open()
                try:
                    return await link.send((scripts.evaluate if lost else scripts.evalsha)(call))
                except NoScriptError:
                    return await link.send(scripts.evaluate(call))
        except TimeoutError as error:
            msg = "no reply within STORE_TIMEOUT"
            raise StoreTimeout(msg) from error
        except ResponseError as error:
            connection.fail(error)

    def close(self) -> None:
        """Let go of the connection. For the thread of the loop."""
        self._connection.close()

    def warm(self) -> None:
        """Open the connection, unless it is open. For the thread of the loop."""
        self._warming = asyncio.get_running_loop().create_task(self._warm())

    async def _warm(self) -> None:
        # A call that needs the connection opens it anyway, and tells what is wrong with it.
        with suppress(StoreUnavailable, ResponseError, TimeoutError):
            async with asyncio.timeout(conf.store_timeout):
                await (await self._connection.open()).send(PING)


AnyGateway = Gateway | ClusterGateway
AnyAsyncGateway = AsyncGateway | AsyncClusterGateway
_gateways: dict[str, AnyGateway] = {}
_async_gateways: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, AnyAsyncGateway]] = (
    WeakKeyDictionary()
)
_NONE: tuple[Callable[[], object], str, AnyAsyncGateway | None] = (lambda: None, "", None)
_latest = _NONE


def gateway() -> Any:
    """Give this process's gateway to the alias in `CACHE`."""
    alias = conf.cache
    found = _gateways.get(alias)
    if found is None:
        kind = ClusterGateway if is_cluster(alias) else Gateway
        found = _gateways.setdefault(alias, kind(alias))
    return found


def async_gateway() -> Any:
    """Give the running loop's gateway to the alias in `CACHE`."""
    global _latest  # noqa: PLW0603 - the usual process has one loop, and a weak dict is slow to ask
    loop = asyncio.get_running_loop()
    latest, alias, found = _latest
    if found is not None and latest() is loop and alias == conf.cache:
        return found
    of_loop = _async_gateways.setdefault(loop, {})
    found = of_loop.get(conf.cache)
    if found is None:
        kind = AsyncClusterGateway if is_cluster(conf.cache) else AsyncGateway
        found = of_loop.setdefault(conf.cache, kind(conf.cache))
    _latest = ref(loop), conf.cache, found
    return found


def warm_up(count: int) -> int:
    """
    Open connections ahead of need: this many idle ones for threads, and that of each loop that has made a call.

    Gives how many are idle. Raises StoreUnavailable.
    """
    idle: int = gateway().warm(count)
    for reference in _async_gateways.keyrefs():
        if (loop := reference()) is None:
            continue
        for found in list(_async_gateways.get(loop, {}).values()):
            with suppress(RuntimeError):  # the loop is over
                loop.call_soon_threadsafe(found.warm)
    return idle


def forget() -> None:
    """Start anew with connections: settings have changed, or this process is a fork (its sockets are not ours)."""
    global _latest  # noqa: PLW0603 - see async_gateway
    _latest = _NONE
    _gateways.clear()
    _async_gateways.clear()
    connection.forget()
    health.forget()
    names.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget)


def on_setting_changed(*, setting: str, **_: Any) -> None:
    """Connect anew when what a connection is made of has changed."""
    if setting in ("CACHES", "RATELIMIT_APP"):
        for loop, of_loop in list(_async_gateways.items()):
            for found in of_loop.values():
                with suppress(RuntimeError):  # the loop is over, and its connections with it
                    loop.call_soon_threadsafe(found.close)
        for gateway_ in list(_gateways.values()):
            gateway_.close()
        forget()
