"""An import that dies or is interrupted leaves the database as it was, or the rest to the next sync."""

from __future__ import annotations

import signal
import subprocess
import sys
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import pytest

from ratelimit_app import block, publishing
from ratelimit_app.conf import conf
from ratelimit_app.models import BlacklistEntry
from tests.beside import child_environment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.django_db(transaction=True)

BEFORE = ["192.0.2.1", "192.0.2.2", "198.51.100.0/24"]
LIST = [f"203.0.113.{number}" for number in range(100)] + ["198.51.100.0/25", "192.0.2.2"]


@pytest.fixture
def start():
    """Start processes that import; those still there at the end are killed."""
    started = []

    def start_one(step: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.importing", step, *arguments]
        process = subprocess.Popen(
            command, env=child_environment(), text=True, stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Give a list, and the entries that it would change."""
    for value in BEFORE:
        BlacklistEntry.objects.create(kind="ip", value=value, source="imported", reason="before")
    block("ip:192.0.2.3", reason="by hand")
    file = tmp_path / "list.txt"
    file.write_text("\n".join(LIST))
    return str(file)


def entries() -> list[tuple[str, str, str]]:
    """Give what the database says."""
    return sorted(BlacklistEntry.objects.values_list("value", "source", "reason"))


def published(valkey: Any) -> set[str]:
    """Give whom Redis bans."""
    marks = {field.decode().partition(":")[2] for field in valkey.hkeys(conf.keys.marks)}
    return marks | {field.decode() for field in valkey.hkeys(conf.keys.networks)}


def feed(process: subprocess.Popen[str], text: str) -> None:
    """Give it a part of its list."""
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.flush()


def await_staged(process: subprocess.Popen[str]) -> None:
    """Wait until it has read a part of its list into the database."""
    assert process.stdout is not None
    assert process.stdout.readline() == "staged\n", process.communicate()


@pytest.mark.parametrize("step", ["staged", "removed", "merged"])
def test_an_import_when_killed_before_its_commit_leaves_everything_as_it_was(
    valkey: Any, start: Any, path: str, step: str
) -> None:
    """SIGKILL at any step leaves database and Redis as they were, and the next import does it all."""
    before, held = entries(), published(valkey)
    assert -9 == start(step, path, "--replace").wait(60)
    assert before == entries()
    assert held == published(valkey)
    assert not publishing.sync(check=True).has_drifted
    again = start("-", path, "--replace")
    _, err = again.communicate(timeout=60)
    assert (0, "") == (again.returncode, err)
    assert sorted([*LIST, "192.0.2.3"]) == [value for value, *_ in entries()]
    assert {*LIST, "192.0.2.3"} == published(valkey)


def test_an_import_when_killed_after_its_commit_is_published_by_the_sync(
    valkey: Any, start: Any, path: str
) -> None:
    """Between commit and publishing a death costs the time until the next sync, and nothing else."""
    held = published(valkey)
    assert -9 == start("committed", path, "--replace").wait(60)
    assert sorted([*LIST, "192.0.2.3"]) == [value for value, *_ in entries()]
    assert held == published(valkey)
    publishing.sync()
    assert {*LIST, "192.0.2.3"} == published(valkey)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_import_when_ended_while_it_reads_leaves_everything_as_it_was(
    valkey: Any, start: Any, path: str, ending: signal.Signals
) -> None:
    """A list that stops in the midst changes nothing; who interrupts is told so."""
    before, held = entries(), published(valkey)
    process = start("-", "-", "--replace", "--format", "plain")
    # More than is read at once.
    feed(process, "# a long comment\n" * 8_000 + "\n".join(LIST * 80))
    await_staged(process)
    process.send_signal(ending)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (130 if ending == signal.SIGINT else -ending), err
    if ending == signal.SIGINT:
        assert "nothing was imported" in err
    assert before == entries()
    assert held == published(valkey)
