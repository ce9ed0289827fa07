"""One connection of an event loop, shared by all its tasks: commands leave together, replies come in order."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import redis.asyncio as aredis
from redis.connection import SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import SentinelManagedConnection

from ratelimit_app.conf import conf
from ratelimit_app.core.calls import StoreTimeout, StoreUnavailable
from ratelimit_app.store.connection import connection_kwargs
from ratelimit_app.store.names import addresses, aside
from ratelimit_app.store.wire import parse

if TYPE_CHECKING:
    from collections.abc import Callable

# A server that answers, but is this many calls behind what anybody still waits for, will not catch up.
MAX_BEHIND = 10_000
_SYNC_ONLY = (
    "retry",
    "parser_class",
    "connection_pool",
    "socket_timeout",
    "event_dispatcher",
    "redis_connect_func",
)


class Link(asyncio.Protocol):
    """
    An open connection that many tasks use at once.

    A caller that gives up leaves its place in the queue, so that its late reply is not taken for another's.
    Deadlines are in the order of the commands, as replies are, so one timer watches the oldest for all of them:
    calls that are due fail, and a connection that has said nothing since they were sent is given up with them.
    """

    def __init__(self, timeout: float, on_lost: Callable[[Link], None]) -> None:
        """`timeout`: seconds for a call. `on_lost` is told once, when the connection is of no use any more."""
        self._loop = asyncio.get_running_loop()
        self._timeout, self._on_lost = timeout, on_lost
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._out: list[bytes] = []
        self._rest = b""
        # Commands are numbered by their order: how many were sent, answered, and failed for want of an answer.
        self._sent = self._answered = self._failed = 0
        # When the commands of a tick left, and the number of the last one.
        self._due: deque[tuple[float, int]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._heard = 0.0
        self.lost: asyncio.Future[None] = self._loop.create_future()

    def take(self, transport: asyncio.Transport) -> None:
        """Speak over a transport that another protocol has opened."""
        self._transport = transport
        transport.set_protocol(self)

    def send(self, command: bytes) -> asyncio.Future[Any]:
        """Send a packed command and give the future of its reply: StoreUnavailable or ResponseError may be set."""
        if self._transport is None:
            msg = "connection lost before the call"
            raise StoreUnavailable(msg)
        future = self._loop.create_future()
        self._waiting.append(future)
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(command)
        return future

    def _flush(self) -> None:
        if self._transport is None:
            return
        out, self._out = self._out, []
        self._sent += len(out)
        now = self._loop.time()
        self._due.append((now, self._sent))
        if self._timer is None:
            self._timer = self._loop.call_at(now + self._timeout, self._sweep)
        # Not held back when the server is slow to read: what waits here is bounded by the time that callers wait.
        self._transport.write(b"".join(out))

    def data_received(self, data: bytes) -> None:
        """Hand each reply to the caller whose turn it is."""
        data = self._rest + data
        try:
            start = self._answer(data)
        except (InvalidResponse, ReadOnlyError) as error:
            self.end(error)
            return
        self._rest = data[start:]
        while self._due and self._due[0][1] <= self._answered:
            self._due.popleft()

    def _answer(self, data: bytes) -> int:
        """Answer as many calls as there are whole replies; tell where the rest begins."""
        start, waiting, before = 0, self._waiting, len(self._waiting)
        while start < len(data):
            reply, end = parse(data, start)
            if not end:
                break
            if not waiting:
                msg = "a reply that nobody has asked for"
                raise InvalidResponse(msg)
            start, future = end, waiting.popleft()
            if type(reply) is not bytes and isinstance(reply, ResponseError):
                _refuse(future, reply)
            elif not future.done():
                future.set_result(reply)
        if answered := before - len(waiting):
            self._answered += answered
            self._heard = self._loop.time()
        return start

    def _sweep(self) -> None:
        """Fail the calls whose time is up, and the connection when it has been silent since they were sent."""
        self._timer, silent = None, False
        now = self._loop.time()
        while self._due and self._due[0][0] + self._timeout <= now:
            sent, last = self._due.popleft()
            silent = self._heard <= sent
            first = max(self._failed, self._answered)
            for future in islice(self._waiting, first - self._answered, last - self._answered):
                if not future.done():
                    future.set_exception(StoreTimeout("no reply within STORE_TIMEOUT"))
            self._failed = last
        if silent or self._failed - self._answered > MAX_BEHIND:
            self.end(TimeoutError("nothing was heard since the command was sent"))
        elif self._due:
            self._timer = self._loop.call_at(self._due[0][0] + self._timeout, self._sweep)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell everybody who waits."""
        self.end(error or ConnectionResetError("the server closed the connection"))

    def end(self, error: BaseException | None) -> None:
        """Let go of the connection; who waits is told. For the thread of the loop."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        waiting, self._waiting, self._out = self._waiting, deque(), []
        if self._timer is not None:
            self._timer.cancel()
        for future in waiting:
            if not future.done():
                kind = StoreTimeout if isinstance(error, TimeoutError) else StoreUnavailable
                future.set_exception(kind(f"connection lost: {error!r}"))
        # Not closed politely: a server that hangs would keep what is still to be written, and us with it.
        transport.abort()
        if not self.lost.done():
            self.lost.set_result(None)
        self._on_lost(self)


def _refuse(future: asyncio.Future[Any], error: ResponseError) -> None:
    if not future.done():
        future.set_exception(error)
    if isinstance(error, ReadOnlyError):
        # A demoted primary: whoever is the primary now is found by connecting anew.
        raise error


class Multiplexed:
    """The link of one event loop. When it is lost, the next call opens a new one."""

    def __init__(self, alias: str, node: str = "") -> None:
        """`node`: `host:port` of one server of a cluster."""
        self._alias, self._node = alias, node
        self.link: Link | None = None
        self._opening: asyncio.Task[Link] | None = None
        self._guards: set[asyncio.Task[None]] = set()

    async def open(self) -> Link:
        """
        Give the link, opened once, whoever asks first; a caller that is cancelled does not cancel it.

        Raises StoreUnavailable.
        """
        if self.link is not None:
            return self.link
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._connect())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    def _opened(self, task: asyncio.Task[Link]) -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()

    async def _connect(self) -> Link:
        kind, kwargs = connection_kwargs(self._alias, self._node)
        error: Exception = OSError("the name has no address")
        try:
            kind, kwargs = await _server(kind, kwargs)
            for each in await _ways(kind, kwargs):
                try:
                    return await self._link(kind, each)
                except (OSError, RedisConnectionError, RedisTimeoutError) as failure:
                    error = failure
        except Exception as failure:  # noqa: BLE001 - a greeting that is none makes the parsers raise what they like
            error = failure
        msg = f"{type(error).__name__}: {error}"
        timed_out = isinstance(error, (TimeoutError, RedisTimeoutError))
        raise (StoreTimeout if timed_out else StoreUnavailable)(msg) from error

    async def _link(self, kind: type, kwargs: dict[str, Any]) -> Link:
        """Connect and greet as redis-py does, then speak over its transport."""
        # RESP2: nothing comes but replies, and the greeting is shorter.
        connection = kind(**kwargs | {"protocol": 2}, socket_timeout=conf.store_timeout)
        link = Link(conf.store_timeout, self._lost)
        try:
            await connection.connect()
            _take_over(connection, link, unread=await connection.can_read())
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self.link = link
        guard = asyncio.get_running_loop().create_task(_guard(connection, link))
        self._guards.add(guard)
        guard.add_done_callback(self._guards.discard)
        return link

    def _lost(self, link: Link) -> None:
        if self.link is link:
            self.link = None

    def close(self) -> None:
        """Let go of the connection; who waits is told. For the thread of the loop."""
        if self.link is not None:
            self.link.end(None)


async def _server(kind: type, kwargs: dict[str, Any]) -> tuple[type, dict[str, Any]]:
    """
    Give the class and arguments that an event loop needs; sentinels are asked who the primary is.

    redis-py's own way of asking them is for threads, and its way for loops asks by connections of another kind.
    """
    # redis-py's clients name what asks for OCSP though it is off; its connections for loops know no such thing.
    ours = {
        name: value
        for name, value in kwargs.items()
        if name not in _SYNC_ONLY and (value or "_ocsp" not in name)
    }
    if issubclass(kind, SentinelManagedConnection):
        host, port = await aside(kwargs["connection_pool"].get_master_address)
        ours |= {"host": host, "port": port}
    return _async_class(kind), ours


async def _ways(kind: type, kwargs: dict[str, Any]) -> list[dict[str, Any]]:
    """Give the arguments for each address of the server."""
    if "host" not in kwargs:
        return [kwargs]
    found = await addresses(kwargs["host"], kwargs.get("port", 0))
    if issubclass(kind, aredis.SSLConnection):
        # The certificate is for the name. It has just been resolved, so to resolve it again will not hang.
        return [kwargs]
    return [kwargs | {"host": address} for address in found]


def _take_over(connection: Any, link: Link, *, unread: bool) -> None:
    """Put the link in the place of redis-py's streams, which read a reply in five awaits and two timers."""
    if unread:
        msg = "more came than the greeting's replies"
        raise InvalidResponse(msg)
    link.take(cast("asyncio.Transport", connection._writer.transport))  # noqa: SLF001


async def _guard(connection: Any, link: Link) -> None:
    """Close redis-py's side when the link is lost, and both when the loop ends, which cancels its tasks."""
    try:
        await link.lost
    finally:
        link.end(None)
        await connection.disconnect(nowait=True)


def _async_class(kind: type) -> type:
    if issubclass(kind, UnixDomainSocketConnection):
        return aredis.UnixDomainSocketConnection
    if issubclass(kind, SSLConnection):
        return aredis.SSLConnection
    return aredis.Connection
