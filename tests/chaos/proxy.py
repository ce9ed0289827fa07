"""
A small TCP proxy between the site and Redis: it delays, starves, cuts off, or refuses.

It runs in threads of the suite's own process. What passes it is never changed, only late, slow or missing.
"""

from __future__ import annotations

import random
import selectors
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from tests.chaos.ground import HOST

CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class Weather:
    """
    How the network is.

    `delay`: seconds that each piece needs, one way. `bandwidth`: bytes a second, each way; 0: enough.
    `cut_after`: bytes of answers after which a connection is reset, in the middle of one, give or take a half; 0: never.
    """

    delay: float = 0.0
    bandwidth: int = 0
    cut_after: int = 0


class Pipe:
    """One direction of one connection: what was read and is not written yet."""

    def __init__(self, source: socket.socket, target: socket.socket, *, answers: bool) -> None:
        self.source, self.target, self.answers = source, target, answers
        self.waiting: deque[tuple[float, bytes]] = deque()
        self.luck = random.uniform(0.5, 1.5)  # so that not every connection is cut in the same answer
        self.free_at = 0.0
        self.passed = 0


class Proxy:
    """Listens on a port of loopback and talks with another one; `weather` may change at any time."""

    def __init__(self, target: int) -> None:
        self.weather, self.cuts = Weather(), 0
        self._target = target
        self._listener = socket.create_server((HOST, 0), backlog=256)
        self.port = int(self._listener.getsockname()[1])
        self.url = f"redis://{HOST}:{self.port}/0"
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._pipes: dict[socket.socket, Pipe] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for one in list(self._pipes):
            one.close()
        self._listener.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            for key, _ in self._selector.select(self._pause()):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._read(key.fileobj)
            self._write()

    def _pause(self) -> float:
        due = [pipe.waiting[0][0] for pipe in self._pipes.values() if pipe.waiting]
        return max(min(min(due, default=1.0) - time.monotonic(), 0.05), 0.0)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection((HOST, self._target), timeout=1)
        except OSError:
            _reset(near)
            return
        for one in (near, far):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(one, selectors.EVENT_READ)
        self._pipes[near] = Pipe(near, far, answers=False)
        self._pipes[far] = Pipe(far, near, answers=True)

    def _read(self, source: socket.socket) -> None:
        pipe = self._pipes.get(source)
        if pipe is None:
            return
        try:
            data = source.recv(CHUNK)
        except OSError:
            data = b""
        if not data:
            self._close(pipe)
            return
        weather, now = self.weather, time.monotonic()
        due = max(now + weather.delay, pipe.free_at)
        if weather.bandwidth:
            due += len(data) / weather.bandwidth
            pipe.free_at = due
        pipe.waiting.append((due, data))

    def _write(self) -> None:
        now = time.monotonic()
        for pipe in list(self._pipes.values()):
            while pipe.waiting and pipe.waiting[0][0] <= now and pipe.source in self._pipes:
                self._pass(pipe, pipe.waiting.popleft()[1])

    def _pass(self, pipe: Pipe, data: bytes) -> None:
        cut = self.weather.cut_after
        pipe.passed += len(data)
        is_cut = pipe.answers and 0 < cut * pipe.luck <= pipe.passed
        if is_cut:
            data = data[: len(data) // 2]
        with suppress(OSError):
            pipe.target.settimeout(1)
            pipe.target.sendall(data)
            pipe.target.settimeout(None)
        if is_cut:
            self.cuts += 1
            self._close(pipe)

    def _close(self, pipe: Pipe) -> None:
        for one in (pipe.source, pipe.target):
            if self._pipes.pop(one, None) is not None:
                self._selector.unregister(one)
                _reset(one)


def _reset(one: socket.socket) -> None:
    """Close it as a dying machine does: with a reset, not with a good-bye."""
    with suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    one.close()
