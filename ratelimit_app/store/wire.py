"""The wire protocol, as far as scripts need it: one reply, read from a socket by a deadline."""

from __future__ import annotations

import time
from typing import Any

from redis.exceptions import InvalidResponse, NoScriptError, ReadOnlyError, ResponseError

READ_SIZE = 4_096
MAX_REPLY = 1_048_576
MAX_DIGITS = 20
# A socket whose timeout is this near to what is left of the time keeps it: setting it costs a system call.
NEAR_ENOUGH = 0.005
_UNFINISHED: Any = object()
_ERRORS = {b"NOSCRIPT": NoScriptError, b"READONLY": ReadOnlyError}


def exchange(sock: Any, command: bytes, deadline: float) -> bytes | int | None:
    """
    Send a packed command and give its reply: a bulk string, a status, an integer or null (RESP2).

    `deadline`: on the monotonic clock, seconds, for all that is sent and read. Raises ResponseError for the
    server's own answers, InvalidResponse for what is none, OSError when the connection fails or is too slow.
    """
    _limit(sock, deadline)
    sock.sendall(command)
    data = b""
    while True:
        _limit(sock, deadline)
        piece = sock.recv(READ_SIZE)
        if not piece:
            msg = "the server closed the connection"
            raise ConnectionResetError(msg)
        data += piece
        reply = _parse(data)
        if reply is not _UNFINISHED:
            return reply  # type: ignore[no-any-return]


def _limit(sock: Any, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        msg = "no reply within STORE_TIMEOUT"
        raise TimeoutError(msg)
    if abs(left - (sock.gettimeout() or 0)) > NEAR_ENOUGH:
        sock.settimeout(left)


def _parse(data: bytes) -> Any:
    """Read the one reply that the bytes are. Bytes behind it were not asked for: the connection is out of step."""
    if data[:1] not in (b"$", b":", b"+", b"-"):
        raise _malformed(data)
    end = data.find(b"\r\n")
    if end < 0:
        if len(data) > MAX_REPLY:
            raise _malformed(data)
        return _UNFINISHED
    if data[:1] == b"$":
        return _bulk(data, end)
    if len(data) != end + 2:
        raise _malformed(data)
    return _line(data, end)


def _bulk(data: bytes, end: int) -> Any:
    size = _number(data, end)
    if size == -1 and len(data) == end + 2:
        return None
    total = end + 2 + size + 2
    if not 0 <= size <= MAX_REPLY or len(data) > total:
        raise _malformed(data)
    if len(data) < total:
        return _UNFINISHED
    if data[-2:] != b"\r\n":
        raise _malformed(data)
    return data[end + 2 : -2]


def _line(data: bytes, end: int) -> bytes | int:
    if data[:1] == b"-":
        words = data[1:end]
        raise _ERRORS.get(words.partition(b" ")[0], ResponseError)(words.decode(errors="replace"))
    return _number(data, end) if data[:1] == b":" else data[1:end]


def _number(data: bytes, end: int) -> int:
    digits = data[1:end]
    if not digits.removeprefix(b"-").isdigit() or len(digits) > MAX_DIGITS:
        raise _malformed(data)
    return int(digits)


def _malformed(data: bytes) -> InvalidResponse:
    return InvalidResponse(f"malformed reply: {data[:80]!r}")
