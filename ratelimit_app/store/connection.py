"""Connections of the limiter's own: the client of an alias, and the idle connections that carry script calls."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import ReadOnlyError, RedisClusterException, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ratelimit_app.conf import conf
from ratelimit_app.core.calls import StoreTimeout, StoreUnavailable
from ratelimit_app.store.aliases import connect
from ratelimit_app.store.attempts import Attempt
from ratelimit_app.store.cluster import ClusterClient
from ratelimit_app.store.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis


POLL_AFTER = 1.0
MAX_CONNECTING = 32
LOOK_AGAIN = 0.001  # seconds between two looks for a connection that comes free
_clients: dict[tuple[str, int], Any] = {}


def client(alias: str | None = None) -> redis.Redis:
    """
    Give the redis-py client of an alias (default: `CACHE`) with the limiter's timeouts and no retries.

    Raises StoreUnavailable when the alias is not a django-redis cache: a request must not become a 500 for that.
    """
    alias = alias or conf.cache
    # A thread that began with settings that are forgotten meanwhile must not leave what it made of them to all others.
    clients = _clients
    found = clients.get((alias, os.getpid()))
    if found is None:
        try:
            with unavailable():
                found = clients[(alias, os.getpid())] = connect(alias)
        except (ImproperlyConfigured, ImportError, ValueError, TypeError, KeyError) as error:
            msg = f"the cache alias {alias!r} gives no Redis client: {error}"
            raise StoreUnavailable(msg) from error
    return found  # type: ignore[no-any-return]


def known(alias: str) -> Any:
    """Give the client of an alias where it has been made: that of a cluster is not made while a request waits."""
    return _clients.get((alias, os.getpid()))


def site() -> redis.Redis:
    """Give the client of the server that keeps what is there once for the whole site. Raises StoreUnavailable."""
    made: Any = client()
    if not isinstance(made, ClusterClient):
        return made  # type: ignore[no-any-return]
    with unavailable():
        return made.owner(conf.keys.snapshot)


def is_spread() -> bool:
    """Whether keys may be on several servers, so that no transaction sees them all. Raises StoreUnavailable."""
    return isinstance(client(), ClusterClient)


def each_server() -> list[redis.Redis]:
    """Give a client of each primary. Raises StoreUnavailable."""
    made: Any = client()
    return made.primaries() if isinstance(made, ClusterClient) else [made]


def connection_kwargs(alias: str, node: str = "") -> tuple[type, dict[str, Any]]:
    """Give the class and the arguments of an alias's connections; `node`: `host:port` of one server of a cluster."""
    pool = _pool(alias, node)
    return pool.connection_class, dict(pool.connection_kwargs)


def _pool(alias: str, node: str) -> Any:
    made: Any = client(alias)
    return made.pool_of(node) if node else made.connection_pool


def forget() -> None:
    """Make connections anew at the next use: settings have changed, or this process is a fork."""
    global _clients  # noqa: PLW0603 - see client
    _clients = {}


@contextmanager
def unavailable() -> Iterator[None]:
    """Turn whatever goes wrong with Redis into one StoreUnavailable."""
    try:
        yield
    except (RedisError, RedisClusterException, OSError) as error:
        fail(error)


def fail(error: BaseException) -> NoReturn:
    """Raise StoreUnavailable for an error of redis-py or the operating system."""
    for made in list(_clients.values()):
        if isinstance(made, ClusterClient):
            made.doubt()
    msg = f"{type(error).__name__}: {error}"
    kind = StoreTimeout if isinstance(error, (TimeoutError, RedisTimeoutError)) else StoreUnavailable
    raise kind(msg) from error


@contextmanager
def answered() -> Iterator[None]:
    """Let what the server answers pass as it is, and turn whatever else goes wrong into StoreUnavailable."""
    try:
        yield
    except ResponseError as error:
        if isinstance(error, ReadOnlyError):
            fail(error)
        raise
    except (RedisError, OSError) as error:
        fail(error)


class Line(NamedTuple):
    """A redis-py connection, which knows how to connect, greet and close, and the wire that carries commands."""

    connection: Any
    wire: Wire


class Connections:
    """
    Idle connections of one process, last in first out; each call has one deadline for all that it waits for.

    A connection idle for up to a second is taken as alive; an older one is polled first. New ones are made in a
    thread, so that name resolution, connecting and the handshake cannot take a request past its deadline; one
    that arrives too late is kept for the next request. There are never more of them than the alias's
    `max_connections`: who finds none waits for one, until its deadline.
    """

    def __init__(self, alias: str, node: str = "") -> None:
        self._alias, self._node = alias, node
        self._idle: deque[tuple[Line, float]] = deque()
        self._connecting = threading.BoundedSemaphore(MAX_CONNECTING)
        self._lock, self._open = threading.Lock(), 0

    def execute(self, command: bytes, deadline: float, now: float) -> Any:
        """
        Send one packed command and give its reply, bytes undecoded.

        `deadline` and `now`: on the monotonic clock, seconds. Raises StoreUnavailable, or ResponseError for the
        server's own answers. A connection with an unread reply never goes back among the idle.
        """
        try:
            try:
                line, since = self._idle.pop()
            except IndexError:
                line, since = self._made(deadline), now
            if now - since > POLL_AFTER:
                line = self._fresh(line, deadline, now)
            return self._exchange(line, command, deadline, now)
        except (RedisError, OSError) as error:
            if isinstance(error, ResponseError) and not isinstance(error, ReadOnlyError):
                raise
            fail(error)

    def _exchange(self, line: Line, command: bytes, deadline: float, now: float) -> Any:
        try:
            reply = line.wire.exchange(command, deadline, now)
        except ResponseError as error:
            if isinstance(error, ReadOnlyError):
                self._drop(line)
            else:
                self._idle.append((line, now))
            raise
        except BaseException:
            self._drop(line)
            raise
        # Idle since the call began: the clock is read once a call.
        self._idle.append((line, now))
        return reply

    def _fresh(self, line: Line, deadline: float, now: float) -> Line:
        """Give the first idle connection that is still good, or a new one."""
        while line.wire.is_stale():
            self._close(line)
            try:
                line, since = self._idle.pop()
            except IndexError:
                return self._made(deadline)
            if now - since <= POLL_AFTER:
                break
        return line

    def _made(self, deadline: float) -> Line:
        while not self._may_open():
            with suppress(IndexError):
                return self._idle.pop()[0]
            if time.monotonic() >= deadline:
                msg = (
                    f"none of {self._open} connections came free within STORE_TIMEOUT: raise max_connections"
                )
                raise StoreUnavailable(msg)
            time.sleep(LOOK_AGAIN)
        if not self._connecting.acquire(timeout=max(deadline - time.monotonic(), 0)):
            self._count_closed()
            msg = "no connection within STORE_TIMEOUT: too many are being made"
            raise StoreTimeout(msg)
        attempt = Attempt(self)
        try:
            threading.Thread(target=attempt.run, name="ratelimit_app.connect", daemon=True).start()
        except RuntimeError as error:
            self.done_connecting(made=False)
            msg = f"no thread to connect in: {error}"
            raise StoreUnavailable(msg) from error
        made: Line = attempt.wait(deadline)
        return made

    def make(self) -> Line:
        """Open a connection, handshake included."""
        kind, kwargs = connection_kwargs(self._alias, self._node)
        # RESP2: nothing comes but replies, and the greeting is shorter.
        connection = kind(**kwargs | {"protocol": 2})
        connection.connect()
        # redis-py's own reading gives each piece of a reply a timeout of its own, and has no end.
        return Line(connection, Wire(connection._sock, conf.store_timeout))  # noqa: SLF001

    def keep(self, line: Line) -> None:
        """Put a connection among the idle."""
        self._idle.append((line, time.monotonic()))

    def done_connecting(self, *, made: bool) -> None:
        """Let another connection be made."""
        self._connecting.release()
        if not made:
            self._count_closed()

    def _may_open(self) -> bool:
        most = _pool(self._alias, self._node).max_connections
        with self._lock:
            may = bool(self._open < most)
            self._open += may
        return may

    def _count_closed(self) -> None:
        with self._lock:
            self._open -= 1

    def _drop(self, line: Line) -> None:
        """Close a connection that failed and all idle ones: what broke it has most likely broken them."""
        self._close(line)
        self.close()

    def _close(self, line: Line) -> None:
        line.connection.disconnect()
        self._count_closed()

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            try:
                self._close(self._idle.pop()[0])
            except IndexError:
                return

    def warm(self, count: int) -> int:
        """Have this many living connections idle, and give how many there are. Raises StoreUnavailable."""
        with unavailable(), suppress(IndexError):
            for _ in range(len(self._idle)):
                # One by one, so that requests always find the others.
                line, since = self._idle.popleft()
                if line.wire.is_stale():
                    self._close(line)
                else:
                    self._idle.append((line, since))
        with unavailable():
            for _ in range(count - len(self._idle)):
                if not self._may_open():
                    break
                try:
                    self.keep(self.make())
                except BaseException:
                    self._count_closed()
                    raise
        return len(self._idle)
