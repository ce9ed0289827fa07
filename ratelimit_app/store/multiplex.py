"""One connection of an event loop, shared by all its tasks: commands leave together, replies come in order."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import Any

import redis.asyncio as aredis
from redis.connection import SSLConnection, UnixDomainSocketConnection
from redis.exceptions import InvalidResponse, ReadOnlyError, ResponseError

from ratelimit_app.conf import conf
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.store.connection import connection_kwargs

# The part of STORE_TIMEOUT after which silence is the server's fault; what is before it went into connecting.
OVERDUE = 0.5
_SYNC_ONLY = ("retry", "parser_class", "connection_pool", "socket_timeout", "event_dispatcher")


class Multiplexed:
    """
    A connection that many tasks use at once.

    A caller that gives up leaves its place in the queue, so that its late reply is not taken for another's; a
    connection that has said nothing since that caller's command is given up with it.
    When the connection breaks, everybody who waits is told, and the next call opens a new one.
    """

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._out: list[bytes] = []
        self._opening: asyncio.Task[Any] | None = None
        self._connection: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._heard = 0.0

    async def execute(self, command: bytes) -> Any:
        """Send one packed command and give its reply. Raises StoreUnavailable or ResponseError."""
        if self._connection is None:
            await self._open()
        if self._connection is None:
            # Lost again before this caller had its turn: its place in the queue would be another's.
            msg = "connection lost as soon as it was made"
            raise StoreUnavailable(msg)
        loop = asyncio.get_running_loop()
        future, sent = loop.create_future(), loop.time()
        self._waiting.append(future)
        if not self._out:
            loop.call_soon(self._flush)
        self._out.append(command)
        try:
            reply = await future
        except asyncio.CancelledError:
            # A caller that gives up for reasons of its own says nothing about the connection.
            overdue = loop.time() - sent > conf.store_timeout * OVERDUE
            if overdue and self._heard < sent and future in self._waiting:
                self._break(TimeoutError("nothing was heard since the command was sent"))
            raise
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    def _flush(self) -> None:
        out, self._out = self._out, []
        connection = self._connection
        if connection is not None and out:
            writer = asyncio.get_running_loop().create_task(_write(connection, b"".join(out)))
            writer.add_done_callback(lambda task: self._sent(task, connection))

    def _sent(self, task: asyncio.Task[None], connection: Any) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and connection is self._connection:
            self._break(error)

    async def _open(self) -> None:
        """Open the connection once, whoever asks first; a caller that is cancelled does not cancel it."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._connect())
            self._opening.add_done_callback(self._opened)
        await asyncio.shield(self._opening)

    def _opened(self, task: asyncio.Task[Any]) -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()

    async def _connect(self) -> None:
        kind, kwargs = connection_kwargs(self._alias)
        kwargs = {name: value for name, value in kwargs.items() if name not in _SYNC_ONLY}
        connection = _async_class(kind)(**kwargs, socket_timeout=conf.store_timeout)
        try:
            await connection.connect()
        except Exception as error:
            # A greeting that is none makes the parsers raise whatever they like.
            await connection.disconnect(nowait=True)
            msg = f"{type(error).__name__}: {error}"
            raise StoreUnavailable(msg) from error
        connection.socket_timeout = None
        self._connection = connection
        self._reader = asyncio.get_running_loop().create_task(self._read(connection))

    async def _read(self, connection: Any) -> None:
        error: BaseException | None = None
        try:
            while True:
                try:
                    reply = await connection.read_response(disable_decoding=True, timeout=math.inf)
                except ResponseError as answer:
                    reply = answer
                self._answer(reply)
        except asyncio.CancelledError as cancelled:
            error = cancelled
            raise
        except Exception as failure:  # noqa: BLE001 - bytes that are no reply make the parsers raise what they like
            error = failure
        finally:
            if self._connection is connection:
                self._reader = None
                self._break(error)
            await connection.disconnect(nowait=True)

    def _answer(self, reply: Any) -> None:
        if not self._waiting:
            msg = "a reply that nobody has asked for"
            raise InvalidResponse(msg)
        self._heard = asyncio.get_running_loop().time()
        future = self._waiting.popleft()
        if not future.done():
            future.set_result(reply)
        if isinstance(reply, ReadOnlyError):
            # A demoted primary: whoever is the primary now is found by connecting anew.
            raise reply

    def close(self) -> None:
        """Let go of the connection; who waits is told. For the thread of the loop."""
        self._break(None)

    def _break(self, error: BaseException | None) -> None:
        waiting, self._waiting = self._waiting, deque()
        connection, self._connection, self._out = self._connection, None, []
        reader, self._reader = self._reader, None
        for future in waiting:
            if not future.done():
                future.set_exception(StoreUnavailable(f"connection lost: {error!r}"))
        if connection is not None:
            closing = asyncio.get_running_loop().create_task(_end(connection, reader))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


async def _write(connection: Any, commands: bytes) -> None:
    if not connection.is_connected:
        # Asked to send, redis-py would connect anew, and nobody would read what comes back.
        msg = "the connection was closed"
        raise ConnectionResetError(msg)
    await connection.send_packed_command((commands,), check_health=False)


async def _end(connection: Any, reader: asyncio.Task[None] | None) -> None:
    if reader is not None:
        reader.cancel()
        await asyncio.wait([reader])
    await connection.disconnect(nowait=True)


def _async_class(kind: type) -> type:
    if issubclass(kind, UnixDomainSocketConnection):
        return aredis.UnixDomainSocketConnection
    if issubclass(kind, SSLConnection):
        return aredis.SSLConnection
    return aredis.Connection
