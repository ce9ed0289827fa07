"""Names of servers, resolved in threads that nobody waits for when they hang."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from ipaddress import ip_address

MAX_RESOLVING = 32
_places = threading.BoundedSemaphore(MAX_RESOLVING)


async def addresses(host: str, port: int) -> list[str]:
    """
    Give the addresses of a host, in the system's order. Raises OSError.

    An event loop's own resolving takes a thread of its executor, which the loop waits for when it ends: under
    WSGI, where a loop lives for one request, a resolver that hangs would hold the request.
    """
    with suppress(ValueError):
        return [str(ip_address(host))]
    places = _places
    if not places.acquire(blocking=False):
        msg = "too many names are being resolved"
        raise OSError(msg)
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def resolve() -> None:
        found: list[str] = []
        problem: Exception | None = None
        try:
            rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found = list(dict.fromkeys(str(row[4][0]) for row in rows))
        except (OSError, ValueError) as error:
            problem = error
        finally:
            places.release()
        with suppress(RuntimeError):  # the loop is over, and nobody waits any more
            loop.call_soon_threadsafe(_settle, answer, found, problem)

    threading.Thread(target=resolve, name="ratelimit_app.resolve", daemon=True).start()
    return await answer


def _settle(answer: asyncio.Future[list[str]], found: list[str], problem: Exception | None) -> None:
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
