"""A program for the tests: forks with a warm gateway, and counts replies that were another process's."""

from __future__ import annotations

import os
import sys

import django

CALLS, CHILDREN = 400, 3


def main() -> int:
    """Give the number of processes that got a reply that was not theirs, or none."""
    django.setup()
    from tests.store.asking import decide

    decide(1)
    children = []
    for number in range(1, CHILDREN + 1):
        child = os.fork()
        if not child:
            os._exit(strangers(number))
        children.append(child)
    found = strangers(0)
    return found + sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def strangers(number: int) -> int:
    """Ask many times, each time by a time of its own, which the script repeats."""
    from tests.store.asking import decide

    times = (number * 1_000_000 + n for n in range(1, CALLS))
    return int(any(decide(now).now != now for now in times))


if __name__ == "__main__":
    sys.exit(main())
