"""A program for the tests: forks with a warm gateway, and counts replies that were another process's."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

import django

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS, CHILDREN = 400, 3


def main(strangers: Callable[[int], int]) -> int:
    """Give the number of processes that got a reply that was not theirs, or none."""
    strangers(0)
    children = []
    for number in range(1, CHILDREN + 1):
        child = os.fork()
        if not child:
            os._exit(strangers(number))
        children.append(child)
    found = strangers(0)
    return found + failed(children)


async def in_a_loop() -> int:
    """Fork within a running loop; the children, which have inherited its connection, run loops of their own."""
    from tests.store.asking import adecide

    await adecide(1)
    children = []
    for number in range(1, CHILDREN + 1):
        child = os.fork()
        if not child:
            os._exit(asyncio.run(strangers_in_loop(number)))
        children.append(child)
    found = await strangers_in_loop(0)
    return found + failed(children)


def failed(children: list[int]) -> int:
    """Wait for the children, and count those that got a stranger's reply, or none."""
    return sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def times(number: int) -> range:
    """Give the times that a process asks by, which are no other's; the script repeats them."""
    return range(number * 1_000_000 + 1, number * 1_000_000 + CALLS)


def strangers_in_threads(number: int) -> int:
    """Ask many times, and tell whether a reply was another's."""
    from tests.store.asking import decide

    return int(any(decide(now).now != now for now in times(number)))


async def strangers_in_loop(number: int) -> int:
    """Ask many times at once, and tell whether a reply was another's."""
    from tests.store.asking import adecide

    replies = await asyncio.gather(*(adecide(now) for now in times(number)))
    return int([reply.now for reply in replies] != list(times(number)))


if __name__ == "__main__":
    django.setup()
    sys.exit(asyncio.run(in_a_loop()) if sys.argv[1:] else main(strangers_in_threads))
