"""The warm-up: connections and scripts are there before the first request needs them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from ratelimit_app.store import scripts, warmup
from ratelimit_app.store.connection import client
from ratelimit_app.store.gateway import Gateway, async_gateway, gateway, warm_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.store.conftest import Own


def connected(valkey: Any) -> int:
    """Count the connections that the server has."""
    return len(valkey.client_list())


def test_connections_when_warmed_are_open_before_the_first_call(valkey: Any) -> None:
    """As many as were asked for, no more the second time, and calls use them."""
    before, made = connected(valkey), Gateway("default")
    assert [3, 3] == [made.warm(3) for _ in range(2)]
    assert before + 3 == connected(valkey)
    assert 3 == made.warm(0)
    made.close()


def test_connections_when_the_server_has_closed_them_are_made_anew(own: Own) -> None:
    """An idle connection that is dead is not counted as warm."""
    assert 2 == gateway().warm(2)
    own.stop()
    own.start()
    before = connected(client())
    assert 2 == gateway().warm(2)
    assert before + 2 == connected(client())


async def test_a_loop_when_everybody_warms_up_has_its_connection_open(valkey: Any) -> None:
    """The thread that refreshes asks each loop to open its own connection, once."""
    async_gateway()
    before = connected(valkey)
    for _ in range(2):
        assert await asyncio.to_thread(warm_up, 0) >= 0
        for _ in range(500):
            if connected(valkey) > before:
                break
            await asyncio.sleep(0.01)
    assert before + 1 == connected(valkey)


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
