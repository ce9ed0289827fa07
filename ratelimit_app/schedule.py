"""
The periodic work, ready to merge into `CELERY_BEAT_SCHEDULE`. Importing it needs no Celery.

Each entry expires with its interval: after an outage of the workers one run of each does all that was missed.
"""

from __future__ import annotations

from typing import Any

PROMOTE_INTERVAL = 10.0
SYNC_INTERVAL = 30.0
PRUNE_INTERVAL = 3_600.0


def _every(task: str, seconds: float) -> dict[str, Any]:
    # Nobody waits for these results: they would pile up in the result store.
    options = {"expires": seconds, "ignore_result": True}
    return {"task": f"ratelimit_app.tasks.{task}", "schedule": seconds, "options": options}


BEAT_SCHEDULE: dict[str, dict[str, Any]] = {
    "ratelimit_app.promote_repeat_offenders": _every("promote_repeat_offenders", PROMOTE_INTERVAL),
    "ratelimit_app.sync_to_redis": _every("sync_to_redis", SYNC_INTERVAL),
    "ratelimit_app.prune_expired": _every("prune_expired", PRUNE_INTERVAL),
}
