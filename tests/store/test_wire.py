"""The parser and the wire: replies cut anywhere, bytes that are none, sockets with and without the kernel's timeouts."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import InvalidResponse, NoScriptError, ReadOnlyError, ResponseError

from ratelimit_app.store.wire import MAX_REPLY, Wire, parse
from tests.store.garbage import bulk

if TYPE_CHECKING:
    from collections.abc import Iterator

REPLIES = {
    b"+OK\r\n": b"OK",
    b":0\r\n": 0,
    b":7\r\n": 7,
    b":12345678901234567890\r\n": 12345678901234567890,
    b":-3\r\n": -3,
    b"$-1\r\n": None,
    b"$0\r\n\r\n": b"",
    b"$4\r\n\r\n\r\n\r\n": b"\r\n\r\n",
    bulk(b"x" * 50): b"x" * 50,
    bulk(b"y" * 5_000): b"y" * 5_000,
}


class Ordinary(socket.socket):
    """A socket whose reading is its own, as TLS sockets' and cooperative schedulers' is."""

    def recv(self, *args: int) -> bytes:
        """Read."""
        return super().recv(*args)


@pytest.fixture(params=[socket.socket, Ordinary])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Our end, which is one of the two kinds, and the server's."""
    ours, theirs = socket.socketpair()
    mine = request.param(fileno=ours.detach())
    with mine, theirs:
        yield mine, theirs


def ask(wire: Wire, timeout: float = 5.0, command: bytes = b"PING\r\n") -> Any:
    """Send a command that has so many seconds from now on."""
    now = time.monotonic()
    return wire.exchange(command, now + timeout, now)


@pytest.mark.parametrize("data", REPLIES)
def test_parse_when_a_reply_is_cut_anywhere_waits_for_the_rest(data: bytes) -> None:
    """However few bytes have come: no reply yet; with the last one, the reply and its end."""
    assert {(None, 0)} == {parse(data[:cut]) for cut in range(1, len(data))}
    assert (REPLIES[data], len(data)) == parse(data)


def test_parse_when_replies_follow_each_other_reads_one_after_the_other() -> None:
    """Where one reply ends the next begins, whatever is behind it."""
    stream, start, found = b"".join(REPLIES), 0, []
    while start < len(stream):
        reply, start = parse(stream, start)
        found.append(reply)
    assert list(REPLIES.values()) == found


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"-NOSCRIPT No matching script.\r\n", NoScriptError),
        (b"-READONLY no\r\n", ReadOnlyError),
        (b"-ERR Error running script (call to f_a): @user_script:1: -READONLY no\r\n", ReadOnlyError),
        (b"-ERR \xff\r\n", ResponseError),
        (b"-\r\n", ResponseError),
    ],
)
def test_parse_when_the_server_refuses_gives_its_error(data: bytes, kind: type[Exception]) -> None:
    """The server's own errors are replies: given, by their kind, with where they end."""
    error, end = parse(b"+OK\r\n" + data, 5)
    assert (kind, 5 + len(data)) == (type(error), end)


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"*1\r\n",
        b"_\r\n",
        b"\r\n",
        b"$\r\n",
        b"$-2\r\n",
        b"$+5\r\nhello\r\n",
        b"$ 5\r\nhello\r\n",
        b"$5\r\nhelloXX",
        b"$5\r\nhello world\r\n",
        b"$1_0\r\n0123456789\r\n",
        b"$%d\r\n" % (MAX_REPLY + 1),
        b"$" + b"9" * 30 + b"\r\n",
        b":\r\n",
        b":1x\r\n",
        b":--1\r\n",
        b":" + b"1" * 30 + b"\r\n",
        b"+" + b"x" * (MAX_REPLY + 1),
    ],
    ids=lambda data: repr(data[:12]),
)
def test_parse_when_bytes_are_no_reply_refuses_them(data: bytes) -> None:
    """What no script can have answered ends in one kind of error, at the start and in the middle of a stream."""
    with pytest.raises(InvalidResponse, match="malformed"):
        parse(data)
    with pytest.raises(InvalidResponse, match="malformed"):
        parse(b":1\r\n" + data, 4)


def test_a_wire_when_answered_gives_the_reply(pair: Any) -> None:
    """Each kind of socket carries a command there and a reply back, whole or in pieces."""
    wire = Wire(pair[0], 5.0)
    for data, reply in REPLIES.items():
        pair[1].sendall(data)
        assert reply == ask(wire)
        assert pair[1].recv(100) == b"PING\r\n"


def test_a_wire_when_nothing_comes_is_too_slow(pair: Any) -> None:
    """The deadline holds for each kind of socket, shorter than the usual one or used up before the start."""
    wire = Wire(pair[0], 60.0)
    for timeout in (0.02, 0.0, -1.0):
        with pytest.raises(TimeoutError, match=r"timed out|within STORE_TIMEOUT"):
            ask(wire, timeout)


@pytest.mark.parametrize("size", [10, 10_000_000])
def test_a_wire_when_the_time_was_used_up_before_is_too_slow(pair: Any, size: int) -> None:
    """Short or long: a command whose time ran out on the way to the wire is too slow, and nothing else."""
    wire, now = Wire(pair[0], 5.0), time.monotonic()
    with pytest.raises(TimeoutError, match=r"timed out|within STORE_TIMEOUT"):
        wire.exchange(b"x" * size, now - 5.0, now - 10.0)


def test_a_wire_when_nobody_takes_a_long_command_is_too_slow(pair: Any) -> None:
    """What fills the socket's buffers waits for room by the same deadline."""
    with pytest.raises(TimeoutError, match=r"timed out|within STORE_TIMEOUT"):
        ask(Wire(pair[0], 60.0), 0.05, b"x" * 10_000_000)


def test_a_wire_when_a_reply_stops_half_way_is_too_slow(pair: Any) -> None:
    """The first half buys no second deadline."""
    wire = Wire(pair[0], 60.0)
    pair[1].sendall(b"$50\r\nabc")
    with pytest.raises(TimeoutError, match=r"timed out|within STORE_TIMEOUT"):
        ask(wire, 0.02)


def test_a_wire_when_the_server_hangs_up_is_broken(pair: Any) -> None:
    """The end of the connection is no reply, before the first byte or behind some."""
    wire = Wire(pair[0], 5.0)
    pair[1].sendall(b"+O")
    pair[1].shutdown(socket.SHUT_WR)
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            ask(wire)


def test_a_wire_when_more_than_one_reply_comes_is_out_of_step(pair: Any) -> None:
    """Bytes behind the reply were not asked for."""
    wire = Wire(pair[0], 5.0)
    pair[1].sendall(b"+OK\r\n+OK\r\n")
    with pytest.raises(InvalidResponse, match="malformed"):
        ask(wire)


def test_a_wire_when_something_has_come_unasked_is_stale(pair: Any) -> None:
    """A quiet wire is good; one with bytes, or the end, that nobody asked for is not."""
    wire = Wire(pair[0], 5.0)
    assert not wire.is_stale()
    pair[1].sendall(b"x")
    assert wire.is_stale()
    pair[0].recv(1)
    assert not wire.is_stale()
    pair[1].close()
    assert wire.is_stale()


def test_a_wire_when_its_socket_is_plain_makes_two_system_calls(monkeypatch: Any) -> None:
    """Nothing but one send and one read for a command: a plain socket blocks, and no timeout is set anew."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire = Wire(ours, 5.0)
        assert ours.gettimeout() is None
        monkeypatch.setattr(Wire, "_limit", lambda *_: pytest.fail("the timeout was set again"))
        for _ in range(3):
            theirs.sendall(b"+OK\r\n")
            assert ask(wire) == b"OK"
