"""An edit, by whatever way, reaches every process of the site within `REFRESH_INTERVAL` + 1 seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from ratelimit_app import block, publishing, snapshot_cache, unblock
from ratelimit_app.conf import conf
from ratelimit_app.models import BlacklistEntry, Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).resolve().parents[2]
STARTING = 30.0
WATCHERS = 2
ADDRESS, NETWORK = "ip:203.0.113.9", "ip:198.51.100.0/24"


class Watcher:
    """A process of the site, and what it showed last."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.watcher", str(connection.settings_dict["NAME"])],
            cwd=ROOT,
            env=os.environ | {"RATELIMIT_TEST_DATA": str(settings.DATA)},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.seen = json.loads(line)

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def watchers() -> Iterator[list[Watcher]]:
    """Two processes that serve under a rule of 9000/s, with nobody banned."""
    Rule.objects.create(name="a", rate="9000/s")
    found = [Watcher() for _ in range(WATCHERS)]
    try:
        expect(found, {"limit": "9000", "client": 200, "neighbour": 200}, within=STARTING)
        yield found
    finally:
        for watcher in found:
            watcher.stop()


def expect(watchers: list[Watcher], wanted: dict[str, Any], *, within: float | None = None) -> None:
    """Wait until every process shows this, at most for the contract's time (seconds)."""
    deadline = time.monotonic() + (within or conf.refresh_interval + 1)
    while not all(wanted.items() <= watcher.seen.items() for watcher in watchers):
        assert time.monotonic() < deadline, (wanted, [watcher.seen for watcher in watchers])
        time.sleep(0.01)


def in_the_admin(page: str, *args: Any, **data: str) -> None:
    """Post a form of the admin."""
    client = Client()
    staff, _ = get_user_model().objects.get_or_create(username="boss", is_staff=True, is_superuser=True)
    client.force_login(staff)
    snapshot_cache.refresh()
    assert 302 == client.post(reverse(f"admin:ratelimit_app_{page}", args=args), data).status_code


def execute(sql: str) -> None:
    """Write past the ORM."""
    with connection.cursor() as cursor:
        cursor.execute(sql)


def edit_in_the_admin() -> None:
    """By a form."""
    fields = {"name": "a", "mode": "enforce", "key": "ip", "rate": "8000/s", "algorithm": "sliding_window"}
    in_the_admin("rule_change", Rule.objects.get().pk, **fields, cost="1", offence_weight="1")


def edit_by_update() -> None:
    """By a queryset."""
    Rule.objects.update(rate="8000/s")


def edit_by_save() -> None:
    """By an instance."""
    rule = Rule.objects.get()
    rule.rate = "8000/s"
    rule.save()


def edit_by_bulk_create() -> None:
    """By a second, tighter rule, many at once."""
    Rule.objects.bulk_create([Rule(name="b", rate="8000/s")])


def edit_by_raw_sql() -> None:
    """Past the ORM, which the periodic sync repairs."""
    execute("UPDATE ratelimit_app_rule SET rate = '8000/s'")
    publishing.sync()


@pytest.mark.parametrize(
    "edit", [edit_in_the_admin, edit_by_update, edit_by_save, edit_by_bulk_create, edit_by_raw_sql]
)
def test_a_rule_when_edited_reaches_two_other_processes_in_time(
    watchers: list[Watcher], edit: Callable[[], None]
) -> None:
    """C95: the same processes serve under the new limit."""
    edit()
    expect(watchers, {"limit": "8000"})


def test_a_rule_when_deleted_reaches_two_other_processes_in_time(watchers: list[Watcher]) -> None:
    """C95: without the rule there is no limit."""
    Rule.objects.all().delete()
    expect(watchers, {"limit": None})


def test_bans_when_made_and_lifted_reach_two_other_processes_in_time(watchers: list[Watcher]) -> None:
    """C96: an address and a network, banned and let in again, in processes that have seen the ban."""
    in_the_admin("blacklistentry_add", kind="ip", value="203.0.113.9", confirm="on")
    BlacklistEntry.objects.bulk_create([BlacklistEntry(kind="ip", value="198.51.100.0/24")])
    expect(watchers, {"client": 403, "neighbour": 403})
    in_the_admin("blacklistentry_delete", BlacklistEntry.objects.get(value="203.0.113.9").pk, post="yes")
    expect(watchers, {"client": 200, "neighbour": 403})
    assert 1 == unblock(NETWORK)
    expect(watchers, {"client": 200, "neighbour": 200})


def test_bans_when_ended_by_update_or_by_themselves_reach_two_other_processes_in_time(
    watchers: list[Watcher],
) -> None:
    """C112: at the end of a ban its client passes everywhere, without a restart."""
    block(ADDRESS, reason="", period=2)
    block(NETWORK, reason="")
    expect(watchers, {"client": 403, "neighbour": 403})
    BlacklistEntry.objects.filter(value="198.51.100.0/24").update(expires_at=timezone.now())
    expect(watchers, {"client": 200, "neighbour": 200}, within=2 + conf.refresh_interval + 1)


def test_a_ban_for_ever_when_its_client_goes_on_stays_one(watchers: list[Watcher], valkey: Any) -> None:
    """C111: the requests of the banned touch neither the row nor the mark."""
    entry = block(ADDRESS, reason="")
    expect(watchers, {"client": 403})
    expires = valkey.pexpiretime(conf.keys.mark(ADDRESS))
    time.sleep(0.5)
    assert all(403 == watcher.seen["client"] for watcher in watchers)
    assert (b"0", expires) == (
        valkey.get(conf.keys.mark(ADDRESS)),
        valkey.pexpiretime(conf.keys.mark(ADDRESS)),
    )
    entry.refresh_from_db()
    assert entry.expires_at is None


def test_redis_when_flushed_is_filled_again_by_the_processes_themselves(
    watchers: list[Watcher], valkey: Any
) -> None:
    """C106: bans survive the loss of Redis; what raw SQL changed meanwhile is published with the rest."""
    block(ADDRESS, reason="")
    block(NETWORK, reason="")
    expect(watchers, {"client": 403, "neighbour": 403})
    execute("UPDATE ratelimit_app_rule SET rate = '7000/s'")
    execute("DELETE FROM ratelimit_app_blacklistentry WHERE value = '198.51.100.0/24'")
    valkey.flushdb()
    expect(watchers, {"limit": "7000", "client": 403, "neighbour": 200})
    assert not publishing.sync(check=True).has_drifted
