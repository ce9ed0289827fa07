"""The warm-up: connections and scripts are there before the first request needs them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from ratelimit_app.store import scripts, warmup
from ratelimit_app.store.connection import client
from ratelimit_app.store.gateway import async_gateway, gateway, warm_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.store.conftest import Own


@pytest.fixture
def patient(own: Own, settings: Any) -> Own:
    """A server of the test's own, and time for it."""
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "STORE_TIMEOUT": 5.0}
    return own


def until(holds: Callable[[], bool]) -> None:
    """Wait for what another thread's handshake may delay."""
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def connected(**what: str) -> int:
    """Count the server's connections by what it knows of them: the gateway's alone speak RESP2."""
    clients: Any = client().client_list()
    if not what.keys() <= clients[0].keys():
        pytest.skip(f"this server does not tell {', '.join(what)} of its clients, as Redis does from 7.0 on")
    return sum(what.items() <= one.items() for one in clients)


def test_connections_when_warmed_are_open_before_the_first_call(patient: Own) -> None:
    """As many as were asked for, and no more the second time."""
    assert [3, 3, 3] == [gateway().warm(count) for count in (3, 3, 0)]
    until(lambda: connected(resp="2") == 3)


def test_connections_when_the_server_has_closed_them_are_made_anew(patient: Own) -> None:
    """An idle connection that is dead is not counted as warm."""
    assert 2 == gateway().warm(2)
    patient.stop()
    patient.start()
    assert 2 == gateway().warm(2)
    until(lambda: connected(resp="2") == 2)


async def test_a_loop_when_everybody_warms_up_has_its_connection_open(patient: Own) -> None:
    """The thread that refreshes asks each loop to open its own connection, once."""
    found = async_gateway()
    for _ in range(2):
        await asyncio.to_thread(warm_up, 0)
        assert found._warming is not None
        await found._warming
        assert 1 == connected(cmd="ping")


async def test_a_loop_when_redis_is_away_is_not_troubled_by_the_warm_up(
    point_at: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """A call tells what is wrong; the warm-up itself raises nothing into the loop."""
    point_at("unix:///nowhere/at-all.sock?db=0")
    found = async_gateway()
    found.warm()
    assert found._warming is not None
    await found._warming
    assert [] == [record for record in caplog.records if record.name == "asyncio"]


def test_scripts_when_loaded_are_known_to_the_server(valkey: Any) -> None:
    """After a restart no call has to send its script."""
    valkey.script_flush()
    assert len(scripts.names()) == warmup.load_scripts()
    shas = [scripts.script(name).sha.decode() for name in scripts.names()]
    assert all(valkey.script_exists(*shas))
    assert "decide" in scripts.names()


@pytest.mark.parametrize(
    "value", [None, b"", b"abc", b"abc:", b"abc:x", b":4", b"a b:4", Exception("x"), "abc:4"]
)
def test_a_wish_when_it_is_none_is_ignored(value: object) -> None:
    """C136: whatever stands at the key, the refresh goes on."""
    assert warmup.read_wish(value) is None


def test_a_wish_when_it_asks_for_too_much_is_cut() -> None:
    """Nobody makes every process open a million connections by one key."""
    assert warmup.Wish("abc", warmup.MAX_CONNECTIONS) == warmup.read_wish(b"abc:1000000")
    assert warmup.Wish("abc", 4) == warmup.read_wish(b"abc:4")
