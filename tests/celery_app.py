"""The Celery application of the tests' project, and how a process beside the tests finds their databases."""

from __future__ import annotations

import json
import os
from typing import Any

import django
from celery import Celery
from django.conf import settings

NAMES = "RATELIMIT_TEST_NAMES"
INTERVAL = 0.5


def child_environment() -> dict[str, str]:
    """Give the environment in which another process uses the server and the databases of this test run."""
    from django.db import connections

    names = {alias: str(connections[alias].settings_dict["NAME"]) for alias in connections}
    own = {"DJANGO_SETTINGS_MODULE": "tests.settings", "RATELIMIT_TEST_DATA": str(settings.DATA)}
    return {**os.environ, **own, NAMES: json.dumps(names)}


def set_up() -> None:
    """Start Django on the databases that the tests have made."""
    for alias, name in json.loads(os.environ[NAMES]).items():
        settings.DATABASES[alias]["NAME"] = name
    django.setup()


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
        beat_schedule_filename=str(settings.DATA / "beat"),
        beat_max_loop_interval=INTERVAL,
    )
    app.autodiscover_tasks(["ratelimit_app"], force=True)
    return app


def at_a_tests_pace(entry: dict[str, Any]) -> dict[str, Any]:
    """Let the work be due more often than a site would want; messages expire as they do there."""
    return entry | {"schedule": INTERVAL}


if NAMES in os.environ:
    set_up()
    app = make_app()
    app.set_current()
