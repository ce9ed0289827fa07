"""
A circuit breaker: while a server does not answer, nobody waits for it but one request now and then.

Source: M. Nygard, Release It!, with one probe at a time when the cool-down is over.
"""

from __future__ import annotations

import threading

LONG_AGO = float("-inf")


class Breaker:
    """
    Closed, it lets every call go; open, none until the cool-down is over, and then one probe for each cool-down.

    A timeout opens it at once, other errors after `threshold` in a row; a success closes it. Times are seconds on a
    clock that never goes back. `troubled` is False while nothing has failed since the last success: a call that
    succeeds need ask nothing else then. `is_open`: whether calls are turned away, probes aside. Thread-safe.
    """

    def __init__(self, threshold: int, cooldown: float) -> None:
        self.troubled = self.is_open = False
        self._threshold, self._cooldown = threshold, cooldown
        self._lock = threading.Lock()
        self._failures = 0
        self._opened_at = self._failed_at = LONG_AGO
        self._next_probe = LONG_AGO

    def allows(self, now: float) -> bool:
        """Whether a call may go now; open, one that may is the probe of this cool-down."""
        with self._lock:
            if not self.is_open:
                return True
            if now < self._next_probe:
                return False
            # Should the probe never be heard of again, the next one may go when this one's time is over.
            self._next_probe = now + self._cooldown
            return True

    def failed(self, began: float, now: float, *, timed_out: bool) -> None:
        """Note a call that failed; of those that were under way together, one counts: they met one fault."""
        with self._lock:
            self.troubled = True
            if began >= self._failed_at:
                self._failures += 1
                self._failed_at = now
            if timed_out or self._failures >= self._threshold or self.is_open:
                self.is_open, self._opened_at = True, now
                self._next_probe = now + self._cooldown

    def succeeded(self, began: float) -> None:
        """Note a call that was answered; one that began before the breaker opened says nothing of the server now."""
        with self._lock:
            if not self.is_open or began >= self._opened_at:
                self.troubled = self.is_open = False
                self._failures = 0
