"""What Redis has lost or may have missed, and the thread that has it published from the database."""

from __future__ import annotations

import threading
import time
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


MIN_PAUSE, MAX_PAUSE = 1.0, 30.0  # seconds, after what went wrong


class Restorer:
    """
    Have the database published, in a thread of its own: when Redis has no snapshot, and when an outage is over.

    `on_missing` publishes what is not there at all. `on_return` is given the last instant at which something may have
    been missed, in seconds by `clock` + `offset`, and says whether nothing is missing any more; if not, it is asked again,
    and ever more seldom when it raises. `report` is told what goes wrong. `clock` gives seconds and never goes back.
    """

    def __init__(
        self, report: Callable[[str, Exception], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.on_missing: Callable[[], object] | None = None
        self.on_return: Callable[[float], bool] | None = None
        self._report, self._clock = report, clock
        self.forget()

    def forget(self) -> None:
        """Know of nothing, as at the start of a process."""
        self.after_fork()
        self.has_unpublished = False
        self._missed_at: float | None = None
        self._not_before, self._pause = -inf, MIN_PAUSE

    def after_fork(self) -> None:
        """Go on in a child, which has no thread, and whose lock somebody may have held; what is owed stays."""
        self.thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def is_owing(self) -> bool:
        """Whether Redis may lack something that `on_return` can bring there."""
        return self._missed_at is not None and self.on_return is not None

    def note(self) -> None:
        """Note that Redis was not there until now, so that anybody may have failed to publish."""
        with self._lock:
            self._missed_at = self._clock()

    def note_unpublished(self) -> bool:
        """Note that this process failed to publish; whether it is the first time since nothing was missing."""
        with self._lock:
            is_first = not self.has_unpublished
            self.has_unpublished, self._missed_at = True, self._clock()
        return is_first

    def fill(self, then: Callable[[], object], finally_: Callable[[], object]) -> None:
        """Have what Redis has lost published, unless this process is at it; `then` follows a success."""
        publish = self.on_missing
        if publish is not None:
            self._start(lambda: (publish(), then()), finally_)

    def settle(self, offset: float) -> None:
        """Have published what an outage that is over has kept from Redis, if there was one; `offset`: as it is now."""
        is_due = self._missed_at is not None and self._clock() >= self._not_before
        if is_due and self.on_return is not None:
            self._start(lambda: self._settle(offset), lambda: None)

    def _settle(self, offset: float) -> None:
        missed_at = self._missed_at
        if self.on_return is None or missed_at is None:
            return
        # A database that fails is not asked by every process four times a second.
        self._not_before = self._clock() + self._pause
        self._pause = min(self._pause * 2, MAX_PAUSE)
        is_done = self.on_return(missed_at + offset)
        self._not_before, self._pause = -inf, MIN_PAUSE
        with self._lock:
            if is_done and self._missed_at == missed_at:
                self._missed_at, self.has_unpublished = None, False

    def _start(self, work: Callable[[], object], finally_: Callable[[], object]) -> None:
        if self.thread is not None and self.thread.is_alive():
            return
        self.thread = threading.Thread(
            target=self._run, args=(work, finally_), name="ratelimit_app.publish", daemon=True
        )
        self.thread.start()

    def _run(self, work: Callable[[], object], finally_: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to
            self._report("publishing from the database", error)
        finally:
            finally_()
