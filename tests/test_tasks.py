"""The periodic work as Celery tasks, and the schedule that is ready to merge."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from ratelimit_app import tasks
from ratelimit_app.conf import conf
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.models import BlacklistEntry
from ratelimit_app.schedule import BEAT_SCHEDULE
from tests.offending import make_policy, make_rule, offend

WHO = "ip:203.0.113.9"


@pytest.mark.django_db(transaction=True)
def test_promote_as_a_task_bans_and_gives_plain_data():
    """The task does what the function does; its result is what JSON can hold."""
    make_rule()
    make_policy()
    offend(WHO)
    results = [tasks.promote_repeat_offenders() for _ in range(2)]
    assert [[item["identity"] for item in result["promoted"]] for result in results] == [[WHO], []]
    assert json.loads(json.dumps(results)) == results
    assert BlacklistEntry.objects.get().identity == WHO


@pytest.mark.django_db(transaction=True)
def test_sync_as_a_task_repairs_what_redis_has_lost(valkey):
    """The task brings back what FLUSHDB took."""
    BlacklistEntry.objects.create(kind="ip", value="203.0.113.9")
    valkey.flushdb()
    assert tasks.sync_to_redis()["drift"] is True
    assert valkey.get(conf.keys.mark(WHO)) == b"0"
    assert tasks.sync_to_redis()["drift"] is False


@pytest.mark.django_db(transaction=True)
def test_prune_as_a_task_deletes_and_counts():
    """The task deletes what is over, and finds nothing the second time."""
    past = datetime.fromtimestamp(time.time() - 60, UTC)
    BlacklistEntry.objects.create(kind="ip", value="203.0.113.9", expires_at=past)
    assert [tasks.prune_expired(), tasks.prune_expired()] == [1, 0]


@pytest.mark.django_db(transaction=True)
def test_promote_as_a_task_without_redis_fails_visibly(settings):
    """A failed run is a failed task: nothing is swallowed, and the next one does the work."""
    make_policy()
    settings.CACHES = {
        "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/redis.sock?db=0"}
    }
    with pytest.raises(StoreUnavailable):
        tasks.promote_repeat_offenders()


def test_schedule_when_merged_names_tasks_that_exist():
    """Every entry of the schedule is a task of ours, and expires before the next of its kind is due."""
    assert len(BEAT_SCHEDULE) == 3
    for entry in BEAT_SCHEDULE.values():
        module, _, name = entry["task"].rpartition(".")
        assert module == "ratelimit_app.tasks"
        assert getattr(tasks, name).name == entry["task"]
        assert 0 < entry["options"]["expires"] <= entry["schedule"]


@pytest.mark.parametrize(
    ("module", "works"),
    [("ratelimit_app", True), ("ratelimit_app.schedule", True), ("ratelimit_app.tasks", False)],
)
def test_import_without_celery_needs_it_for_the_tasks_alone(module, works):
    """A project without Celery can import the app and its schedule."""
    code = f"import sys; sys.modules['celery'] = None; import {module}"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (finished.returncode == 0) is works, finished.stderr
