"""Addresses of servers, found out in threads that nobody waits for when they hang."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
MAX_RESOLVING = 32
_places = threading.BoundedSemaphore(MAX_RESOLVING)


async def addresses(host: str, port: int) -> list[str]:
    """Give the addresses of a host, in the system's order. Raises OSError."""
    with suppress(ValueError):
        return [str(ip_address(host))]
    return await aside(lambda: _resolve(host, port))


def _resolve(host: str, port: int) -> list[str]:
    rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(row[4][0]) for row in rows))


async def aside(ask: Callable[[], T]) -> T:
    """
    Do what waits for others in a thread of its own, and give its answer. Raises OSError, or what `ask` raises.

    An event loop's own resolving takes a thread of its executor, which the loop waits for when it ends: under
    WSGI, where a loop lives for one request, a resolver that hangs would hold the request.
    """
    places = _places
    if not places.acquire(blocking=False):
        msg = "too many addresses are being asked for"
        raise OSError(msg)
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        found: Any = None
        problem: Exception | None = None
        try:
            found = ask()
        except Exception as error:  # noqa: BLE001 - handed to the task that waits
            problem = error
        finally:
            places.release()
        with suppress(RuntimeError):  # the loop is over, and nobody waits any more
            loop.call_soon_threadsafe(_settle, answer, found, problem)

    threading.Thread(target=run, name="ratelimit_app.resolve", daemon=True).start()
    return await answer


def _settle(answer: asyncio.Future[T], found: T, problem: Exception | None) -> None:
    if answer.done():
        return
    if problem is None:
        answer.set_result(found)
    else:
        answer.set_exception(problem)


def forget() -> None:
    """Have all places free: this process is a fork, and the threads that took them are not here."""
    global _places  # noqa: PLW0603 - a lock cannot be made whole again
    _places = threading.BoundedSemaphore(MAX_RESOLVING)
