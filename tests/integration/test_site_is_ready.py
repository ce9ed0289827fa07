"""What one process says reaches the others, the warm-up knows them all, and schedules need nobody at midnight."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.db import connection

from ratelimit_app import block, publishing, reset, unblock
from ratelimit_app.conf import conf
from ratelimit_app.models import BlacklistEntry, Rule, to_us
from ratelimit_app.store.processes import processes
from tests.integration.site import Member

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.django_db(transaction=True)

MIDNIGHT = datetime(2030, 11, 11, tzinfo=UTC)
HOUR = timedelta(hours=1)
WAIT = "60"


@pytest.fixture
def members() -> Iterator[list[Member]]:
    """Two processes that hold the rules of this moment, one of which is scheduled."""
    Rule.objects.create(name="sale", rate="1/d", starts_at=MIDNIGHT, ends_at=MIDNIGHT + HOUR)
    found = [Member() for _ in range(2)]
    try:
        version = publishing.read_snapshot().version
        assert [version, version] == [member.version() for member in found]
        yield found
    finally:
        for member in found:
            member.kill()


def warm_up(*options: str) -> tuple[Any, int]:
    """Run the command, and give its report and its exit status."""
    out, status = StringIO(), 0
    try:
        call_command("ratelimit_warmup", "--json", *options, stdout=out)
    except SystemExit as ending:
        status = int(str(ending.code))
    return json.loads(out.getvalue()), status


def test_what_is_forgotten_when_one_process_says_so_reaches_the_others(members: list[Member]) -> None:
    """C96: reset, a ban and its end are told to every process, by whatever way they were written."""
    reset("user:1")
    block("user:2", reason="")
    for member in members:
        member.forgets("user:1", "user:2")
    assert 1 == unblock("user:2")
    BlacklistEntry.objects.bulk_create([BlacklistEntry(kind="user", value="3")])
    for member in members:
        member.forgets("user:2", "user:3")
    call_command("ratelimit_unblock", "user:3", stdout=StringIO())
    for member in members:
        member.forgets("user:3")


def test_the_warm_up_when_processes_run_finds_them_all_ready(members: list[Member]) -> None:
    """Both hold the newest version, even of rules that raw SQL changed, and have opened their connections."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE ratelimit_app_rule SET rate = '2/d'")
    report, status = warm_up("--connections", "3", "--wait", WAIT)
    assert (0, 2, 2, 2, []) == (
        status, report["processes"], report["newest"], report["warm"], report["lagging"],
    )  # fmt: skip
    assert publishing.read_snapshot().version == report["version"]
    assert sorted(member.pid for member in members) == sorted(one.pid for one in processes())
    assert all(one.connections >= 3 for one in processes())


def test_a_process_when_it_ends_is_none_of_the_site_any_more(members: list[Member]) -> None:
    """It takes its entry back; one that is killed is found lagging until its entry is too old."""
    assert 0 == warm_up("--wait", WAIT)[1]
    members[0].end()
    assert [members[1].pid] == [one.pid for one in processes()]
    members[1].kill()
    report, status = warm_up("--wait", "0.3")
    assert (1, 1, 0) == (status, report["processes"], report["warm"])
    assert [members[1].pid] == [one["pid"] for one in report["lagging"]]


def test_a_schedule_when_its_instant_comes_acts_in_every_process_without_a_publish(
    members: list[Member], valkey: Any
) -> None:
    """Armed before, in force to the microsecond, over to the microsecond, with no snapshot to be had."""
    one, other = members
    valkey.set(conf.keys.snapshot, "nothing to be had")
    starts, ends = to_us(MIDNIGHT), to_us(MIDNIGHT + HOUR)
    early = [member.status(starts - 1, "203.0.113.1") for member in (one, other) for _ in range(2)]
    assert [200] * 4 == early
    assert [200, 429, 429] == [member.status(starts, "203.0.113.1") for member in (one, other, one)]
    assert [200, 429, 429] == [member.status(starts, "203.0.113.2") for member in (other, one, other)]
    assert [429, 429] == [member.status(ends - 1, "203.0.113.1") for member in (one, other)]
    assert [200, 200] == [member.status(ends, "203.0.113.1") for member in (one, other)]
    assert b"nothing to be had" == valkey.get(conf.keys.snapshot)
