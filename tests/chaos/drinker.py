"""
A program: it decides as fast as it can, by threads, and writes down every answer of Redis.

Arguments: how many decisions, how many identities, the first of them, the rate, the file for the answers ("" : none),
the threads. Each identity is asked for in turn where each is asked once, else at random. It prints seconds, its
memory in bytes halfway and at the end, and how many decisions were made without Redis.
"""

from __future__ import annotations

import random
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import django

from tests.chaos.asker import say

ANSWER = struct.Struct(
    "<IqB"
)  # the identity's number, the decision's time in microseconds, whether it passed


class Drinker:
    """One process's share of the decisions."""

    def __init__(self, count: int, identities: int, first: int, rate: str) -> None:
        self._count, self._identities, self._first, self._rate = count, identities, first, rate
        self.halfway = 0

    def drink(self, share: range) -> tuple[bytes, int]:
        """Decide for one thread's share of the numbers; give the answers, and how many Redis did not make."""
        from ratelimit_app import acquire

        answers, without = bytearray(), 0
        each_once = self._identities >= self._count
        draw = random.Random(share.start)
        for number in share:
            who = self._first + (number if each_once else draw.randrange(self._identities))
            decision = acquire(f"user:{who}", self._rate, group="drink")
            if decision.degraded:
                without += 1
            elif not each_once:
                answers += ANSWER.pack(who, decision.results[0].at, decision.allowed)
            if number == share.start + len(share) // 2:
                self.halfway = memory()  # of the last thread to come so far
        return bytes(answers), without


def memory(pid: int | str = "self") -> int:
    """Give the bytes that a process has in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4_096


def main(count: str, identities: str, first: str, rate: str, path: str, threads: str) -> None:
    """Decide, write down, tell."""
    django.setup()
    from ratelimit_app import acquire

    acquire("user:warm", rate, group="warm")
    drinker, width = Drinker(int(count), int(identities), int(first), rate), int(count) // int(threads)
    say("ready")
    sys.stdin.readline()
    began = time.monotonic()
    with ThreadPoolExecutor(int(threads)) as pool:
        parts = list(pool.map(drinker.drink, [range(at, at + width) for at in range(0, int(count), width)]))
    took = time.monotonic() - began
    if path:
        Path(path).write_bytes(b"".join(part for part, _ in parts))
    without = sum(number for _, number in parts)
    say([took, drinker.halfway, memory(), without])


if __name__ == "__main__":
    main(*sys.argv[1:])
