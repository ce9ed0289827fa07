"""
The periodic work as Celery tasks; `schedule.BEAT_SCHEDULE` says how often.

Each is safe to run twice, late, or twice at once, so a message that is delivered again does no harm. A result is
plain data; a Redis that does not answer fails the task, and the next one does what it left.
"""

from __future__ import annotations

from typing import Any

from celery import shared_task

from ratelimit_app import promotion, publishing


@shared_task
def promote_repeat_offenders() -> dict[str, Any]:
    """Ban those who reached the threshold of a promotion policy."""
    return promotion.promote_repeat_offenders().as_dict()


@shared_task
def sync_to_redis() -> dict[str, Any]:
    """Compare the database with Redis and repair what differs."""
    return publishing.sync().to_dict()


@shared_task
def prune_expired() -> int:
    """Delete the entries that are over."""
    return promotion.prune_expired()
