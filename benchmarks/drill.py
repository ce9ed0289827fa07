"""Exactness while threads meet: how many tries does a contender admit when eight threads ask for one identity?"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from benchmarks.project import LIMIT

if TYPE_CHECKING:
    from benchmarks.rounds import Contender

THREADS, TRIES = 8, 2


def over_limit(contender: Contender, run: int, identities: int) -> int:
    """
    Give how many tries were admitted beyond the limit, over all identities.

    Every thread tries each identity twice, at the same moment as the others. Exits when it is one of ours.
    """
    prefix = f"bench-r{run}"
    meeting = threading.Barrier(THREADS)
    admitted = [0] * identities
    lock = threading.Lock()

    def work() -> None:
        for n in range(identities):
            things = [contender.make(prefix, n) for _ in range(TRIES)]
            meeting.wait()
            passed = sum(contender.decide(things))
            with lock:
                admitted[n] += passed

    threads = [threading.Thread(target=_guarded, args=(work, meeting)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if meeting.broken:
        msg = "a thread failed"
        raise RuntimeError(msg)
    if contender.ours and admitted != [LIMIT] * identities:
        sys.exit(
            f"{contender.name}: {THREADS} threads were admitted {admitted} times, expected {LIMIT} each."
        )
    return sum(max(count - LIMIT, 0) for count in admitted)


def _guarded(work: object, meeting: threading.Barrier) -> None:
    """Let the others go when one thread fails, or they would wait for it for ever."""
    try:
        work()  # type: ignore[operator]
    except Exception:  # noqa: BLE001 - told by the broken barrier
        meeting.abort()
