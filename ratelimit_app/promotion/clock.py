"""The clock of offences and bans: the one of Redis."""

from __future__ import annotations

from datetime import UTC, datetime

from ratelimit_app import snapshot_cache
from ratelimit_app.store.connection import site, unavailable


def redis_now() -> float:
    """Give the time in seconds since the epoch: of Redis, or of the test that travels. Raises StoreUnavailable."""
    frozen = snapshot_cache.frozen_now()
    if frozen is not None:
        return frozen / 1_000_000
    with unavailable():
        seconds, micros = site().time()
    return float(seconds) + float(micros) / 1_000_000


def moment(seconds: float) -> datetime:
    """Give a time in seconds since the epoch as a datetime in UTC."""
    return datetime.fromtimestamp(seconds, UTC)
