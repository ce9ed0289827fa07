"""
A program: shoppers who ask the site over kept connections, at a steady pace, and note every answer.

Arguments: the site's port, requests a second, the file for the notes, and how many come only now and then beside the
few that are always there. It ends with its standard input.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
import time
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import TextIOWrapper

CONNECTIONS = 24
POLICIES = ("open", "closed", "local")
BANNED = "10.9.9.9"
# Two for each policy: few enough that each of them is over its limit, most of the time.
VISITS = [(policy, f"10.0.{place}.{host}") for host in (1, 2) for place, policy in enumerate(POLICIES)]
VISITS.append(("open", BANNED))


def visits(passers_by: int) -> Iterator[tuple[str, str]]:
    """Give who asks for what, without end: the few in turn, and by chance somebody of many between them."""
    for visit in cycle(VISITS):
        yield visit
        if passers_by:
            number = random.randrange(passers_by)
            yield "open", f"11.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


class Note(NamedTuple):
    """One answer. `began`: seconds since the epoch; `took`: seconds; `at`: the decision's time by Redis, or 0."""

    policy: str
    client: str
    began: float
    took: float
    status: int
    degraded: bool
    at: int


class Connection:
    """One connection to the site; it is made anew where the site has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connect()

    def _connect(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")

    def ask(self, policy: str, client: str) -> Note:
        """Ask as a client, and note the answer; status 0: the site itself has gone."""
        began, clock = time.time(), time.perf_counter()
        try:
            self._socket.sendall(
                f"GET /{policy}/ HTTP/1.1\r\nHost: chaos\r\nX-Forwarded-For: {client}\r\n\r\n".encode()
            )
            status, degraded, at = self._read()
        except (OSError, ValueError, IndexError):
            self.close()
            try:
                self._connect()
            except OSError:
                time.sleep(0.05)
            status, degraded, at = 0, False, 0
        return Note(policy, client, began, time.perf_counter() - clock, status, degraded, at)

    def _read(self) -> tuple[int, bool, int]:
        status, told, size = int(self._stream.readline().split()[1]), [False, 0], 0
        while (line := self._stream.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            name = name.lower()
            if name == b"content-length":
                size = int(value)
            elif name == b"x-told":
                told = json.loads(value)
        self._stream.read(size)
        return status, bool(told[0]), int(told[1])

    def close(self) -> None:
        """Close it."""
        self._stream.close()
        self._socket.close()


class Crowd:
    """Many shoppers, one pace."""

    def __init__(self, port: int, rate: float, notes: TextIOWrapper, passers_by: int) -> None:
        self._port, self._pause, self._notes = port, CONNECTIONS / rate, notes
        self._visits = visits(passers_by)
        self._lock, self.ended = threading.Lock(), threading.Event()

    def shop(self, delay: float) -> None:
        """Ask until the end; who is late asks at once, and does not make up for what was missed."""
        connection, due = Connection(self._port), time.monotonic() + delay
        while not self.ended.is_set():
            time.sleep(max(due - time.monotonic(), 0))
            due = max(due + self._pause, time.monotonic())
            with self._lock:
                visit = next(self._visits)
            note = connection.ask(*visit)
            with self._lock:
                self._notes.write(json.dumps(note) + "\n")
        connection.close()

    def run(self) -> None:
        """Shop until our input ends."""
        threads = [
            threading.Thread(target=self.shop, args=(number * self._pause / CONNECTIONS,), daemon=True)
            for number in range(CONNECTIONS)
        ]
        for thread in threads:
            thread.start()
        sys.stdin.read()
        self.ended.set()
        for thread in threads:
            thread.join(60)


def main(port: str, rate: str, path: str, passers_by: str) -> None:
    """Shop, and note."""
    with Path(path).open("w") as notes:
        Crowd(int(port), float(rate), notes, int(passers_by)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
