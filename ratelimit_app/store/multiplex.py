"""One connection of an event loop, shared by all its tasks: commands leave together, replies come in order."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import Any

import redis.asyncio as aredis
from redis.connection import SSLConnection, UnixDomainSocketConnection
from redis.exceptions import RedisError, ResponseError

from ratelimit_app.conf import conf
from ratelimit_app.core.evaluation import StoreUnavailable
from ratelimit_app.store.connection import connection_kwargs

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
        self._heard = 0.0

    async def execute(self, command: bytes) -> Any:
        """Send one packed command and give its reply. Raises StoreUnavailable or ResponseError."""
        if self._connection is None:
            await self._open()
        loop = asyncio.get_running_loop()
        future, sent = loop.create_future(), loop.time()
        self._waiting.append(future)
        if not self._out:
            loop.call_soon(self._flush)
        self._out.append(command)
        try:
            reply = await future
        except asyncio.CancelledError:
            if self._heard < sent and future in self._waiting:
                self._break(TimeoutError("nothing was heard since the command was sent"))
            raise
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._connection is not None and out:
            writer = asyncio.get_running_loop().create_task(
                self._connection.send_packed_command((b"".join(out),), check_health=False)
            )
            writer.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._break(task.exception())

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
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"{type(error).__name__}: {error}") from error
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
        except (RedisError, OSError, asyncio.CancelledError) as failure:
            error = failure
            if isinstance(failure, asyncio.CancelledError):
                raise
        finally:
            self._break(error)
            await connection.disconnect(nowait=True)

    def _answer(self, reply: Any) -> None:
        self._heard = asyncio.get_running_loop().time()
        future = self._waiting.popleft()
        if not future.done():
            future.set_result(reply)

    def _break(self, error: BaseException | None) -> None:
        waiting, self._waiting = self._waiting, deque()
        self._connection, self._out = None, []
        if self._reader is not None and self._reader is not asyncio.current_task():
            self._reader.cancel()
        self._reader = None
        for future in waiting:
            if not future.done():
                future.set_exception(StoreUnavailable(f"connection lost: {error!r}"))


def _async_class(kind: type) -> type:
    if issubclass(kind, UnixDomainSocketConnection):
        return aredis.UnixDomainSocketConnection
    if issubclass(kind, SSLConnection):
        return aredis.SSLConnection
    return aredis.Connection
