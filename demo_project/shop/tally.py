"""What the sale admitted and turned away in each second, counted in Redis for the page that shows it live."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django_redis import get_redis_connection
from redis import RedisError

if TYPE_CHECKING:
    from ratelimit_app import Decision

KEPT = 120  # seconds
OUTCOMES = ("admitted", "limited", "blocked")


def count(outcome: str) -> None:
    """Count one request in this second. A page that lacks a count is better than a sale that stops: no error."""
    key = _key(int(time.time()))
    with suppress(RedisError), get_redis_connection("default").pipeline(transaction=False) as pipeline:
        pipeline.hincrby(key, outcome, 1)
        pipeline.expire(key, KEPT)
        pipeline.execute()


def count_denied(decision: Decision, **_: Any) -> None:
    """Count a denied request: the receiver of `request_denied`."""
    count(decision.verdict)


def recent(seconds: int) -> list[dict[str, int]]:
    """Give the counts of the last so many seconds, oldest first, without the one that is still running."""
    now = int(time.time())
    moments = range(now - seconds, now)
    counts: list[dict[bytes, bytes]] = []
    with suppress(RedisError), get_redis_connection("default").pipeline(transaction=False) as pipeline:
        for moment in moments:
            pipeline.hgetall(_key(moment))
        counts = pipeline.execute()
    return [_row(moment, found) for moment, found in zip(moments, counts, strict=False)]


def _row(moment: int, found: dict[bytes, bytes]) -> dict[str, int]:
    return {"second": moment, **{outcome: int(found.get(outcome.encode(), 0)) for outcome in OUTCOMES}}


def _key(second: int) -> str:
    return f"{settings.RATELIMIT_APP['KEY_PREFIX']}-shop:{second}"
