"""Who sends a request, through the middleware, over Django's test clients and a real Valkey."""

from __future__ import annotations

import logging
import tracemalloc
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.core.handlers.asgi import ASGIRequest
from django.test import AsyncClient, Client, override_settings

from ratelimit_app import clients
from ratelimit_app.clients import client_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROXY = "10.0.0.5"
VICTIM, ATTACKER = "203.0.113.7", "203.0.113.66"
FORWARDING = (
    "X-Forwarded-For",
    "X-Real-IP",
    "Forwarded",
    "CF-Connecting-IP",
    "True-Client-IP",
    "X-Client-IP",
)


@pytest.fixture(params=["sync", "async"])
def send(request: pytest.FixtureRequest) -> Any:
    """Send a request of one colour from a peer, with headers, and give its status."""

    def sync_send(peer: str, headers: dict[str, str]) -> int:
        return Client().get("/plain/", headers=headers, REMOTE_ADDR=peer).status_code

    async def async_send(peer: str, headers: dict[str, str]) -> int:
        lines = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        scope: Any = {"path": "/plain/", "client": [peer, 4711], "headers": lines}
        answer: Any = await AsyncClient().request(**scope)
        return int(answer.status_code)

    return sync_send if request.param == "sync" else async_to_sync(async_send)


@pytest.fixture(autouse=True)
def _nothing_told() -> Iterator[None]:
    clients._warned.clear()
    yield
    clients._warned.clear()


def forwarded(value: str) -> dict[str, str]:
    """Write the usual header."""
    return {"X-Forwarded-For": value}


def identities(valkey: Any) -> set[str]:
    """Name everybody who is counted."""
    return {key.decode().partition("{")[2].partition("}")[0] for key in valkey.keys("rl:1:{*}:*")}


@pytest.mark.parametrize(
    "written",
    [
        lambda n: f"198.51.100.{n}, 203.0.113.9",
        lambda n: f"203.0.113.9:{51234 + n}",
        lambda n: f"203.0.113.9, 10.0.0.{n + 1}",
        lambda n: f"{'x' * 3_000}{n}, 203.0.113.9",
        lambda n: f'"unclosed {n}, ::ffff:203.0.113.9',
        lambda n: ["2002:cb00:7109::1", "64:ff9b::cb00:7109", "::ffff:cb00:7109", "203.0.113.9"][n],
    ],
    ids=["forged", "ports", "balancers", "long", "quote", "carried"],
)
def test_a_client_when_it_is_written_in_many_ways_has_one_limit(
    send: Any, rules: Any, valkey: Any, written: Callable[[int], str]
) -> None:
    """C01, C04, C08, C13, C15: what changes with each request moves nobody; the fourth of three is denied."""
    rules({"rate": "3/m"})
    assert [200, 200, 200, 429] == [send(PROXY, forwarded(written(n))) for n in range(4)]
    assert {"ip:203.0.113.9"} == identities(valkey)


def test_a_victim_when_an_attacker_writes_its_address_is_untouched(
    send: Any, rules: Any, valkey: Any
) -> None:
    """C03: the quota that is used up is the attacker's."""
    rules({"rate": "2/m"})
    assert [200, 200, 429] == [send(PROXY, forwarded(f"{VICTIM}, {ATTACKER}")) for _ in range(3)]
    assert {f"ip:{ATTACKER}"} == identities(valkey)
    assert send(PROXY, forwarded(VICTIM)) == 200


@pytest.mark.parametrize("name", FORWARDING)
@pytest.mark.parametrize("setting", ["X-Forwarded-For", "X-Real-IP", "Forwarded", "CF-Connecting-IP"])
def test_a_header_when_its_peer_is_not_trusted_is_not_read(
    send: Any, rules: Any, valkey: Any, name: str, setting: str
) -> None:
    """C02: who reaches the site directly is its peer, whatever it sends and whichever header is configured."""
    rules({"rate": "2/m"})
    value = f"for={VICTIM}" if name == "Forwarded" else VICTIM
    with override_settings(
        RATELIMIT_APP={"TRUSTED_PROXIES": ["10.0.0.0/8"], "CLIENT_IP_HEADER": setting, "STORE_TIMEOUT": 2.0}
    ):
        assert [200, 200, 429] == [send("198.51.100.4", {name: value}) for _ in range(3)]
    assert {"ip:198.51.100.4"} == identities(valkey)


@pytest.mark.parametrize(
    "junk",
    ["not-an-ip", "unknown", "", "_hidden", "1.2.3", "x" * 5_000, "203.0.113.9%eth0", "::1%" + "e" * 200],
)
def test_a_hop_when_it_cannot_be_read_is_counted_as_the_proxy_that_wrote_it(
    send: Any, rules: Any, valkey: Any, junk: str
) -> None:
    """C10: never the address left of it, never an error."""
    rules({"rate": "2/m"})
    answers = [send(PROXY, forwarded(f"198.51.100.{n}, {junk}")) for n in range(3)]
    assert [200, 200, 429] == answers
    assert {f"ip:{PROXY}"} == identities(valkey)


def test_an_edge_header_when_it_comes_twice_is_nobodys_word() -> None:
    """C01, C10: two lines of a header that holds one address arrive joined; the peer is left."""
    lines = [(b"x-real-ip", VICTIM.encode()), (b"x-real-ip", ATTACKER.encode())]
    scope = {"type": "http", "method": "GET", "path": "/", "client": [PROXY, 4711], "headers": lines}
    settings = {"TRUSTED_PROXIES": ["10.0.0.0/8"], "CLIENT_IP_HEADER": "X-Real-IP"}
    with override_settings(RATELIMIT_APP=settings):
        found = client_from(ASGIRequest(scope, BytesIO()).META)
        assert found is not None
        assert found.network == f"ip:{PROXY}"


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "X-Real-IP"])
def test_headers_when_they_are_long_and_ever_new_are_not_kept(name: str) -> None:
    """A client that pads its header fills no memory; it is still who the proxy says, or the proxy."""
    settings = {"TRUSTED_PROXIES": ["10.0.0.0/8"], "CLIENT_IP_HEADER": name}
    key, end = (
        f"HTTP_{name.upper().replace('-', '_')}",
        ", for=203.0.113.9" if name == "Forwarded" else ", 203.0.113.9",
    )
    with override_settings(RATELIMIT_APP=settings):
        client_from({"REMOTE_ADDR": PROXY, key: "203.0.113.9"})
        tracemalloc.start()
        try:
            for n in range(200):
                found = client_from({"REMOTE_ADDR": PROXY, key: f"{n}".ljust(20_000, "x") + end})
                assert found is not None
                assert str(found.address) == (PROXY if name == "X-Real-IP" else "203.0.113.9")
                client_from({"REMOTE_ADDR": PROXY, key: f"{n}".ljust(20_000, "y")})
            grown = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert grown < 1_000_000


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "X-Real-IP"])
@pytest.mark.parametrize(
    ("peer", "proxies", "warnings"),
    [
        ("10.0.0.5", [], 1),
        ("127.0.0.1", [], 1),
        ("fd00::5", [], 1),
        ("100.64.0.5", [], 1),
        ("10.0.0.5", ["192.168.0.0/16"], 1),
        ("10.0.0.5", ["10.0.0.0/8"], 0),
        ("100.64.0.5", ["100.64.0.0/10"], 0),
        ("8.8.8.8", [], 0),
        ("2606:4700::1", [], 0),
    ],
)
def test_a_proxy_when_nobody_has_named_it_is_told_of_by_whatever_header_it_writes(
    name: str, peer: str, proxies: list[str], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    """C06: once, with the header and the peer to list; a proxy that is listed, or a stranger, is no finding."""
    with (
        override_settings(RATELIMIT_APP={"TRUSTED_PROXIES": proxies}),
        caplog.at_level(logging.WARNING, "ratelimit_app"),
    ):
        for _ in range(3):
            client_from({"REMOTE_ADDR": peer, f"HTTP_{name.upper().replace('-', '_')}": "203.0.113.9"})
    assert warnings == caplog.text.count(
        f"ratelimit.proxy_unlisted {name} arrives from the private address {peer}"
    )
    other = name != "X-Forwarded-For"
    assert (warnings and other) == ("CLIENT_IP_HEADER (now 'X-Forwarded-For')" in caplog.text)


def test_a_proxy_when_no_header_arrives_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """C06: a private client that forwards for nobody is a client."""
    with override_settings(RATELIMIT_APP={}), caplog.at_level(logging.WARNING, "ratelimit_app"):
        client_from({"REMOTE_ADDR": "10.0.0.5", "HTTP_HOST": "testserver"})
    assert not caplog.records
