"""
A program: it decides in its own process, without a site, and tells how long that took.

Lines of its input: `first` (one decision), `thousand N` (1,000 decisions by N threads), `recover` (until Redis
decides again); it answers each with seconds. `charge N`: ask N times for one unit of an hour's limit, none of them
while Redis is known to be away; it answers with how often it asked, and how often Redis said yes.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import django

if TYPE_CHECKING:
    from collections.abc import Callable


def decide(identity: str = "user:1", rate: str = "10000/s") -> bool:
    """Make one decision; whether Redis made it."""
    from ratelimit_app import acquire

    return not acquire(identity, rate, group="chaos").degraded


def timed(work: Callable[..., object], *arguments: str) -> float:
    """Give the seconds that something takes."""
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began


def thousand(threads: str) -> None:
    """Make a thousand decisions."""
    if threads == "1":
        for _ in range(1_000):
            decide()
        return
    with ThreadPoolExecutor(int(threads)) as pool:
        list(pool.map(lambda _: decide(), range(1_000)))


def recover() -> None:
    """Decide until Redis does."""
    while not decide():
        time.sleep(0.01)


def charge(count: str) -> tuple[int, int]:
    """Charge one identity; give how often, and how often Redis answered."""
    answered, number = 0, int(float(count))
    for _ in range(number):
        recover()
        answered += decide("user:charged", "10000/h")
    return number, answered


VERBS: dict[str, Callable[..., object]] = {
    "first": lambda: timed(decide),
    "thousand": lambda threads: timed(thousand, threads),
    "recover": lambda: timed(recover),
    "charge": charge,
}


def main() -> None:
    """Do what each line says, and answer."""
    django.setup()
    for _ in range(50):
        decide()
    say("ready")
    for line in sys.stdin:
        verb, *arguments = line.split()
        say(VERBS[verb](*arguments))


def say(what: object) -> None:
    """Answer with one line."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
