"""Connections of the limiter's own, made from a django-redis alias."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from django_redis.pool import ConnectionFactory
from redis.exceptions import RedisError, ResponseError

from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.store import aliases, connection
from ratelimit_app.store.connection import client, connection_kwargs, unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

PING = b"*1\r\n$4\r\nPING\r\n"
SCRIPT = b"*1\r\n$7\r\nEVALSHA\r\n"


def execute(connections: connection.Connections, command: bytes, timeout: float) -> Any:
    """Send a command that has so many seconds from now on."""
    now = time.monotonic()
    return connections.execute(command, now + timeout, now)


class OwnFactory(ConnectionFactory):  # type: ignore[misc]
    """A project's connection factory."""


def test_a_client_when_made_has_the_limiters_timeouts(settings: Any) -> None:
    """STORE_TIMEOUT is every wait of a connection, nothing is tried again, nothing is decoded."""
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "STORE_TIMEOUT": 0.25}
    kwargs = connection_kwargs("default")[1]
    assert (0.25, 0.25) == (kwargs["socket_timeout"], kwargs["socket_connect_timeout"])
    assert (0, False) == (kwargs["retry"]._retries, kwargs["decode_responses"])


def test_a_client_when_asked_for_again_is_the_same(settings: Any) -> None:
    """One client for an alias, and a new one when the settings have changed."""
    mine = client()
    assert mine is client("default")
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "STORE_TIMEOUT": 0.25}
    assert mine is not client()


def test_a_client_when_settings_change_while_it_is_made_is_not_kept(settings: Any, monkeypatch: Any) -> None:
    """Another thread that began with the old settings does not leave its client to those that have the new ones."""
    connect = aliases.connect

    def overtaken(alias: str) -> Any:
        made = connect(alias)
        connection.forget()
        return made

    monkeypatch.setattr(connection, "connect", overtaken)
    connection.forget()
    late = client()
    monkeypatch.undo()
    assert late is not client()


def test_a_pool_when_django_redis_has_one_for_the_url_is_another(valkey: Any) -> None:
    """django-redis shares a pool by URL alone; the limiter's timeouts do not leak into the cache's, nor its into ours."""
    assert client().connection_pool is not valkey.connection_pool
    assert valkey.connection_pool.connection_kwargs.get("socket_timeout") != 2.0


@pytest.mark.parametrize(
    "location", ["{url}", ["{url}"], ["{url}", "redis://replica:1/0"], "{url},redis://replica:1/0"]
)
def test_a_location_when_it_lists_replicas_is_its_first(settings: Any, location: Any) -> None:
    """Decisions are written where writes go: the first address, as django-redis has it."""
    cache = settings.CACHES["default"]
    url = cache["LOCATION"]
    given = (
        [one.format(url=url) for one in location] if isinstance(location, list) else location.format(url=url)
    )
    settings.CACHES = {"default": {**cache, "LOCATION": given}}
    assert client().ping()


def test_options_when_given_reach_the_connection(settings: Any) -> None:
    """Passwords, names and a project's own factory count; timeouts and decoding of the cache do not."""
    options = {
        "CONNECTION_FACTORY": f"{__name__}.OwnFactory",
        "CONNECTION_POOL_KWARGS": {"client_name": "mine", "decode_responses": True, "max_connections": 3},
        "SOCKET_TIMEOUT": 60,
    }
    settings.CACHES = {"default": {**settings.CACHES["default"], "OPTIONS": options}}
    kwargs = connection_kwargs("default")[1]
    assert ("mine", False, 2.0) == (
        kwargs["client_name"],
        kwargs["decode_responses"],
        kwargs["socket_timeout"],
    )
    assert client().client_getname() in {"mine", b"mine"}


def test_a_location_when_it_names_timeouts_has_no_say(settings: Any) -> None:
    """The URL's own timeouts are the cache's, not the limiter's."""
    cache = settings.CACHES["default"]
    settings.CACHES = {"default": {**cache, "LOCATION": f"{cache['LOCATION']}&socket_timeout=60"}}
    assert connection_kwargs("default")[1]["socket_timeout"] == 2.0
    assert client().ping()


@pytest.mark.parametrize("error", [RedisError("x"), ResponseError("x"), OSError("x"), TimeoutError("x")])
def test_errors_of_redis_when_wrapped_are_one_kind(error: Exception) -> None:
    """Whatever Redis or the system says becomes StoreUnavailable, with the first cause kept."""
    with pytest.raises(StoreUnavailable, match=f"{type(error).__name__}: x") as caught, unavailable():
        raise error
    assert caught.value.__cause__ is error


def test_errors_of_others_when_wrapped_stay_what_they_are() -> None:
    """A mistake in the code is not an outage."""
    with pytest.raises(KeyError), unavailable():
        _ = dict[str, int]()["ours"]


def test_a_connection_when_idle_for_long_is_polled_before_use(
    kill_clients: Callable[[], None], monkeypatch: Any
) -> None:
    """One that the server has closed meanwhile is replaced without a failure."""
    connections = connection.Connections("default")
    command = b"*1\r\n$4\r\nPING\r\n"
    assert execute(connections, command, 1) == b"PONG"
    kill_clients()
    monkeypatch.setattr(connection, "POLL_AFTER", 0.0)
    assert execute(connections, command, 1) == b"PONG"
    connections.close()


def test_a_connection_when_it_comes_too_late_serves_the_next(
    point_at: Callable[..., None], fake: Any
) -> None:
    """The request is over by its deadline; the connection that was being made for it is not thrown away."""
    slow = {"greeting": fake.greeting}

    def greeting(command: list[bytes]) -> bytes:
        time.sleep(0.03)
        return bytes(slow["greeting"](command))

    fake.greeting = greeting
    point_at(fake.url, 1.0)
    connections = connection.Connections("drill")
    with pytest.raises(StoreUnavailable, match="within STORE_TIMEOUT"):
        execute(connections, SCRIPT, 0.02)
    until = time.monotonic() + 2
    while not connections._idle and time.monotonic() < until:
        time.sleep(0.01)
    assert execute(connections, SCRIPT, 1) == b"OK"
    assert fake.connections == 1
    connections.close()


def threads() -> int:
    """Count the threads that are connecting."""
    return sum(thread.name == "ratelimit_app.connect" for thread in threading.enumerate())


def test_connections_when_many_are_being_made_at_once_are_bounded(
    fake: Any, point_at: Callable[..., None]
) -> None:
    """A silent server does not cost a thread for every request that comes."""
    fake.greeting = lambda command: None
    point_at(fake.url, 0.5)
    connections = connection.Connections("drill")
    for _ in range(connection.MAX_CONNECTING + 5):
        with pytest.raises(StoreUnavailable):
            execute(connections, SCRIPT, 0.002)
    assert threads() <= connection.MAX_CONNECTING


def options(settings: Any, **kwargs: Any) -> connection.Connections:
    """Give connections of an alias with these of redis-py's arguments, which nothing beside the test uses."""
    alias = {**settings.CACHES["default"], "OPTIONS": {"CONNECTION_POOL_KWARGS": kwargs}}
    settings.CACHES = {**settings.CACHES, "bounded": alias}
    return connection.Connections("bounded")


def test_connections_when_many_threads_ask_are_no_more_than_the_alias_allows(
    settings: Any, valkey: Any
) -> None:
    """`max_connections` bounds them; who finds none waits for one within its time, and is answered."""
    connections = options(settings, max_connections=3, client_name="bounded")
    seen: list[int] = []

    def ask(number: int) -> Any:
        command = b"*2\r\n$4\r\nECHO\r\n$%d\r\n%d\r\n" % (len(str(number)), number)
        replies = {execute(connections, command, 30) for _ in range(20)}
        seen.append(sum(b"bounded" in each["name"].encode() for each in valkey.client_list()))
        return replies == {b"%d" % number}

    with ThreadPoolExecutor(12) as threads_:
        assert all(threads_.map(ask, range(12)))
    assert 0 < max(seen) <= 3
    connections.close()
    assert connections._open == 0


def test_a_call_when_all_connections_stay_busy_is_unavailable(settings: Any) -> None:
    """It does not wait past its deadline, and says what to raise; what is given back serves the next."""
    connections = options(settings, max_connections=1)
    assert execute(connections, PING, 5) == b"PONG"
    taken = connections._idle.pop()
    with pytest.raises(StoreUnavailable, match=r"none of 1 connections .* raise max_connections"):
        execute(connections, PING, 0.02)
    connections._idle.append(taken)
    assert execute(connections, PING, 5) == b"PONG"
    connections.close()


@pytest.mark.parametrize("trouble", ["refused", "closed", "warmed and closed", "a script's error"])
def test_connections_when_they_fail_in_any_way_leave_room_for_others(
    settings: Any, kill_clients: Callable[[], None], monkeypatch: Any, trouble: str
) -> None:
    """No way of failing uses up the bound: after many of them there is still a connection to be had."""
    connections = options(settings, max_connections=2)
    make = connections.make
    for _ in range(5):
        with suppress(StoreUnavailable, ResponseError):
            if trouble == "refused":
                monkeypatch.setattr(connections, "make", refuse)
                execute(connections, PING, 5)
            elif trouble == "a script's error":
                execute(connections, SCRIPT, 5)
            else:
                assert connections.warm(5 if "warmed" in trouble else 1)
                kill_clients()
                execute(connections, PING, 5)
    monkeypatch.setattr(connections, "make", make)
    assert execute(connections, PING, 5) == b"PONG"
    assert connections._open <= 2
    connections.close()
    assert connections._open == 0


def refuse() -> Any:
    """Be refused."""
    raise ConnectionRefusedError
