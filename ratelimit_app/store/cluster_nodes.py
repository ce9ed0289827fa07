"""The servers of a cluster: who has which slot, and connections of threads to each of them."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NoReturn

from redis.exceptions import NoScriptError, ReadOnlyError, RedisClusterException, ResponseError

from ratelimit_app.conf import conf
from ratelimit_app.core.calls import ScriptCall, StoreTimeout, StoreUnavailable
from ratelimit_app.core.slots import TryAgain
from ratelimit_app.store import connection, health, scripts
from ratelimit_app.store.connection import Connections, Line

if TYPE_CHECKING:
    from ratelimit_app.core.breaker import Breaker
    from ratelimit_app.store.cluster import ClusterClient

ASKING = b"*1\r\n$6\r\nASKING\r\n"


class Redirected(Exception):
    """Another server has the slot (MOVED), or has this key of it already (ASK), or the slot is being moved."""

    def __init__(self, error: ResponseError, asked: str) -> None:
        super().__init__(str(error))
        self.kind, *rest = str(error).split(" ")
        slot, name = rest[:2] if self.kind != "TRYAGAIN" else ("0", asked)
        self.slot = int(slot)
        # A server that does not know its own name leaves it out: it is that of whoever was asked.
        self.name = name if not name.startswith(":") else asked.rpartition(":")[0] + name


def refuse(error: ResponseError, node: str) -> NoReturn:
    """Raise Redirected or StoreUnavailable for what a server says instead of a reply."""
    if str(error).startswith(("MOVED ", "ASK ", "TRYAGAIN")):
        raise Redirected(error, node) from error
    connection.fail(error)


class Node(Connections):
    """The connections of threads to one server, and its breaker."""

    def __init__(self, alias: str, node: str) -> None:
        super().__init__(alias, node)
        self.name, self.breaker = node, health.breaker(f"{alias} {node}")

    def ask(self, call: ScriptCall, deadline: float, *, asking: bool) -> Any:
        """Give a reply, or raise StoreUnavailable or Redirected."""
        now = self.allowed()
        with Watch(self.breaker, now):
            try:
                try:
                    return self._carry(scripts.evalsha(call), deadline, now, asking=asking)
                except NoScriptError:
                    return self._carry(scripts.evaluate(call), deadline, time.monotonic(), asking=asking)
            except ResponseError as error:
                refuse(error, self.name)

    def _carry(self, command: bytes, deadline: float, now: float, *, asking: bool) -> Any:
        if not asking:
            return self.execute(command, deadline, now)
        line = self.begin(ASKING, deadline, now)
        self._taken(line, deadline, now, keep=False)
        with connection.answered():
            return self._exchange(line, command, deadline, now)

    def allowed(self) -> float:
        """Give the time, unless the breaker is open."""
        now = time.monotonic()
        if self.breaker.is_open:
            health.require(self.breaker, now)
        return now

    def begin(self, command: bytes, deadline: float, now: float) -> Line:
        """Send a command whose reply will be taken by `end`. Raises StoreUnavailable."""
        with connection.unavailable():
            try:
                line, since = self._idle.pop()
            except IndexError:
                line, since = self._made(deadline), now
            if now - since > connection.POLL_AFTER:
                line = self._fresh(line, deadline, now)
            try:
                line.wire.begin(command, deadline)
            except BaseException:
                self._drop(line)
                raise
        return line

    def end(self, line: Line, deadline: float, now: float) -> Any:
        """Give the reply to what was begun. Raises StoreUnavailable, Redirected, NoScriptError."""
        with Watch(self.breaker, now):
            try:
                return self._taken(line, deadline, now, keep=True)
            except NoScriptError:
                raise
            except ResponseError as error:
                refuse(error, self.name)

    def _taken(self, line: Line, deadline: float, now: float, *, keep: bool) -> Any:
        with connection.answered():
            try:
                reply = line.wire.end(deadline)
            except ReadOnlyError:
                self._drop(line)
                raise
            except ResponseError:
                self._idle.append((line, now))
                raise
            except BaseException:
                self._drop(line)
                raise
        if keep:
            self._idle.append((line, now))
        return reply


class Watch:
    """Tell a breaker how a call went that began at a time."""

    def __init__(self, breaker: Breaker, began: float) -> None:
        self._breaker, self._began = breaker, began

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StoreUnavailable):
            now, timed_out = time.monotonic(), isinstance(error, StoreTimeout)
            # Another server has used up the time: this one has not been late.
            if not timed_out or now - self._began >= conf.store_timeout / 2:
                self._breaker.failed(self._began, now, timed_out=timed_out)
        elif self._breaker.troubled and (error is None or isinstance(error, (Redirected, NoScriptError))):
            self._breaker.succeeded(self._began)


class Slots:
    """Who has which slot. The first to ask has it found out in a thread, since a request must not wait for that."""

    def __init__(self, alias: str) -> None:
        self._alias, self._lock = alias, threading.Lock()
        self._making: Future[ClusterClient] | None = None

    def making(self) -> Future[ClusterClient]:
        """Give the client as soon as it is there."""
        with self._lock:
            if self._making is None or self._making.done():
                self._making = Future()
                threading.Thread(
                    target=self._make, args=(self._making,), name="ratelimit_app.slots", daemon=True
                ).start()
            return self._making

    def _make(self, making: Future[ClusterClient]) -> None:
        try:
            making.set_result(connection.client(self._alias))  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - handed to those who wait
            making.set_exception(error)


def late(error: BaseException | None = None) -> StoreTimeout:
    """Make the error of who waited in vain."""
    made = StoreTimeout("no reply within STORE_TIMEOUT")
    made.__cause__ = error
    return made


def has(cluster: ClusterClient, slot: int) -> str:
    """Give the `host:port` of a slot's primary. Raises StoreUnavailable."""
    try:
        return cluster.name_of(slot)
    except RedisClusterException as error:
        connection.fail(error)


def follow(cluster: ClusterClient, redirected: Redirected) -> None:
    """Learn from a redirection. Raises TryAgain where no server can answer several keys."""
    if redirected.kind == "TRYAGAIN":
        raise TryAgain(str(redirected)) from redirected
    if redirected.kind == "MOVED":
        cluster.has_moved(redirected.slot, redirected.name)
