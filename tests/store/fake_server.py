"""A server that greets redis-py properly and then answers scripts with whatever bytes a test wants."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

Answer = Callable[[list[bytes]], bytes | None]
HELLO = b"%2\r\n$6\r\nserver\r\n$6\r\nvalkey\r\n$5\r\nproto\r\n:3\r\n"
OK = b"+OK\r\n"
CLOSE = b"CLOSE"


class FakeServer:
    """
    Listens on a unix socket; `answer` gives the bytes for a script command, None for silence, CLOSE to hang up.

    `greeting` does the same for the handshake's commands. `pace`: seconds between single bytes of an answer.
    """

    def __init__(self, path: Path) -> None:
        self.url = f"unix://{path}?db=1"  # another than the first, so that there is a greeting
        self.answer: Answer = lambda command: OK
        self.greeting: Answer = greet
        self.pace = 0.0
        self.scripts: list[list[bytes]] = []
        self.asked: set[int] = set()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._stopped = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *args: socket.socket) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while not self._stopped.is_set():
                connection, _ = self._listener.accept()
                self._open.append(connection)
                self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, ValueError), connection, connection.makefile("rb") as stream:
            while command := read_command(stream):
                if is_script(command):
                    self.asked.add(id(connection))
                    self.scripts.append(command)
                reply = (self.answer if is_script(command) else self.greeting)(command)
                if reply is None:
                    continue
                body, close = reply.removesuffix(CLOSE), reply.endswith(CLOSE)
                self._send(connection, body)
                if close:
                    connection.shutdown(socket.SHUT_RDWR)

    @property
    def connections(self) -> int:
        """The number of connections that have asked for a script."""
        return len(self.asked)

    def _send(self, connection: socket.socket, body: bytes) -> None:
        if not self.pace:
            connection.sendall(body)
            return
        for n in range(len(body)):
            connection.sendall(body[n : n + 1])
            if self._stopped.wait(self.pace):
                return

    def stop(self) -> None:
        """Hang up and end every thread."""
        self._stopped.set()
        for one in [self._listener, *self._open]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(5)


def is_script(command: list[bytes]) -> bool:
    """Whether a command runs a script; all others belong to the greeting."""
    return command[0].upper() in {b"EVALSHA", b"EVAL"}


def greet(command: list[bytes]) -> bytes:
    """Answer a handshake as a server does."""
    return HELLO if command[0].upper() == b"HELLO" else OK


def read_command(stream: object) -> list[bytes]:
    """Read one command, an empty list at the end of the stream."""
    readline, read = stream.readline, stream.read  # type: ignore[attr-defined]
    head = readline()
    words = []
    for _ in range(int(head[1:]) if head else 0):
        size = int(readline()[1:])
        words.append(read(size))
        read(2)
    return words


@contextmanager
def fake_server(path: Path) -> Iterator[FakeServer]:
    """Run a server for the length of a block."""
    server = FakeServer(path)
    try:
        yield server
    finally:
        server.stop()
