"""Four processes with eight threads each, one identity, thousands of tries: never one too many, never one too few."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.judging import Try, faults

if TYPE_CHECKING:
    from collections.abc import Iterator

PROCESSES, LIMIT, SECOND = 4, 200, 1_000_000
TRIES = {"sync": 20_000, "async": 20_000, "http": int(os.environ.get("EXACT_HTTP_TRIES", "20000"))}


@pytest.fixture
def environment(settings: Any) -> dict[str, str]:
    """What the processes need to share this test's server."""
    return os.environ | {
        "RATELIMIT_TEST_DATA": str(settings.DATA),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "EXACT_RATE": f"{LIMIT}/s",
    }


def ask(door: str, environment: dict[str, str]) -> list[Try]:
    """Have four processes ask at once, and collect what they were told."""
    start = str(time.time() + 1.5)
    count = str(TRIES[door] // PROCESSES)
    command = [sys.executable, "-m", "tests.integration.exact_client", door, count, start]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    try:
        answers = [json.loads(one.communicate(timeout=60)[0]) for one in running]
    finally:
        for one in running:
            one.kill()
            one.wait()
    return [Try(*row) for part in answers for row in part]


@contextmanager
def site(environment: dict[str, str]) -> Iterator[str]:
    """Serve the site with two processes, and give its address."""
    command = [sys.executable, "-m", "gunicorn", "tests.integration.exact_site:application"]
    command += ["--bind", "127.0.0.1:0", "--workers", "2", "--threads", "16", "--no-control-socket"]
    server = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        yield address(server)
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)


def address(server: subprocess.Popen[str]) -> str:
    """Read where the server listens from what it logs."""
    log = []
    for line in server.stderr or ():
        log.append(line)
        if found := re.search(r"Listening at: http://(\S+)", line):
            return found[1]
    raise AssertionError("".join(log))


def require_exact(door: str, tries: list[Try]) -> None:
    """All tries were answered, by Redis, and each rightly; the limit was reached, and over more than a window."""
    assert len(tries) >= TRIES[door]
    assert faults(tries, LIMIT, SECOND) == []
    assert sum(one.allowed for one in tries) > 2 * LIMIT
    assert not all(one.allowed for one in tries)


@pytest.mark.parametrize("door", ["sync", "async"])
def test_a_limit_when_four_processes_ask_is_exact(environment: dict[str, str], door: str) -> None:
    """C50, C53: acquire() from threads, aacquire() from tasks: every window is full and none is over."""
    require_exact(door, ask(door, environment))


def test_a_limit_when_asked_over_http_is_exact(environment: dict[str, str]) -> None:
    """C50, C52: check() in a real server of two processes, asked by 32 connections."""
    with site(environment) as where:
        require_exact("http", ask("http", environment | {"EXACT_SITE": where}))


# --- The judge itself -------------------------------------------------------------------------------------------------


def passed(*at: int) -> list[Try]:
    """Admitted tries."""
    return [Try(True, one) for one in at]


def denied(*at: int) -> list[Try]:
    """Denied tries."""
    return [Try(False, one) for one in at]


@pytest.mark.parametrize(
    "tries",
    [
        passed(),
        passed(1, 2),
        passed(1, 2, 101, 102),
        passed(1, 2) + denied(2, 50, 100),
        passed(1, 2, 101) + denied(101),
        passed(5, 5) + denied(5, 104),
        passed(2, 1, 102, 101),
    ],
)
def test_the_judge_when_all_is_right_finds_nothing(tries: list[Try]) -> None:
    """Two in a hundred, entries that leave exactly a period later, denials while both are there."""
    assert faults(tries, 2, 100) == []


@pytest.mark.parametrize(
    ("tries", "fault"),
    [
        (passed(1, 2, 3), "3 were admitted in the window that ends at 3"),
        (passed(1, 2, 100), "3 were admitted in the window that ends at 100"),
        (passed(7, 7, 7), "3 were admitted in the window that ends at 7"),
        (denied(5), "denied at 5, when the window held 0"),
        (passed(1, 2) + denied(101), "denied at 101, when the window held 1"),
        (passed(1, 3) + denied(2), "denied at 2, when the window held 1"),
        ([Try(True, 0, True)], "not decided by Redis: Try(allowed=True, at=0, degraded=True)"),
    ],
)
def test_the_judge_when_something_is_wrong_names_it(tries: list[Try], fault: str) -> None:
    """One too many, one denied too early or too late, one that Redis never saw."""
    assert fault in faults(tries, 2, 100)
