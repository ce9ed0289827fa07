"""`ratelimit_warmup`: what is got ready ahead of a sale, and who is behind."""

from __future__ import annotations

import json
import threading
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command

from ratelimit_app.conf import conf
from ratelimit_app.models import Rule
from ratelimit_app.snapshot_cache import SnapshotCache
from ratelimit_app.store import scripts
from ratelimit_app.store.processes import Presence

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.django_db(transaction=True)
LONG = "60"


class Screen(StringIO):
    """A standard error that is a terminal; `is_late` is set when progress has been shown for more than a second."""

    def __init__(self) -> None:
        super().__init__()
        self.is_late = threading.Event()

    def write(self, text: str) -> int:
        """Take what is shown."""
        if self.getvalue().count("ready") > 12:
            self.is_late.set()
        return super().write(text)

    def isatty(self) -> bool:
        """It is."""
        return True


def run(*args: str, **streams: Any) -> tuple[str, int]:
    """Run the command, and give what it printed and its exit status."""
    out, status = StringIO(), 0
    try:
        call_command("ratelimit_warmup", *args, stdout=out, **streams)
    except SystemExit as ending:
        status = int(str(ending.code))
    return out.getvalue(), status


def seconds(valkey: Any) -> float:
    """The server's clock."""
    return float(valkey.time()[0])


@pytest.fixture
def process(settings: Any) -> Iterator[SnapshotCache]:
    """A process of the site that refreshes all the time."""
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "REFRESH_INTERVAL": 0.05}
    made, over = SnapshotCache(), threading.Event()
    made._periodic.start = lambda: None  # type: ignore[method-assign]

    def live() -> None:
        while not over.wait(0.02):
            made._tick()

    thread = threading.Thread(target=live)
    thread.start()
    yield made
    over.set()
    thread.join()


def test_the_command_when_all_are_ready_exits_with_0(process: SnapshotCache, valkey: Any) -> None:
    """What differs in Redis is published first, the scripts are loaded, and the processes follow."""
    Rule.objects.create(name="a", rate="5/s")
    valkey.flushall()
    valkey.script_flush()
    screen = Screen()
    report, status = run("--wait", LONG, "--json", "--connections", "2", stderr=screen)
    found = json.loads(report)
    assert (0, True, 1, 1, 1, []) == (
        status, found["drift"], found["processes"], found["newest"], found["warm"], found["lagging"],
    )  # fmt: skip
    assert process.refresh() is not None
    assert process.current().version == found["version"]
    assert len(scripts.names()) == found["scripts"]
    assert "ready" in screen.getvalue()
    text, status = run("--wait", LONG)
    assert 0 == status
    assert "as the database says" in text
    assert f"1 processes: 1 hold version {found['version']}, 1 are warm." in text


def test_the_command_when_a_process_is_slow_waits_for_it(process: SnapshotCache) -> None:
    """One that refreshes late is waited for, as long as --wait allows, while another is ready."""
    Rule.objects.create(name="a", rate="5/s")
    slow, screen = SnapshotCache(), Screen()
    slow._tick()
    Rule.objects.update(rate="6/s")

    def wake_up() -> None:
        if screen.is_late.wait(60):
            slow._tick()

    thread = threading.Thread(target=wake_up)
    thread.start()
    report, status = run("--wait", LONG, "--json", stderr=screen)
    thread.join()
    found = json.loads(report)
    assert (0, 2, 2, 2) == (status, found["processes"], found["newest"], found["warm"])
    assert "1 of 2 ready" in screen.getvalue()


def test_the_command_when_a_process_lags_behind_names_it_and_exits_with_1(valkey: Any) -> None:
    """One that holds another version, or has not warmed up, is told with its age."""
    Rule.objects.create(name="a", rate="5/s")
    Presence().attend(None, "e:0", "", seconds(valkey))
    text, status = run("--wait", "0")
    assert 1 == status
    assert "1 processes: 0 hold version" in text
    assert "lags behind: version e:0, not warm, heard of" in text


def test_the_command_when_a_process_lacks_networks_alone_finds_it(valkey: Any) -> None:
    """Banned networks have a version of their own, which counts too."""
    Rule.objects.create(name="a", rate="5/s")
    version = json.loads(run("--wait", "0", "--json")[0])["version"]
    valkey.hset(conf.keys.snapshot, "networks", "e:9")
    Presence().attend(None, version, "e:8", seconds(valkey))
    assert 0 == json.loads(run("--dry-run", "--json")[0])["newest"]
    Presence().attend(None, version, "e:9", seconds(valkey))
    assert 1 == json.loads(run("--dry-run", "--json")[0])["newest"]


def test_the_command_when_there_is_no_process_exits_with_1() -> None:
    """Nobody is ready when nobody is there."""
    text, status = run("--wait", "0")
    assert (1, True) == (status, "No process of the site has told of itself" in text)


def test_the_command_when_run_dry_writes_nothing(valkey: Any) -> None:
    """It compares and counts; processes need not have warmed up."""
    assert 1 == run("--dry-run")[1]
    assert [] == valkey.keys()
    Rule.objects.create(name="a", rate="5/s")
    version, networks = (text.decode() for text in valkey.hmget(conf.keys.snapshot, "version", "networks"))
    Presence().attend(None, version, networks, seconds(valkey))
    text, status = run("--dry-run")
    assert (0, True, True) == (status, "Nothing was written" in text, "1 hold version" in text)
    assert not valkey.exists(conf.keys.warmup)


@pytest.mark.parametrize(
    "options",
    [
        ("--connections", "-1"),
        ("--connections", "65"),
        ("--wait", "-1"),
        ("--wait", "nan"),
        ("--wait", "3601"),
    ],
)
def test_the_command_when_misused_exits_with_2(valkey: Any, options: tuple[str, ...]) -> None:
    """Misuse is told with the remedy and changes nothing."""
    with pytest.raises(CommandError, match="expected") as failure:
        run(*options)
    assert 2 == failure.value.returncode
    assert [] == valkey.keys()


def test_the_command_when_redis_is_away_exits_with_1(settings: Any) -> None:
    """That nothing is warm is a finding."""
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/valkey.sock?db=0"}
    settings.CACHES = {"default": cache}
    with pytest.raises(CommandError, match="does not answer") as failure:
        run()
    assert 1 == failure.value.returncode
