"""What the demo starts is gone when it ends, whichever way it ends."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import subprocess

    from tests.demo.conftest import Demo

SCRIPT = """
import pathlib, sys, time
from demo_project.rehearsal.crew import Crew
with Crew(pathlib.Path(sys.argv[1]), {}, temporary=True) as crew:
    crew.start("child", [sys.executable, "-c", "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"])
    print("ready", flush=True)
    {then}
"""


def _start(demo: Demo, then: str) -> subprocess.Popen[str]:
    process = demo.start("-c", SCRIPT.replace("{then}", then), str(demo.directory / "crew"))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def _left(demo: Demo) -> tuple[list[str], bool]:
    return demo.left_running(), (demo.directory / "crew").exists()


@pytest.mark.parametrize(("then", "status"), [("time.sleep(0.3)", 0), ("raise RuntimeError", 1)])
def test_crew_when_the_block_ends_then_nothing_is_left(demo, then, status):
    """Processes, their own children and the directory go, after an exception too."""
    with _start(demo, then) as process:
        process.communicate(timeout=20)

    assert (process.returncode, *_left(demo)) == (status, [], False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_crew_when_interrupted_then_nothing_is_left_and_the_status_says_so(demo, number):
    """Ctrl-C, SIGTERM and a closed terminal all clean up; the status is 128 and the signal's number."""
    with _start(demo, "time.sleep(60)") as process:
        process.send_signal(number)
        process.communicate(timeout=20)

    assert (process.returncode, *_left(demo)) == (128 + number, [], False)


def test_crew_when_interrupted_twice_then_still_cleans_up(demo):
    """An impatient second Ctrl-C does not stop the cleaning up."""
    with _start(demo, "time.sleep(60)") as process:
        for _ in range(5):
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)

    assert _left(demo) == ([], False)


def test_crew_when_killed_then_the_keeper_ends_the_rest(demo):
    """SIGKILL leaves no orphans: the keeper's pipe closes with the process that wrote to it."""
    with _start(demo, "time.sleep(60)") as process:
        process.kill()
        process.wait(timeout=20)

    assert _left(demo) == ([], False)


def test_run_when_the_command_fails_then_the_error_has_its_last_words(demo):
    """An operator learns which process failed, and what it said."""
    then = 'crew.run("migrate", [sys.executable, "-c", "raise SystemExit(\'no such table\')"])'
    with _start(demo, then) as process:
        _, errors = process.communicate(timeout=20)

    assert "migrate failed. Its last words: no such table" in errors


def test_check_when_a_process_has_ended_then_the_error_names_it(demo):
    """A server that dies during the sale is noticed."""
    then = f'crew.start("server", ["{sys.executable}", "-c", ""]); time.sleep(1); crew.check()'
    with _start(demo, then) as process:
        _, errors = process.communicate(timeout=20)

    assert "CrewError: server failed." in errors
