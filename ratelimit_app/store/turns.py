"""Turns: one process at a time does a piece of work, and who waited for it need not do it again."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ratelimit_app.conf import conf
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.store.connection import client, unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis.lock import Lock

TURN_TTL = 5.0
WAIT_SLACK = 1.0
DONE_TTL = 60
POLL_INTERVAL = 0.05


class Turn:
    """
    A claim on a piece of work, with a token and a time to live, so that a killed process does not keep it.

    Losing it must be harmless: it spares work, it excludes nobody for certain.
    """

    def __init__(self, name: str) -> None:
        self._key = f"{conf.keys.root}:turn:{name}"
        self._done_key = f"{self._key}:done"
        self._lock: Lock = client().lock(self._key, timeout=TURN_TTL)
        self._others: set[bytes] = set()

    def take(self) -> bool:
        """
        Wait for the turn and take it. False: another process did the work meanwhile, or is still at it.

        Waits a second longer than a turn lives: a holder that was killed is out by then.
        """
        deadline = time.monotonic() + TURN_TTL + WAIT_SLACK
        while not self._lock.acquire(blocking=False):
            self._look()
            if self._is_done() or time.monotonic() > deadline:
                return False
            time.sleep(POLL_INTERVAL)
        if self._is_done():
            self.release()
            return False
        return True

    def renew(self) -> None:
        """Live on for another `TURN_TTL` seconds. A turn that is lost stays lost."""
        self._try(self._lock.reacquire)

    def finish(self) -> None:
        """Tell those who wait that the work is done."""
        self._try(lambda: client().set(self._done_key, self._lock.local.token or b"", ex=DONE_TTL))

    def release(self) -> None:
        """Let the next one begin; another's turn is left alone."""
        self._try(self._lock.release)

    @staticmethod
    def _try(step: Callable[[], object]) -> None:
        # LockNotOwnedError and a Redis that does not answer come to the same: the time to live ends the turn.
        with suppress(StoreUnavailable), unavailable():
            step()

    def _look(self) -> None:
        holder: Any = client().get(self._key)
        if holder is not None:
            self._others.add(holder)

    def _is_done(self) -> bool:
        return bool(self._others) and client().get(self._done_key) in self._others


@contextmanager
def turn(name: str) -> Iterator[Turn | None]:
    """
    Give the turn for a piece of work, None when another process did it meanwhile. Raises StoreUnavailable.

    Who fails or is killed leaves the work to the next one who waits.
    """
    mine = Turn(name)
    with unavailable():
        taken = mine.take()
    if not taken:
        yield None
        return
    try:
        yield mine
        mine.finish()
    finally:
        mine.release()
