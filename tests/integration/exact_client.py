"""A program for the tests: one of several processes that ask at once, and print their answers as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import django

from tests.integration.judging import Try

if TYPE_CHECKING:
    from collections.abc import Callable

# Seconds: however fast the machine is, several windows are seen.
AT_LEAST = 2.5
THREADS, RATE = 8, os.environ.get("EXACT_RATE", "200/s")


def by_threads(ask: Callable[[], Callable[[], Try]], count: int) -> list[Try]:
    """Ask from eight threads; each makes what it asks with first."""

    def work(tries: int) -> list[Try]:
        one, until, answers = ask(), time.monotonic() + AT_LEAST, list[Try]()
        while len(answers) < tries or time.monotonic() < until:
            answers.append(one())
        return answers

    with ThreadPoolExecutor(THREADS) as pool:
        return [answer for part in pool.map(work, [count // THREADS] * THREADS) for answer in part]


def acquire_once() -> Try:
    """Ask by acquire()."""
    from ratelimit_app import acquire

    decision = acquire("user:exact", RATE, group="exact")
    return Try(decision.allowed, decision.results[0].at if decision.results else 0, decision.degraded)


async def by_tasks(count: int) -> list[Try]:
    """Ask by aacquire(), many at a time."""
    from ratelimit_app import aacquire

    async def one() -> Try:
        decision = await aacquire("user:exact", RATE, group="exact")
        return Try(decision.allowed, decision.results[0].at if decision.results else 0, decision.degraded)

    until, answers = time.monotonic() + AT_LEAST, list[Try]()
    while len(answers) < count or time.monotonic() < until:
        answers += await asyncio.gather(*(one() for _ in range(50)))
    return answers


def by_http() -> Callable[[], Try]:
    """Ask over one connection that is kept alive."""
    host, port = os.environ["EXACT_SITE"].split(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream = connection.makefile("rb")

    def one() -> Try:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: exact\r\n\r\n")
        status, size = stream.readline(), 0
        if b"200" not in status:
            raise RuntimeError(status)
        while (line := stream.readline()) != b"\r\n":
            name, _, value = line.partition(b":")
            size = int(value) if name.lower() == b"content-length" else size
        return Try(**json.loads(stream.read(size)))

    return one


def main(door: str, count: int, start: float) -> None:
    """Wait for the common start, ask, print."""
    django.setup()
    from ratelimit_app import snapshot_cache
    from ratelimit_app.core.snapshot import Snapshot

    snapshot_cache.override(Snapshot(version="test:1"))
    time.sleep(max(start - time.time(), 0))
    if door == "async":
        answers = asyncio.run(by_tasks(count))
    else:
        answers = by_threads(by_http if door == "http" else lambda: acquire_once, count)
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
