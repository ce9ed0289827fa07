"""Redis away, full, or with older data while people edit: what the database says is there in time, by itself."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from ratelimit_app import block, publishing, snapshot_cache, unblock
from ratelimit_app.conf import conf
from ratelimit_app.models import Rule
from tests.integration.watchers import Watcher, expect

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.django_db(transaction=True)

ADDRESS, NETWORK = "ip:203.0.113.9", "ip:198.51.100.0/24"
AFTER: dict[str, Any] = {"limit": "7000", "client": 403, "neighbour": 200}


def edit() -> None:
    """Change a rule, and ban an address."""
    Rule.objects.update(rate="7000/s")
    block(ADDRESS, reason="")


@contextmanager
def hanging(valkey: Any) -> Iterator[None]:
    """Let the server accept connections and answer nothing."""
    pid = valkey.info("server")["process_id"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_edits_when_redis_hangs_are_published_by_other_processes_on_its_return(
    watchers: list[Watcher], valkey: Any
) -> None:
    """C120: whoever saved need not live on: in this process nobody publishes anything later."""
    with hanging(valkey):
        edit()
        time.sleep(1)  # a process that was in the middle of its refresh has noticed by now
    expect(watchers, AFTER)
    assert not publishing.sync(check=True).has_drifted


def test_edits_when_redis_takes_no_writes_are_published_by_whoever_saved(
    watchers: list[Watcher], valkey: Any
) -> None:
    """Reads go on, so that no other process can know; this one tries again until it succeeds."""
    snapshot_cache.restorer.on_return = publishing.publish_missed
    memory = valkey.config_get("maxmemory")["maxmemory"]
    valkey.config_set("maxmemory", 1)
    try:
        edit()
        assert snapshot_cache.restorer.has_unpublished
    finally:
        valkey.config_set("maxmemory", memory)
    expect(watchers, AFTER)


def test_redis_when_it_comes_back_with_older_data_is_brought_up_to_date(
    watchers: list[Watcher], valkey: Any
) -> None:
    """A backup, or a replica that was behind: rules, bans and what was let in again meanwhile."""
    block(NETWORK, reason="")
    expect(watchers, {"client": 200, "neighbour": 403})
    older = {key: valkey.dump(key) for key in valkey.scan_iter()}
    edit()
    unblock(NETWORK)
    expect(watchers, AFTER)
    pipe = valkey.pipeline(transaction=True)
    pipe.flushdb()
    for key, value in older.items():
        pipe.restore(key, 0, value)
    pipe.execute()
    assert publishing.sync(check=True).has_drifted
    deadline = time.monotonic() + conf.refresh_interval + 1
    while publishing.sync(check=True).has_drifted:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    expect(watchers, AFTER)
