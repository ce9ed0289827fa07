"""Gateways to a cluster: each slot is asked at its server, and several of them at once."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError, ResponseError

from ratelimit_app.conf import conf
from ratelimit_app.core.calls import ScriptCall, StoreUnavailable
from ratelimit_app.core.slots import Spread, TryAgain, only_slot, spread, tag_of
from ratelimit_app.store import connection, health, notices, scripts
from ratelimit_app.store.cluster_nodes import (
    ASKING,
    Node,
    Redirected,
    Slots,
    Watch,
    follow,
    has,
    late,
    refuse,
)
from ratelimit_app.store.multiplex import Multiplexed

if TYPE_CHECKING:
    from collections.abc import Generator

    from ratelimit_app.store.cluster import ClusterClient

PING = b"*1\r\n$4\r\nPING\r\n"
MAX_HOPS = 5


def _lost(call: ScriptCall) -> StoreUnavailable:
    return StoreUnavailable(f"{call.script!r} was sent from server to server {MAX_HOPS} times")


def _tell(found: Spread) -> Any:
    """Give the reply. Others may have been denied for what was given back: they forget it, as after a reset."""
    if found.returned:
        tags = {tag_of(key).partition(b"{")[2][:-1].decode("utf-8", "replace") for key in found.returned}
        # A digest does not say whose it is.
        identities = None if any(tag.startswith("~") for tag in tags) else tags
        threading.Thread(target=_send, args=(identities,), name="ratelimit_app.notices", daemon=True).start()
    return found.reply


def _send(identities: set[str] | None) -> None:
    with suppress(StoreUnavailable):
        notices.send(identities)


class ClusterGateway:
    """Run script calls for threads."""

    def __init__(self, alias: str) -> None:
        self._alias, self._slots = alias, Slots(alias)
        self._nodes: dict[str, Node] = {}

    def call(self, call: ScriptCall) -> Any:
        """
        Run a script and give its reply; keys may be in several slots.

        Raises StoreUnavailable, within `STORE_TIMEOUT` seconds.
        """
        deadline = time.monotonic() + conf.store_timeout
        cluster, slot = self._cluster(deadline), only_slot(call.keys)
        if slot is not None:
            try:
                return self._ask(cluster, call, slot, deadline)
            except TryAgain:
                flow = spread(call, by_key=True)
        else:
            flow = spread(call)
        return self._drive(cluster, flow, deadline)

    def _cluster(self, deadline: float) -> ClusterClient:
        found = connection.known(self._alias)
        if found is None:
            try:
                found = self._slots.making().result(max(deadline - time.monotonic(), 0))
            except TimeoutError as error:
                raise late(error) from error
        return found  # type: ignore[no-any-return]

    def _node(self, name: str) -> Node:
        found = self._nodes.get(name)
        if found is None:
            self._leave(connection.known(self._alias))
            found = self._nodes.setdefault(name, Node(self._alias, name))
        return found

    def _leave(self, cluster: ClusterClient | None) -> None:
        """Close the connections to servers that are none of the cluster any more."""
        for name in list(self._nodes) if cluster is not None else ():
            if not cluster.knows(name) and (gone := self._nodes.pop(name, None)):  # type: ignore[union-attr]
                gone.close()

    def _ask(self, cluster: ClusterClient, call: ScriptCall, slot: int, deadline: float) -> Any:
        name, asking = has(cluster, slot), False
        for _ in range(MAX_HOPS):
            try:
                return self._node(name).ask(call, deadline, asking=asking)
            except Redirected as redirected:
                follow(cluster, redirected)
                name, asking = redirected.name, redirected.kind == "ASK"
        raise _lost(call)

    def _drive(
        self, cluster: ClusterClient, flow: Generator[list[ScriptCall], list[Any], Spread], deadline: float
    ) -> Any:
        try:
            calls = next(flow)
            while True:
                calls = flow.send(self._together(cluster, calls, deadline))
        except StopIteration as end:
            return _tell(end.value)

    def _together(self, cluster: ClusterClient, calls: list[ScriptCall], deadline: float) -> list[Any]:
        """Send all calls, and then take all replies; what has to be sent again is sent alone."""
        if time.monotonic() >= deadline:
            return [late()] * len(calls)
        begun = [self._begin(cluster, call, deadline) for call in calls]
        return [self._end(cluster, call, one, deadline) for call, one in zip(calls, begun, strict=True)]

    def _begin(self, cluster: ClusterClient, call: ScriptCall, deadline: float) -> Any:
        try:
            node = self._node(has(cluster, only_slot(call.keys) or 0))
            now = node.allowed()
            with Watch(node.breaker, now):
                return node, node.begin(scripts.evalsha(call), deadline, now), now
        except StoreUnavailable as error:
            return error

    def _end(self, cluster: ClusterClient, call: ScriptCall, begun: Any, deadline: float) -> Any:
        if isinstance(begun, StoreUnavailable):
            return begun
        node, line, now = begun
        try:
            try:
                return node.end(line, deadline, now)
            except (Redirected, NoScriptError):
                return self._ask(cluster, call, only_slot(call.keys) or 0, deadline)
        except StoreUnavailable as error:
            return error

    def close(self) -> None:
        """Close the idle connections."""
        for node in list(self._nodes.values()):
            node.close()

    def warm(self, count: int) -> int:
        """Have this many connections idle to each primary, and give how many there are. Raises StoreUnavailable."""
        found: Any = connection.client(self._alias)
        return min(self._node(str(node.name)).warm(count) for node in found.get_primaries())


class AsyncClusterGateway:
    """Run script calls for the tasks of one event loop."""

    def __init__(self, alias: str) -> None:
        self._alias, self._slots = alias, Slots(alias)
        self._links: dict[str, Multiplexed] = {}
        self._warming: asyncio.Task[None] | None = None

    async def call(self, call: ScriptCall) -> Any:
        """
        Run a script and give its reply; keys may be in several slots.

        Raises StoreUnavailable, within `STORE_TIMEOUT` seconds.
        """
        deadline = time.monotonic() + conf.store_timeout
        cluster, slot = await self._cluster(deadline), only_slot(call.keys)
        if slot is not None:
            try:
                return await self._ask(cluster, call, deadline)
            except TryAgain:
                flow = spread(call, by_key=True)
        else:
            flow = spread(call)
        try:
            calls = next(flow)
            while True:
                calls = flow.send(await self._together(cluster, calls, deadline))
        except StopIteration as end:
            return _tell(end.value)

    async def _cluster(self, deadline: float) -> ClusterClient:
        found = connection.known(self._alias)
        if found is None:
            making = asyncio.shield(asyncio.wrap_future(self._slots.making()))
            try:
                found = await asyncio.wait_for(making, max(deadline - time.monotonic(), 0))
            except TimeoutError as error:
                making.add_done_callback(lambda late: late.cancelled() or late.exception())
                raise late(error) from error
        return found  # type: ignore[no-any-return]

    async def _together(self, cluster: ClusterClient, calls: list[ScriptCall], deadline: float) -> list[Any]:
        if time.monotonic() >= deadline:
            return [late()] * len(calls)
        return await asyncio.gather(*(self._reply(cluster, one, deadline) for one in calls))

    async def _reply(self, cluster: ClusterClient, call: ScriptCall, deadline: float) -> Any:
        try:
            return await self._ask(cluster, call, deadline)
        except StoreUnavailable as error:
            return error

    async def _ask(self, cluster: ClusterClient, call: ScriptCall, deadline: float) -> Any:
        name, asking = has(cluster, only_slot(call.keys) or 0), False
        for _ in range(MAX_HOPS):
            try:
                return await self._at(name, call, deadline, asking=asking)
            except Redirected as redirected:
                follow(cluster, redirected)
                name, asking = redirected.name, redirected.kind == "ASK"
        raise _lost(call)

    async def _at(self, name: str, call: ScriptCall, deadline: float, *, asking: bool) -> Any:
        breaker, now = health.breaker(f"{self._alias} {name}"), time.monotonic()
        if breaker.is_open:
            health.require(breaker, now)
        with Watch(breaker, now):
            try:
                async with asyncio.timeout(max(deadline - now, 0)):
                    link = await self._link(name).open()
                    try:
                        return await _send_to(link, scripts.evalsha(call), asking=asking)
                    except NoScriptError:
                        return await _send_to(link, scripts.evaluate(call), asking=asking)
            except TimeoutError as error:
                connection.fail(error)
            except ResponseError as error:
                refuse(error, name)

    def _link(self, name: str) -> Multiplexed:
        found = self._links.get(name)
        if found is None:
            cluster: ClusterClient = connection.known(self._alias)
            for gone in [other for other in self._links if not cluster.knows(other)]:
                self._links.pop(gone).close()
            found = self._links[name] = Multiplexed(self._alias, name)
        return found

    def close(self) -> None:
        """Let go of the connections. For the thread of the loop."""
        for link in self._links.values():
            link.close()

    def warm(self) -> None:
        """Open a connection to each primary. For the thread of the loop."""
        self._warming = asyncio.get_running_loop().create_task(self._warm())

    async def _warm(self) -> None:
        # A call that needs the connection opens it anyway, and tells what is wrong with it.
        with suppress(StoreUnavailable, ResponseError, TimeoutError):
            cluster: Any = await self._cluster(time.monotonic() + conf.store_timeout)
            for node in cluster.get_primaries():
                async with asyncio.timeout(conf.store_timeout):
                    await (await self._link(str(node.name)).open()).send(PING)


def _send_to(link: Any, command: bytes, *, asking: bool) -> asyncio.Future[Any]:
    if asking:
        # Both leave in one write. What is wrong with the first is wrong with the second.
        link.send(ASKING).add_done_callback(lambda done: done.cancelled() or done.exception())
    sent: asyncio.Future[Any] = link.send(command)
    return sent
