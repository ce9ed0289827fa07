"""Names of servers: found in the system's order, and no loop waits for a resolver that hangs."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.store import names
from ratelimit_app.store.names import addresses
from tests.store.asking import adecide

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = [(socket.AF_INET6, 1, 6, "", ("::1", 0, 0, 0)), (socket.AF_INET, 1, 6, "", ("127.0.0.1", 0))]


@pytest.fixture
def resolver(monkeypatch: Any) -> Callable[[Callable[[], Any]], None]:
    """Answer all questions for addresses by a function."""

    def use(answer: Callable[[], Any]) -> None:
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer())

    return use


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_an_address_when_asked_for_is_not_looked_up(resolver: Any, host: str) -> None:
    """What is an address already needs no resolver and no thread."""
    resolver(lambda: pytest.fail("looked up"))
    assert await addresses(host, 6379) == [host]


async def test_a_name_when_it_has_several_addresses_gives_each_once(resolver: Any) -> None:
    """All addresses in the system's order, so that the next one can be tried."""
    resolver(lambda: ROWS + ROWS)
    assert await addresses("valkey.test", 6379) == ["::1", "127.0.0.1"]


async def test_a_server_when_its_first_address_refuses_is_met_at_the_next(
    resolver: Any, point_at: Callable[..., None]
) -> None:
    """A server that listens on one of its addresses is found there."""
    greeted = asyncio.Event()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeted.set()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        resolver(lambda: ROWS)
        point_at(f"redis://valkey.test:{port}/0", 5.0)
        with pytest.raises(StoreUnavailable):
            await adecide(1)
        await asyncio.wait_for(greeted.wait(), 5)


async def test_a_name_when_unknown_is_an_error_of_the_system(resolver: Any) -> None:
    """What the resolver raises is raised to who asked."""

    def unknown() -> None:
        raise socket.gaierror(-2, "Name or service not known")

    resolver(unknown)
    with pytest.raises(OSError, match="not known"):
        await addresses("valkey.test", 6379)


def test_a_loop_when_the_resolver_hangs_ends_without_it(resolver: Any, point_at: Callable[..., None]) -> None:
    """An async view under WSGI: its loop is over while the resolver still hangs."""
    answer, asked, answered = threading.Event(), threading.Event(), threading.Event()

    def hang() -> list[Any]:
        asked.set()
        answer.wait(20)
        answered.set()
        return ROWS

    resolver(hang)
    point_at("redis://valkey.test:1/0")
    with pytest.raises(StoreUnavailable):
        asyncio.run(adecide(1))
    assert (True, False) == (asked.is_set(), answered.is_set())
    answer.set()


async def test_names_when_many_hang_take_a_bounded_number_of_threads(resolver: Any, monkeypatch: Any) -> None:
    """A resolver that hangs does not cost a thread for every request; forgotten, all places are free again."""
    monkeypatch.setattr(names, "_places", threading.BoundedSemaphore(2))
    answer = threading.Event()
    resolver(lambda: answer.wait(60) and ROWS)
    waiting = [asyncio.ensure_future(addresses("valkey.test", 1)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(OSError, match="too many"):
        await addresses("valkey.test", 1)
    names.forget()
    waiting.append(asyncio.ensure_future(addresses("valkey.test", 1)))
    answer.set()
    assert [["::1", "127.0.0.1"]] * 3 == await asyncio.gather(*waiting)
