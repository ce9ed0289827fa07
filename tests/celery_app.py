"""The Celery application of the tests' project, for a worker beside the tests."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from django.conf import settings

from tests.beside import is_child, set_up

INTERVAL = 0.5


def make_app() -> Celery:
    """Make an application whose broker is the tests' server, with the app's own schedule at a test's pace."""
    from ratelimit_app.schedule import BEAT_SCHEDULE

    app = Celery("tests", set_as_current=False)
    broker = os.environ.get("TEST_REDIS_URL", f"redis+socket://{settings.VALKEY_SOCKET}?virtual_host=1")
    app.conf.update(
        broker_url=broker,
        result_backend=broker,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
        beat_schedule={name: at_a_tests_pace(entry) for name, entry in BEAT_SCHEDULE.items()},
        # Nothing is to be remembered, and a file that SQLite holds (Python 3.13) fails now and then at the end.
        beat_scheduler="celery.beat:Scheduler",
        beat_max_loop_interval=INTERVAL,
    )
    app.autodiscover_tasks(["ratelimit_app"], force=True)
    return app


def at_a_tests_pace(entry: dict[str, Any]) -> dict[str, Any]:
    """Let the work be due more often than a site would want; messages expire as they do there."""
    return entry | {"schedule": INTERVAL}


if is_child():
    set_up()
    from tests.offending import note_signals

    note_signals()
    app = make_app()
    app.set_current()
