"""Celery as it fails: two beats, messages delivered again and late, a backlog; and nobody who asks or edits notices."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import User

from ratelimit_app.conf import conf
from ratelimit_app.models import BlacklistEntry
from ratelimit_app.schedule import BEAT_SCHEDULE
from tests.beside import child_environment
from tests.celery_app import make_app
from tests.offending import make_policy, make_rule, offend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE = 30
OFFENDERS = [f"ip:203.0.113.{number}" for number in range(5)]


@contextmanager
def worker(settings: Any, *options: str) -> Iterator[list[str]]:
    """Run a Celery worker; its log's lines are in the list at the end, and none of them is of an error."""
    log, lines = settings.DATA / f"worker-{time.monotonic_ns()}.log", list[str]()
    command = [sys.executable, "-m", "celery", "-A", "tests.celery_app", "worker", "--pool", "solo", *options]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--loglevel", "INFO", "-n", f"{time.monotonic_ns()}@%h"],
            env=child_environment(),
            stdout=out,
            stderr=out,
        )
        try:
            yield lines
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    lines += log.read_text(errors="replace").splitlines()
    assert not [line for line in lines if "Traceback" in line or "ERROR" in line], "\n".join(lines)


def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def assert_everybody_was_banned_once(valkey: Any) -> None:
    """One row of level 1, one mark and one signal for each offender."""
    rows = BlacklistEntry.objects.all()
    assert sorted((row.identity, row.level) for row in rows) == [(identity, 1) for identity in OFFENDERS]
    assert all(valkey.exists(conf.keys.mark(identity)) for identity in OFFENDERS)
    assert sorted(User.objects.values_list("first_name", flat=True)) == OFFENDERS


@pytest.fixture
def offenders() -> None:
    """Five offenders, a rule and a policy whose bans outlast the test."""
    make_rule()
    make_policy(find_period=600, block_period=600)
    for identity in OFFENDERS:
        offend(identity)


def test_two_beats_with_two_workers_ban_everybody_once(valkey: Any, settings: Any, offenders: None) -> None:
    """C108: a second beat, started by mistake, sends everything twice, and both workers work at once."""
    with worker(settings, "-B") as one, worker(settings, "-B") as other:
        until(lambda: User.objects.count() == len(OFFENDERS), "everybody banned, and told of")
        time.sleep(2)  # a few more rounds of both
    assert_everybody_was_banned_once(valkey)
    for lines in (one, other):
        assert any("promote_repeat_offenders" in line and "succeeded" in line for line in lines)


def test_a_backlog_when_delivered_at_once_does_its_work_once(
    valkey: Any, settings: Any, offenders: None
) -> None:
    """Hundreds of old runs: those that are over their time are thrown away, the others find nothing left to do."""
    app = make_app()
    for entry in BEAT_SCHEDULE.values():
        for _ in range(100):
            app.send_task(entry["task"], **entry["options"] | {"expires": 0.001})
        for _ in range(20):
            app.send_task(entry["task"])
    app.send_task("ratelimit_app.tasks.prune_expired", task_id="the last one")
    app.close()
    with worker(settings) as lines:
        until(lambda: BlacklistEntry.objects.count() == len(OFFENDERS), "everybody banned")
        until(lambda: "the last one" in _log(settings), "the queue to be worked off")
    assert_everybody_was_banned_once(valkey)
    assert 300 == sum("Discarding revoked task" in line for line in lines)
    assert 61 == sum("succeeded" in line for line in lines)


def _log(settings: Any) -> str:
    newest = max(settings.DATA.glob("worker-*.log"), key=lambda path: path.stat().st_mtime)
    return "".join(line for line in newest.read_text(errors="replace").splitlines() if "succeeded" in line)


def test_a_site_when_its_broker_is_down_answers_saves_and_promotes(valkey: Any, offenders: None) -> None:
    """Nothing on the way of a request, an edit or a command sends a task: Celery need not even be there (six: one of its own)."""
    finished = subprocess.run(
        [sys.executable, "-c", _SITE],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert "200 429 302 6" == finished.stdout.strip()


_SITE = """
import sys
sys.modules["celery"] = sys.modules["kombu"] = None
from tests.beside import set_up
set_up()
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from ratelimit_app import offences, snapshot_cache
from ratelimit_app.models import BlacklistEntry
snapshot_cache.refresh()
codes = [Client(REMOTE_ADDR="198.51.100.7").get("/plain/").status_code for _ in range(9)]
offences.flush()
client = Client()
client.force_login(User.objects.create_superuser("boss"))
form = {"kind": "ip", "value": "192.0.2.1", "reason": "x", "expires_at_0": "", "expires_at_1": ""}
saved = client.post(reverse("admin:ratelimit_app_blacklistentry_add"), form).status_code
import io
call_command("ratelimit_promote", stdout=io.StringIO())
print(codes[0], codes[-1], saved, BlacklistEntry.objects.filter(source="promoted").count())
"""
