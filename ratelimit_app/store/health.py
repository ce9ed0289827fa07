"""Whether Redis decides at the moment: one log line for each transition, not one for each request."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ratelimit_app import signals
from ratelimit_app.conf import conf

if TYPE_CHECKING:
    from django.dispatch import Signal

logger = logging.getLogger("ratelimit_app")


class Health:
    """What the last decisions met. `failed` and `answered` give the signal to send at a transition, else None."""

    def __init__(self) -> None:
        self.degraded = False

    def failed(self, error: Exception) -> Signal | None:
        """Note that Redis could not answer."""
        if self.degraded:
            return None
        self.degraded = True
        logger.error("ratelimit.store_degraded the alias %r cannot answer: %s", conf.cache, error)
        return signals.store_degraded

    def answered(self) -> Signal | None:
        """Note that Redis has answered."""
        if not self.degraded:
            return None
        self.degraded = False
        logger.warning("ratelimit.store_recovered the alias %r answers again", conf.cache)
        return signals.store_recovered


health = Health()
