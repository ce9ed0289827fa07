"""Work that a process does beside its requests: one daemon thread for each job, started at its first need."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import TYPE_CHECKING

from ratelimit_app.core.calls import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_COMPLAINTS = 100
logger = logging.getLogger("ratelimit_app")


class Periodic:
    """
    Call a function again and again, `interval()` seconds apart, in a daemon thread of its own.

    A fork has no threads: `start` begins anew there. What the function raises is logged, once for each kind.
    """

    def __init__(self, name: str, work: Callable[[], None], interval: Callable[[], float]) -> None:
        self._name, self._work, self._interval = name, work, interval
        self.forget()
        if hasattr(os, "register_at_fork"):
            alive = weakref.WeakMethod(self.forget)
            os.register_at_fork(after_in_child=lambda: (forget := alive()) and forget())

    def forget(self) -> None:
        """Know of no thread, as in a fork."""
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._complained: set[str] = set()

    def start(self) -> None:
        """Start the thread of this process, unless it runs."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name=f"ratelimit_app.{self._name}", daemon=True
                    )
                    self._thread.start()

    def wake(self) -> None:
        """Do the work now rather than at the next tick."""
        self._wake.set()

    def _run(self) -> None:
        while True:
            try:
                self._work()
            except Exception as error:  # noqa: BLE001 - whatever one round meets, the next one is due
                self._complain(error)
            self._wake.wait(self._interval())
            self._wake.clear()

    def _complain(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if text not in self._complained and len(self._complained) < MAX_COMPLAINTS:
            self._complained.add(text)
            expected = isinstance(error, StoreUnavailable)
            logger.warning("ratelimit.%s_failed %s", self._name, text, exc_info=None if expected else error)
