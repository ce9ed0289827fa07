"""Promotion and sync by several processes at once, and by some that die: nothing is lost, nothing happens twice."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from subprocess import PIPE
from typing import Any

import pytest
from django.contrib.auth.models import User

from ratelimit_app import publishing
from ratelimit_app.conf import conf
from ratelimit_app.models import BlacklistEntry
from tests.beside import child_environment
from tests.offending import make_policy, make_rule, offend
from tests.promoting import STEPS, SYNC_STEPS

pytestmark = pytest.mark.django_db(transaction=True)

OFFENDERS = [f"ip:203.0.113.{number}" for number in range(20)]


@pytest.fixture
def start():
    """Start processes that promote when they are told to; those still there at the end are killed."""
    started = []

    def start_one(*options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.promoting", *options]
        process = subprocess.Popen(
            command, env=child_environment(), text=True, stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


def ready(*processes: subprocess.Popen[str]) -> None:
    """Wait until these processes are loaded."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()


def go(*processes: subprocess.Popen[str]) -> None:
    """Tell these processes to promote."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def report_of(process: subprocess.Popen[str]) -> Any:
    """Give the report of a process that has ended well."""
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    return json.loads(out)


def assert_everybody_was_banned_once(valkey: Any) -> None:
    """One row of level 1, one mark and one signal for each offender."""
    rows = BlacklistEntry.objects.all()
    assert sorted(row.identity for row in rows) == sorted(OFFENDERS)
    assert {row.level for row in rows} == {1}
    assert all(row.announced_at for row in rows)
    assert all(valkey.exists(conf.keys.mark(identity)) for identity in OFFENDERS)
    assert Counter(OFFENDERS) == Counter(User.objects.values_list("first_name", flat=True))


@pytest.fixture
def offenders():
    """Twenty offenders, a rule and a policy."""
    make_rule()
    make_policy(find_period=600, block_period=600)
    for identity in OFFENDERS:
        offend(identity)


@pytest.mark.parametrize("options", [(), ("--without-turn",)], ids=["with the turn", "by the database alone"])
def test_five_processes_at_once_ban_everybody_once(valkey, offenders, start, options):
    """C107, C108: five at once give one entry and one signal for each; the lock in Redis only spares work."""
    five = [start(*options) for _ in range(5)]
    ready(*five)
    go(*five)
    reports = [report_of(process) for process in five]
    promoted = Counter(item["identity"] for report in reports for item in report["promoted"])
    announced = Counter(identity for report in reports for identity in report["announced"])
    assert promoted == announced == Counter(OFFENDERS)
    assert_everybody_was_banned_once(valkey)


@pytest.mark.parametrize("step", STEPS)
def test_a_process_killed_at_a_step_leaves_the_rest_to_the_next(valkey, offenders, start, step):
    """C107: SIGKILL between any two steps loses nothing, and nothing happens twice."""
    first, second = start("--die-at", step), start()
    ready(first, second)
    go(first)
    assert first.wait(30) == -9
    go(second)
    report_of(second)
    assert_everybody_was_banned_once(valkey)


def test_processes_killed_at_random_moments_leave_the_rest_to_the_next(valkey, offenders, start):
    """C107: the same, wherever the killing falls."""
    doomed = [start() for _ in range(4)]
    last = start()
    ready(*doomed, last)
    for process in doomed:
        go(process)
        time.sleep(random.uniform(0, 0.25))
        process.kill()
        process.wait(30)
    go(last)
    report_of(last)
    assert_everybody_was_banned_once(valkey)


@pytest.mark.parametrize("step", SYNC_STEPS)
def test_a_sync_killed_at_a_step_leaves_the_rest_to_the_next(valkey, start, step):
    """SIGKILL between any two steps of a repair: the next one finds what is missing, and mends it."""
    make_rule()
    for value in ("203.0.113.9", "198.51.100.0/24"):
        BlacklistEntry.objects.create(kind="ip", value=value)
    valkey.flushdb()
    first, second = start("--sync", "--die-at", step), start("--sync")
    ready(first, second)
    go(first)
    assert first.wait(30) == -9
    go(second)
    report_of(second)
    report = publishing.sync(check=True)
    assert (report.bans, report.has_drifted) == (2, False)
    assert valkey.exists(conf.keys.mark("ip:203.0.113.9"))
