"""Connections being made, each in a thread, so that nobody waits for one past a deadline."""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

from redis.exceptions import RedisError

from ratelimit_app.core.calls import StoreTimeout, StoreUnavailable


class Connections(Protocol):
    """Where a connection is wanted."""

    def make(self) -> Any: ...

    def done_connecting(self, *, made: bool) -> None: ...

    def keep(self, line: Any) -> None: ...


class Attempt:
    """One connection being made in a thread, and the request that waits for it until its deadline."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._made: Any = None
        self._error: BaseException | None = None
        self._abandoned = False

    def run(self) -> None:
        """Connect. For a thread."""
        try:
            made, error = self._connections.make(), None
        except BaseException as exception:  # noqa: BLE001 - handed to the request that waits
            made, error = None, exception
        self._connections.done_connecting(made=made is not None)
        with self._lock:
            self._made, self._error = made, error
            late = self._abandoned
        self._done.set()
        if late and made is not None:
            self._connections.keep(made)

    def wait(self, deadline: float) -> Any:
        """Give the connection by a deadline on the monotonic clock. Raises what went wrong, or StoreUnavailable."""
        if not self._done.wait(max(deadline - time.monotonic(), 0)):
            with self._lock:
                if self._made is None and self._error is None:
                    self._abandoned = True
                    msg = "no connection within STORE_TIMEOUT"
                    raise StoreTimeout(msg)
        if isinstance(self._error, (RedisError, OSError, StoreUnavailable)):
            raise self._error
        if self._error is not None:
            msg = f"connecting failed: {self._error!r}"
            raise StoreUnavailable(msg) from self._error
        return self._made
