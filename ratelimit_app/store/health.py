"""Whether Redis decides at the moment: a breaker for each alias, and one log line for each transition."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from ratelimit_app import signals
from ratelimit_app.conf import conf
from ratelimit_app.core.breaker import LONG_AGO, Breaker
from ratelimit_app.core.calls import StoreUnavailable

if TYPE_CHECKING:
    from django.dispatch import Signal

logger = logging.getLogger("ratelimit_app")

_breakers: dict[str, Breaker] = {}


def breaker(alias: str) -> Breaker:
    """Give the breaker of an alias: one for all threads and loops of this process."""
    found = _breakers.get(alias)
    if found is None:
        found = _breakers.setdefault(alias, Breaker(conf.breaker_threshold, conf.breaker_cooldown))
    return found


def require(found: Breaker, now: float) -> None:
    """Raise StoreUnavailable while a breaker is open, unless this call is the one that may probe."""
    if not found.allows(now):
        msg = "Redis did not answer before, and BREAKER_COOLDOWN is not over"
        raise StoreUnavailable(msg)


def trust(alias: str) -> None:
    """Close the breaker of an alias: a write was answered just now."""
    breaker(alias).succeeded(time.monotonic())


def forget() -> None:
    """Begin with closed breakers: settings have changed, or this process is a fork."""
    global _breakers  # noqa: PLW0603 - so that no thread keeps one that others have forgotten
    _breakers = {}
    health.failed_at = LONG_AGO


class Health:
    """
    What the last decisions met. `failed` and `answered` give the signal to send at a transition, else None.

    A server that reads and cannot write fails one call and answers the next: it has recovered when nothing has
    failed for a cool-down.
    """

    def __init__(self) -> None:
        self.degraded = False
        self.failed_at = LONG_AGO
        self._lock = threading.Lock()

    def failed(self, error: Exception) -> Signal | None:
        """Note that Redis could not answer."""
        self.failed_at = time.monotonic()
        with self._lock:
            if self.degraded:
                return None
            self.degraded = True
        logger.error("ratelimit.store_degraded the alias %r cannot answer: %s", conf.cache, error)
        return signals.store_degraded

    def answered(self) -> Signal | None:
        """Note that Redis has answered."""
        if time.monotonic() - self.failed_at < conf.breaker_cooldown:
            return None
        with self._lock:
            if not self.degraded:
                return None
            self.degraded = False
        logger.warning("ratelimit.store_recovered the alias %r answers again", conf.cache)
        return signals.store_recovered


health = Health()
