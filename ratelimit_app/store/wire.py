"""The wire protocol, as far as scripts need it (RESP2): one parser, and a socket that answers by a deadline."""

from __future__ import annotations

import _socket
import math
import select
import socket
import struct
import time
from typing import Any

from redis.exceptions import InvalidResponse, NoScriptError, ReadOnlyError, ResponseError

READ_SIZE = 4_096
MAX_REPLY = 1_048_576
MAX_DIGITS = 20
# A command above this may fill the socket's buffer: the kernel's timeout would then begin anew with each part.
LONG = 32_768
# A socket whose timeout is this near to what is left of the time keeps it: setting it costs a system call.
NEAR_ENOUGH = 0.005
AT_LEAST = 0.001  # seconds that reading has, where the reply should be there already
# The usual first lines: reading the digits anew would take longer than all the rest.
_SIZES = {b"$%d" % size: size for size in range(1_024)}
_INTEGERS = {b":%d" % number: number for number in range(-1, 256)}
_ERRORS = {b"NOSCRIPT": NoScriptError, b"READONLY": ReadOnlyError}


def parse(data: bytes, start: int = 0) -> tuple[Any, int]:
    """
    Read the reply that begins at `start` and tell where it ends; 0: the rest of it has not come yet.

    A reply is a bulk string, a status, an integer, None, or the server's own error, which is given, not raised.
    Raises InvalidResponse for bytes that are none of these.
    """
    end = data.find(b"\r\n", start)
    head = data[start:end]
    if (size := _SIZES.get(head)) is not None:
        stop = end + 2 + size
        if data.startswith(b"\r\n", stop):
            return data[end + 2 : stop], stop + 2
    elif (number := _INTEGERS.get(head)) is not None and end > 0:
        return number, end + 2
    return _line(data, start, end)


def _line(data: bytes, start: int, end: int) -> tuple[Any, int]:
    kind, words = data[start : start + 1], data[start + 1 : end]
    if end < 0:
        if kind in b"$:+-" and len(data) - start <= MAX_REPLY:
            return None, 0
    elif kind == b"$":
        return _bulk(data, start, end)
    elif kind == b"+":
        return words, end + 2
    elif kind == b"-":
        error = _ERRORS.get(words.partition(b" ")[0], ResponseError)
        if b": -READONLY " in words:  # Redis before 7 wraps what a script meets
            error = ReadOnlyError
        return error(words.decode(errors="replace")), end + 2
    elif kind == b":" and words.removeprefix(b"-").isdigit() and len(words) <= MAX_DIGITS:
        return int(words), end + 2
    raise _malformed(data, start)


def _bulk(data: bytes, start: int, end: int) -> tuple[Any, int]:
    digits, body = data[start + 1 : end], end + 2
    if digits == b"-1":
        return None, body
    if digits.isdigit() and len(digits) <= MAX_DIGITS and int(digits) <= MAX_REPLY:
        stop = body + int(digits)
        if data[stop : stop + 2] == b"\r\n":
            return data[body:stop], stop + 2
        if len(data) < stop + 2:
            return None, 0
    raise _malformed(data, start)


def _malformed(data: bytes, start: int) -> InvalidResponse:
    return InvalidResponse(f"malformed reply: {data[start : start + 80]!r}")


class Wire:
    """
    A connected socket that carries one command at a time.

    A plain socket is left blocking and its timeouts are the kernel's: Python's own cost a poll before each send
    and each read. Sockets of another kind (TLS, a cooperative scheduler's) have Python's.
    """

    def __init__(self, sock: socket.socket, timeout: float) -> None:
        """Take over a connected socket. `timeout`: seconds that a call will usually have."""
        self._sock, self._send, self._recv = sock, sock.sendall, sock.recv
        self._blocking = type(sock).recv is _socket.socket.recv
        if self._blocking:
            sock.settimeout(None)
        self._limit(timeout)

    def exchange(self, command: bytes, deadline: float, now: float) -> Any:
        """
        Send a packed command and give its reply.

        `deadline` and `now`: on the monotonic clock, seconds. Raises ResponseError for the server's own answers,
        InvalidResponse for what is none, OSError when the connection fails or is too slow.
        """
        left = deadline - now
        if not -NEAR_ENOUGH < left - self._timeout < NEAR_ENOUGH:
            self._limit(left)
        try:
            if len(command) > LONG:
                self._send_long(command, deadline)
            else:
                self._send(command)
            data = self._recv(READ_SIZE)
            reply, end = parse(data) if data else _closed()
            if not end:
                data, reply, end = self._rest(data, deadline)
        except BlockingIOError as error:
            raise _late() from error
        if end != len(data):
            # Nobody asked for what is behind the reply: the connection is out of step.
            raise _malformed(data, end)
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    def begin(self, command: bytes, deadline: float) -> None:
        """Send a packed command whose reply will be taken by `end`. Raises OSError."""
        try:
            self._send_long(command, deadline)
        except BlockingIOError as error:
            raise _late() from error

    def end(self, deadline: float) -> Any:
        """
        Give the reply to a command that was begun. Raises as `exchange` does.

        A reply that has come is taken, though somebody else's has used up the time.
        """
        try:
            self._limit(max(deadline - time.monotonic(), AT_LEAST))
            data = self._recv(READ_SIZE) or _closed()
            reply, end = parse(data)
            if not end:
                data, reply, end = self._rest(data, deadline)
        except BlockingIOError as error:
            raise _late() from error
        if end != len(data):
            raise _malformed(data, end)
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    def _rest(self, data: bytes, deadline: float) -> tuple[bytes, Any, int]:
        end = 0
        while not end:
            self._limit(deadline - time.monotonic())
            data += self._recv(READ_SIZE) or _closed()
            reply, end = parse(data)
        return data, reply, end

    def _send_long(self, command: bytes, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise _late()
        self._sock.settimeout(left)
        self._send(command)
        if self._blocking:
            self._sock.settimeout(None)
        self._limit(deadline - time.monotonic())

    def _limit(self, left: float) -> None:
        if left <= 0:
            raise _late()
        self._timeout = left
        if not self._blocking:
            self._sock.settimeout(left)
            return
        fraction, seconds = math.modf(left)
        # Zero microseconds of zero seconds would be no timeout at all.
        timeval = struct.pack("@ll", int(seconds), max(int(fraction * 1_000_000), 1))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)

    def is_stale(self) -> bool:
        """Tell whether something has come that nobody asked for, the end of the connection included."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))


def _late() -> TimeoutError:
    return TimeoutError("no reply within STORE_TIMEOUT")


def _closed() -> Any:
    msg = "the server closed the connection"
    raise ConnectionResetError(msg)
