"""From the database to Redis: versions, networks, marks, and the sync that repairs whatever was missed."""

from __future__ import annotations

import json
import re
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from ratelimit_app import publishing, snapshot_cache
from ratelimit_app.conf import conf
from ratelimit_app.core.addresses import parse_address
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.models import AllowlistEntry, BlacklistEntry, PromotionPolicy, Publication, Rule, to_us
from ratelimit_app.publishing import ledger, publisher
from ratelimit_app.signals import identity_unblocked, snapshot_published
from tests.databases import upsert

pytestmark = pytest.mark.django_db(transaction=True)

ROUND, PATIENCE_MS = 2, 20_000  # Redis rounds up; a busy machine takes its time between two looks
DEAD = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": "unix:///nowhere/valkey.sock?db=0",
    }
}
US = 1_000_000


def body(valkey: Any) -> dict[str, Any]:
    """The snapshot in Redis."""
    held: dict[str, Any] = json.loads(valkey.hget(conf.keys.snapshot, "body"))
    return held


def version(valkey: Any, field: str = "version") -> tuple[str, int]:
    """Epoch and counter in Redis."""
    epoch, _, counter = valkey.hget(conf.keys.snapshot, field).decode().partition(":")
    return epoch, int(counter)


def mark(valkey: Any, identity: str) -> int | None:
    """The mark of an identity in Redis."""
    value = valkey.get(conf.keys.mark(identity))
    return None if value is None else int(value)


def execute(sql: str, *params: Any) -> None:
    """Write past the ORM."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)


def test_a_snapshot_when_nothing_changed_keeps_its_version(valkey: Any) -> None:
    """Only a real change of content bumps the version."""
    rule = Rule.objects.create(name="a", rate="5/s")
    before = version(valkey)
    rule.save()
    Rule.objects.update(description="other words")
    assert before == version(valkey)
    Rule.objects.update(rate="6/s")
    assert (before[0], before[1] + 1) == version(valkey)


def test_a_snapshot_when_published_holds_rules_and_lists_as_plain_data(valkey: Any) -> None:
    """What is off or has ended is not published; periods of policies decide how long offences are kept."""
    now = timezone.now()
    Rule.objects.create(name="a", rate="5/s", starts_at=now)
    Rule.objects.create(name="b", rate="5/s", mode="off")
    AllowlistEntry.objects.create(kind="ip", value="192.0.2.0/24")
    AllowlistEntry.objects.create(kind="user", value="7", expires_at=now + timedelta(hours=1))
    AllowlistEntry.objects.create(kind="user", value="8", expires_at=now)
    PromotionPolicy.objects.create(name="p", find_period=7_200)
    PromotionPolicy.objects.create(name="q", find_period=72_000, enabled=False)
    held = body(valkey)
    assert ["a"] == [rule["name"] for rule in held["rules"]]
    assert to_us(now) == held["rules"][0]["starts_us"]
    assert {"ip:192.0.2.0/24": 0, "user:7": to_us(now) + 3_600 * US} == held["allowlist"]
    assert 7_260 == held["offence_ttl"]
    assert [] == held["kinds"]


def test_the_longer_allowlist_entry_when_two_name_one_identity_counts(valkey: Any) -> None:
    """An imported entry and a manual one may name the same user."""
    AllowlistEntry.objects.create(kind="user", value="7", source="imported")
    AllowlistEntry.objects.create(kind="user", value="7", expires_at=timezone.now() + timedelta(hours=1))
    assert {"user:7": 0} == body(valkey)["allowlist"]


@pytest.mark.parametrize(
    ("kind", "value", "is_mark"),
    [
        ("ip", "203.0.113.9", True), ("ip", "2001:db8::5", True), ("ip", "2001:db8::/64", True), ("user", "42", True),
        ("header:x-key", "secret", True), ("ip", "203.0.113.0/24", False), ("ip", "2001:db8::/48", False),
        ("ip", "2001:db8::/65", False),
    ],
)  # fmt: skip
def test_a_ban_when_published_is_a_mark_or_a_network(
    valkey: Any, kind: str, value: str, is_mark: bool
) -> None:
    """Clients, single or at the configured prefix, are exact marks with their own end; the rest are networks."""
    end = timezone.now() + timedelta(seconds=90)
    entry = BlacklistEntry.objects.create(kind=kind, value=value, expires_at=end)
    if is_mark:
        assert to_us(end) == mark(valkey, entry.identity)
        assert to_us(end) == int(valkey.hget(conf.keys.marks, entry.identity))
        left = valkey.pttl(conf.keys.mark(entry.identity))
        assert -ROUND <= time.time() * 1_000 + left - end.timestamp() * 1_000 <= PATIENCE_MS
        assert [kind] == body(valkey)["kinds"]
    else:
        assert to_us(end) == int(valkey.hget(conf.keys.networks, value))
        assert [] == body(valkey)["kinds"]


def test_every_key_when_published_has_a_time_to_live(valkey: Any) -> None:
    """Nothing that is written stays for ever by itself; what never ends lives 30 days and is renewed."""
    Rule.objects.create(name="a", rate="5/s")
    for value in ("203.0.113.9", "203.0.113.0/24"):
        BlacklistEntry.objects.create(kind="ip", value=value)
    assert 0 < valkey.ttl(conf.keys.notices) <= 86_400  # what nobody has to be told any more goes by itself
    keys = sorted({*valkey.keys()} - {conf.keys.notices.encode()})
    assert 5 == len(keys)
    assert all(29 * 86_400 < valkey.ttl(key) <= 30 * 86_400 for key in keys)
    for key in keys:
        valkey.expire(key, 60)
    assert not publishing.sync().has_drifted
    assert all(valkey.ttl(key) > 29 * 86_400 for key in keys)


def noticed(valkey: Any) -> list[str | None]:
    """Whom the notices name, None: everybody."""
    return [
        fields[b"identity"].decode() if b"identity" in fields else None
        for _, fields in valkey.xrange(conf.keys.notices)
    ]


def test_a_mark_when_written_or_deleted_is_noticed_and_a_network_is_not(valkey: Any) -> None:
    """C96: whoever remembers a denial of this identity hears of it; networks are matched in each process."""
    told: list[Any] = []
    snapshot_cache.when_forgotten(told.append)
    try:
        entry = BlacklistEntry.objects.create(kind="ip", value="203.0.113.9")
        assert {"ip:203.0.113.9"} in told  # at once
        BlacklistEntry.objects.create(kind="ip", value="203.0.113.0/24")
        entry.delete()
    finally:
        snapshot_cache.when_forgotten(None)
    assert ["ip:203.0.113.9", "ip:203.0.113.9"] == noticed(valkey)
    publishing.sync()
    assert 2 == len(noticed(valkey))


def test_marks_when_very_many_are_written_are_noticed_as_everything(valkey: Any) -> None:
    """More than a hundred in one call take one entry for each hundred that are written at once."""
    ledger.put_marks({f"user:{number}": 0 for number in range(100)})
    assert 100 == len(noticed(valkey))
    ledger.put_marks({f"user:{number}": None for number in range(50, 300)})
    assert [None, None, None] == noticed(valkey)[100:]
    assert 50 == valkey.hlen(conf.keys.marks)
    assert [0, None, None] == [mark(valkey, f"user:{number}") for number in (49, 50, 99)]


def test_keys_of_the_whole_site_when_they_are_strangers_are_dropped_by_the_sync(valkey: Any) -> None:
    """C136: a ban is published past them, and the sync makes room for ours."""
    valkey.set(conf.keys.notices, "text")
    valkey.set(conf.keys.processes, "text")
    BlacklistEntry.objects.create(kind="user", value="1")
    assert 0 == mark(valkey, "user:1")
    publishing.sync()
    assert not valkey.exists(conf.keys.notices, conf.keys.processes)


def test_networks_when_edited_are_published_as_differences(valkey: Any) -> None:
    """Networks have a version of their own; each change of it is in the list of changes."""
    first = BlacklistEntry.objects.create(kind="ip", value="203.0.113.0/24")
    before, rules_before = version(valkey, "networks"), version(valkey)
    BlacklistEntry.objects.create(kind="ip", value="198.51.100.0/24")
    first.delete()
    assert rules_before == version(valkey)
    assert (before[0], before[1] + 2) == version(valkey, "networks")
    changes = [json.loads(change) for change in valkey.lrange(conf.keys.network_changes, -2, -1)]
    assert [
        {"n": before[1] + 1, "set": {"198.51.100.0/24": 0}, "del": []},
        {"n": before[1] + 2, "set": {}, "del": ["203.0.113.0/24"]},
    ] == changes
    assert {b"198.51.100.0/24": b"0"} == valkey.hgetall(conf.keys.networks)


def test_networks_when_redis_forgot_them_reach_readers_that_remember_old_ones(valkey: Any) -> None:
    """A reader drops a network that was unblocked while Redis was away and came back empty."""
    entry = BlacklistEntry.objects.create(kind="ip", value="203.0.113.0/24")
    snapshot_cache.refresh()
    address = parse_address("203.0.113.9")
    assert address is not None

    def end() -> int | None:
        found = snapshot_cache.refresh()
        assert found is not None
        return found.networks.find(address, 1)

    assert 0 == end()
    valkey.flushall()
    execute("DELETE FROM ratelimit_app_blacklistentry WHERE id = %s", entry.pk)
    publishing.sync()
    assert end() is None


def test_a_ban_when_several_name_one_identity_ends_with_the_longest(valkey: Any) -> None:
    """Deleting the longer leaves the shorter in force; deleting both lifts the ban."""
    now = timezone.now()
    short = BlacklistEntry.objects.create(kind="user", value="1", expires_at=now + timedelta(hours=1))
    long = BlacklistEntry.objects.create(
        kind="user", value="1", source="promoted", expires_at=now + timedelta(hours=2)
    )
    assert to_us(long.expires_at) == mark(valkey, "user:1")
    long.delete()
    assert to_us(short.expires_at) == mark(valkey, "user:1")
    BlacklistEntry.objects.create(kind="user", value="1", source="imported")
    assert 0 == mark(valkey, "user:1")
    BlacklistEntry.objects.all().delete()
    assert mark(valkey, "user:1") is None
    assert not valkey.exists(conf.keys.marks)


def test_a_ban_when_it_has_ended_leaves_nothing_in_redis(valkey: Any) -> None:
    """C112: the mark dies at its time by itself; the sync clears the index and finds no drift in that."""
    unblocked: list[str] = []

    def note(identity: str, **_: Any) -> None:
        unblocked.append(identity)

    identity_unblocked.connect(note)
    for value in ("203.0.113.9", "203.0.113.0/24"):
        BlacklistEntry.objects.create(
            kind="ip", value=value, expires_at=timezone.now() + timedelta(milliseconds=300)
        )
    threading.Event().wait(0.35)
    assert mark(valkey, "ip:203.0.113.9") is None
    assert not publishing.sync(check=True).stale
    publishing.sync()
    identity_unblocked.disconnect(note)
    assert not valkey.exists(conf.keys.marks, conf.keys.networks)
    assert [] == unblocked


def test_a_version_when_redis_is_ahead_becomes_greater_still(valkey: Any) -> None:
    """A database restored from a backup does not publish under a number that Redis has seen."""
    Rule.objects.create(name="a", rate="5/s")
    epoch, counter = version(valkey)
    Publication.objects.update(counter=0)
    valkey.hset(conf.keys.snapshot, "version", f"{epoch}:{counter + 50}")
    Rule.objects.update(rate="6/s")
    assert (epoch, counter + 51) == version(valkey)
    assert counter + 51 == Publication.objects.get().counter


def test_a_version_when_the_database_is_another_begins_a_new_epoch(valkey: Any) -> None:
    """Redis takes a new epoch, whatever its counter."""
    Rule.objects.create(name="a", rate="5/s")
    epoch, _ = version(valkey)
    Publication.objects.all().delete()
    assert publishing.sync().snapshot_differs
    assert epoch != version(valkey)[0]
    assert not publishing.sync(check=True).has_drifted


def test_redis_when_offered_an_old_counter_of_its_epoch_refuses_it(valkey: Any) -> None:
    """Two publishers cannot put old content under a newer number, nor old numbers over new ones."""
    Rule.objects.create(name="a", rate="5/s")
    epoch, counter = version(valkey)
    for offered in (counter, counter - 1):
        assert not ledger.put_snapshot(f"{epoch}:{offered}", "{}", 0)
        assert not ledger.put_networks(f"{epoch}:0", {"ip:203.0.113.0/24": 0})
    assert (epoch, counter) == version(valkey)
    assert ["a"] == [rule["name"] for rule in body(valkey)["rules"]]
    assert not valkey.exists(conf.keys.networks)


def test_publishers_when_many_at_once_leave_what_the_database_says(valkey: Any) -> None:
    """Eight threads that edit eight rules: no edit is lost, and the last version has them all."""
    Rule.objects.bulk_create([Rule(name=f"r{n}", rate="1/s") for n in range(8)])

    def edit(n: int) -> None:
        for limit in range(2, 7):
            Rule.objects.filter(name=f"r{n}").update(rate=f"{limit}/s")
        connections.close_all()

    threads = [threading.Thread(target=edit, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {"6/s"} == {rule["rate"] for rule in body(valkey)["rules"]}
    assert not publishing.sync(check=True).has_drifted


RAW = [
    "INSERT INTO ratelimit_app_blacklistentry (kind, value, reason, source, created_at, level, evidence) "
    "VALUES ('ip', '198.51.100.1', '', 'manual', '2026-01-01 00:00:00', 0, '')",
    "INSERT INTO ratelimit_app_blacklistentry (kind, value, reason, source, created_at, level, evidence) "
    "VALUES ('ip', '198.51.100.0/24', '', 'manual', '2026-01-01 00:00:00', 0, '')",
    "DELETE FROM ratelimit_app_blacklistentry WHERE value = '203.0.113.9'",
    "DELETE FROM ratelimit_app_blacklistentry WHERE value = '203.0.113.0/24'",
    "UPDATE ratelimit_app_blacklistentry SET expires_at = '2099-01-01 00:00:00'",
    "UPDATE ratelimit_app_rule SET rate = '7/s'",
    "DELETE FROM ratelimit_app_rule",
    "UPDATE ratelimit_app_allowlistentry SET value = '43'",
]


@pytest.mark.parametrize("sql", RAW)
def test_raw_sql_when_the_sync_runs_is_found_and_repaired(valkey: Any, sql: str) -> None:
    """C95: what no hook sees, the periodic comparison repairs; checking alone writes nothing."""
    make_everything()
    execute(sql)
    before = dump(valkey)
    assert publishing.sync(check=True).has_drifted
    assert before == dump(valkey)
    assert publishing.sync().has_drifted
    assert before != dump(valkey)
    assert not publishing.sync(check=True).has_drifted


def damage_nothing_left(valkey: Any) -> None:
    """Redis was flushed."""
    valkey.flushall()


def damage_mark_lost(valkey: Any) -> None:
    """A mark was evicted."""
    valkey.delete(conf.keys.mark("ip:203.0.113.9"))


def damage_index_lost(valkey: Any) -> None:
    """The index was evicted."""
    valkey.delete(conf.keys.marks)


def damage_networks_lost(valkey: Any) -> None:
    """The networks were evicted."""
    valkey.delete(conf.keys.networks)


def damage_mark_wrong(valkey: Any) -> None:
    """A mark says something else."""
    valkey.set(conf.keys.mark("ip:203.0.113.9"), 5)


def damage_mark_of_another_type(valkey: Any) -> None:
    """A mark is no text."""
    valkey.delete(conf.keys.mark("ip:203.0.113.9"))
    valkey.lpush(conf.keys.mark("ip:203.0.113.9"), "x")


def damage_all_of_another_type(valkey: Any) -> None:
    """All shared keys are something else."""
    for key in (conf.keys.snapshot, conf.keys.marks, conf.keys.networks, conf.keys.network_changes):
        valkey.delete(key)
        valkey.set(key, "x")


def damage_body_garbage(valkey: Any) -> None:
    """The snapshot is no JSON."""
    valkey.hset(conf.keys.snapshot, "body", b"\xff{")


def damage_stale_mark(valkey: Any) -> None:
    """A mark without a row."""
    ledger.put_marks({"user:99": 0})


DAMAGES = [value for name, value in sorted(globals().items()) if name.startswith("damage_")]


@pytest.mark.parametrize("damage", DAMAGES)
def test_redis_when_damaged_is_repaired_by_the_sync(valkey: Any, damage: Any) -> None:
    """C95, C106: the snapshot, the networks and the marks are rebuilt from the database alone."""
    make_everything()
    before = dump(valkey)
    damage(valkey)
    assert publishing.sync(check=True).has_drifted
    publishing.sync()
    assert not publishing.sync(check=True).has_drifted
    assert content_of(before) == content_of(dump(valkey))


def make_everything() -> None:
    """One row of each kind that is published."""
    Rule.objects.create(name="a", rate="5/s")
    AllowlistEntry.objects.create(kind="user", value="42")
    for value in ("203.0.113.9", "203.0.113.0/24"):
        BlacklistEntry.objects.create(kind="ip", value=value)


def dump(valkey: Any) -> dict[str, Any]:
    """All that stands in Redis."""
    keys = conf.keys
    held = {
        "snapshot": valkey.hgetall(keys.snapshot),
        "marks": valkey.hgetall(keys.marks),
        "networks": valkey.hgetall(keys.networks),
    }
    return held | {name: mark(valkey, name) for name in ("ip:203.0.113.9", "ip:198.51.100.1", "user:99")}


def content_of(held: dict[str, Any]) -> dict[str, Any]:
    """What was dumped, without its versions."""
    body = json.loads(held["snapshot"][b"body"])
    return held | {"snapshot": body | {"version": ""}}


def test_a_row_when_raw_sql_spoils_it_is_left_out_alone(
    valkey: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """C136: the others go on, with one error in the log, however often it is published and read."""
    Rule.objects.create(name="good", rate="5/s")
    Rule.objects.create(name="bad", rate="5/s")
    execute("UPDATE ratelimit_app_rule SET rate = 'garbage' WHERE name = 'bad'")
    execute(
        "INSERT INTO ratelimit_app_blacklistentry (kind, value, reason, source, created_at, level, evidence) "
        "VALUES ('ip', 'no address', '', 'manual', '2026-01-01 00:00:00', 0, '')"
    )
    BlacklistEntry.objects.create(kind="ip", value="203.0.113.9")
    for _ in range(3):
        publishing.sync()
        snapshot_cache.refresh()
    snapshot = snapshot_cache.known()
    assert snapshot is not None
    assert ["good"] == [rule.name for rule in snapshot.rules]
    assert 0 == mark(valkey, "ip:203.0.113.9")
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert 1 == len([text for text in errors if "bad" in text])
    assert 1 == len([text for text in errors if "blacklist entry" in text])


def test_a_group_when_raw_sql_makes_it_disagree_goes_on_with_its_first_rule(
    valkey: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """C136: the rule that differs is left out with one error in the log; reserves reach every process."""
    for name, reserve in (("browse", None), ("pay", 4), ("ship", 2)):
        Rule.objects.create(name=name, rate="9/s", group="shop", reserve=reserve)
    execute("UPDATE ratelimit_app_rule SET rate = '9/m' WHERE name = 'ship'")
    for _ in range(2):
        publishing.sync()
        snapshot_cache.refresh()
    snapshot = snapshot_cache.known()
    assert snapshot is not None
    assert {"browse": 4, "pay": 0} == {rule.name: rule.held for rule in snapshot.rules}
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert 1 == len([text for text in errors if "'ship' cannot share" in text])


@pytest.mark.skipif(connection.vendor != "sqlite", reason="others refuse such values themselves")
def test_a_row_when_it_cannot_even_be_read_is_left_out_alone(valkey: Any) -> None:
    """C136: SQLite lets any bytes into any column."""
    Rule.objects.bulk_create([Rule(name=name, rate="5/s") for name in ("good", "time", "blob")])
    execute("UPDATE ratelimit_app_rule SET starts_at = '2026-13-45 99:00:00' WHERE name = 'time'")
    execute("UPDATE ratelimit_app_rule SET description = x'00ff', scope = x'00ff' WHERE name = 'blob'")
    publishing.sync()
    assert ["good"] == [rule["name"] for rule in body(valkey)["rules"]]


def test_a_row_when_raw_sql_left_it_in_another_form_is_mended(valkey: Any) -> None:
    """C26, C100: host bits are cut off and a secret is digested at the next sync."""
    for kind, value in (("ip", "192.0.2.121/24"), ("header:x-key", "hunter2-hunter2")):
        execute(
            "INSERT INTO ratelimit_app_blacklistentry (kind, value, reason, source, created_at, level, evidence) "
            "VALUES (%s, %s, '', 'manual', '2026-01-01 00:00:00', 0, '')",
            kind,
            value,
        )
    assert 2 == publishing.sync(check=True).missing
    publishing.sync()
    assert b"192.0.2.0/24" in valkey.hgetall(conf.keys.networks)
    assert not any(b"hunter2" in key for key in list(valkey.keys()))
    assert not BlacklistEntry.objects.filter(value__contains="hunter2").exists()
    assert not publishing.sync(check=True).has_drifted


def test_the_sync_when_redis_is_away_says_so(settings: Any) -> None:
    """Whoever asks for a sync is told that it could not be done."""
    settings.CACHES = DEAD
    with pytest.raises(StoreUnavailable):
        publishing.sync()


def test_publishing_when_one_reply_is_slow_tries_once_more(
    valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One lost reply does not cost an edit the time until the sync."""
    failures = [StoreUnavailable("slow")]
    put = ledger.put_snapshot

    def put_slowly(*args: Any) -> bool:
        if failures:
            raise failures.pop()
        return put(*args)

    monkeypatch.setattr(ledger, "put_snapshot", put_slowly)
    Rule.objects.create(name="a", rate="5/s")
    assert ["a"] == [rule["name"] for rule in body(valkey)["rules"]]


def test_snapshot_published_when_a_version_is_new_is_sent_once(valkey: Any) -> None:
    """The signal tells of new versions, not of every look."""
    versions: list[str] = []

    def note(version: str, **_: Any) -> None:
        versions.append(version)

    snapshot_published.connect(note)
    rule = Rule.objects.create(name="a", rate="5/s")
    rule.save()
    publishing.sync()
    snapshot_published.disconnect(note)
    assert [":".join(map(str, version(valkey)))] == versions


def test_missing_content_when_asked_for_by_many_is_published_once(valkey: Any) -> None:
    """FLUSHDB: one process publishes everything from the database; who comes later finds it there."""
    make_everything()
    valkey.flushall()
    assert ledger.claim(60_000)
    publishing.publish_missing()
    assert not valkey.exists(conf.keys.snapshot)
    ledger.release()
    publishing.publish_missing()
    before = version(valkey)
    assert not publishing.sync(check=True).has_drifted
    publishing.publish_missing()
    assert before == version(valkey)


def test_missing_content_when_redis_is_away_raises_nothing(settings: Any) -> None:
    """The thread that publishes what is missing outlives an outage."""
    settings.CACHES = DEAD
    publishing.publish_missing()


def test_a_publisher_when_it_works_keeps_the_others_out() -> None:
    """The row is locked from before the first read until after the last write."""
    order: list[str] = []
    inside, may_end = threading.Event(), threading.Event()

    def first() -> None:
        with publisher.locked():
            inside.set()
            may_end.wait(5)
            order.append("first")
        connections.close_all()

    def second() -> None:
        with publisher.locked():
            order.append("second")
        connections.close_all()

    one = threading.Thread(target=first)
    one.start()
    inside.wait(5)
    two = threading.Thread(target=second)
    two.start()
    two.join(0.2)
    may_end.set()
    one.join()
    two.join()
    assert ["first", "second"] == order


def test_the_page_of_rules_when_published_knows_it(valkey: Any, settings: Any) -> None:
    """The admin's column: in Redis as it is, not there, or unknown."""
    rule, off = (Rule.objects.create(name=mode, rate="5/s", mode=mode) for mode in ("enforce", "off"))
    assert [True, True] == publishing.rules_published([rule, off])
    execute("UPDATE ratelimit_app_rule SET rate = '6/s', mode = 'shadow'")
    assert [False, False] == publishing.rules_published(list(Rule.objects.all()))
    valkey.flushall()
    assert [False] == publishing.rules_published([rule])
    settings.CACHES = DEAD
    assert [None] == publishing.rules_published([rule])


def test_the_page_of_entries_when_published_knows_it(valkey: Any, settings: Any) -> None:
    """The admin's column for bans: enforced for at least as long, not, or unknown."""
    now = timezone.now()
    mine = BlacklistEntry.objects.create(kind="user", value="1", expires_at=now + timedelta(hours=1))
    ended = BlacklistEntry.objects.create(kind="user", value="2", expires_at=now)
    assert [True, True] == publishing.entries_published([mine, ended])
    mine.expires_at = None
    assert [False] == publishing.entries_published([mine])
    settings.CACHES = DEAD
    assert [None] == publishing.entries_published([mine])


def test_publishing_when_the_transaction_is_open_sees_what_it_wrote(valkey: Any) -> None:
    """Called by hand inside a transaction, it publishes what the database says there."""
    with transaction.atomic():
        Rule.objects.create(name="a", rate="5/s")
        assert not valkey.exists(conf.keys.snapshot)
        publishing.publish()
        assert ["a"] == [rule["name"] for rule in body(valkey)["rules"]]


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.parametrize("way", ["an instance that was not loaded", "a deferred one", "bulk_create over it"])
def test_a_ban_that_moves_to_another_identity_leaves_the_first(way: str, valkey: Any) -> None:
    """C95, C96: whoever the row banned before is free on commit, however the row is written over."""
    row = BlacklistEntry.objects.create(kind="user", value="1")
    assert valkey.exists("rl:1:{user:1}!mark")
    if way == "an instance that was not loaded":
        BlacklistEntry(pk=row.pk, kind="user", value="2").save()
    elif way == "a deferred one":
        deferred = BlacklistEntry.objects.only("reason").get()
        deferred.value = "2"
        deferred.save()
    else:
        moved = BlacklistEntry(pk=row.pk, kind="user", value="2")
        BlacklistEntry.objects.bulk_create([moved], **upsert("id", update="value"))
    assert (0, 1) == (valkey.exists("rl:1:{user:1}!mark"), valkey.exists("rl:1:{user:2}!mark"))


def test_the_sync_when_several_rows_ban_one_identity_takes_the_longest_wherever_a_page_ends(
    valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are read some at a time: those of one identity together, and each identity is counted once."""
    now = timezone.now()
    policies = [PromotionPolicy.objects.create(name=f"p{number}") for number in range(3)]
    for value in ("1", "2", "3"):
        for number, policy in enumerate(policies, 1):
            end = now + timedelta(hours=number)
            BlacklistEntry.objects.create(
                kind="user", value=value, source="promoted", policy=policy, expires_at=end
            )
        BlacklistEntry.objects.create(kind="user", value=value)
    for size in (1, 2, 3, 4, 5, 100):
        monkeypatch.setattr(ledger, "CHUNK", size)
        assert (3, False) == (publishing.sync().bans, publishing.sync().has_drifted)
        ledger.put_marks({f"user:{value}": to_us(now + timedelta(hours=3)) for value in "123"})
        assert 3 == publishing.sync().wrong
        assert [0, 0, 0] == [mark(valkey, f"user:{value}") for value in "123"]


def test_the_sync_when_as_many_are_stale_as_are_missing_finds_both(valkey: Any) -> None:
    """Equal numbers are no equal lists."""
    for number in range(3):
        BlacklistEntry.objects.create(kind="user", value=str(number))
    ledger.put_marks({"user:0": None, "user:9": 0})
    found = publishing.sync(check=True)
    assert (1, 1) == (found.missing, found.stale)
    publishing.sync()
    assert [0, None] == [mark(valkey, "user:0"), mark(valkey, "user:9")]


def test_the_sync_when_bans_have_ended_takes_them_out_of_the_index_beside_strangers(valkey: Any) -> None:
    """What has ended by itself is no drift, leaves the index, and hides nobody who is banned in Redis alone."""
    past = to_us(timezone.now() - timedelta(seconds=5))
    BlacklistEntry.objects.create(kind="user", value="1")
    valkey.hset(conf.keys.marks, mapping={"user:7": past, "user:8": past})
    valkey.hset(conf.keys.networks, "198.51.100.0/24", past)
    found = publishing.sync()
    assert (0, 1) == (found.stale, found.bans)
    assert (1, 0) == (valkey.hlen(conf.keys.marks), valkey.hlen(conf.keys.networks))
    valkey.hset(conf.keys.marks, mapping={"user:7": past, "user:9": 0})
    valkey.set(conf.keys.mark("user:9"), 0)
    assert 1 == publishing.sync().stale
    assert [b"user:1"] == valkey.hkeys(conf.keys.marks)


def test_the_sync_when_nobody_is_a_stranger_looks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million bans that are as they should be are gone through once, not twice."""
    BlacklistEntry.objects.create(kind="user", value="1")
    BlacklistEntry.objects.create(kind="ip", value="198.51.100.0/24")

    def refuse() -> None:
        raise AssertionError

    monkeypatch.setattr(ledger, "noted", refuse)
    assert not publishing.sync().has_drifted


def test_the_kinds_of_marks_when_published_are_those_that_ban(valkey: Any) -> None:
    """Each kind is found by the index; one whose bans have ended, or that has networks alone, costs no look."""
    past = timezone.now() - timedelta(hours=1)
    for kind, value, end in (
        ("user", "1", None), ("user", "2", past), ("session", "s", past), ("header:x-key", "k", None),
        ("ip", "198.51.100.0/24", None), ("ip", "192.0.2.1", past),
    ):  # fmt: skip
        BlacklistEntry.objects.create(kind=kind, value=value, expires_at=end)
    assert ["header:x-key", "user"] == body(valkey)["kinds"]
    BlacklistEntry.objects.create(kind="ip", value="192.0.2.2")
    assert ["header:x-key", "ip", "user"] == body(valkey)["kinds"]


def statements(captured: CaptureQueriesContext) -> list[str]:
    """Give the reading statements about bans."""
    return [
        query["sql"]
        for query in captured.captured_queries
        if query["sql"].startswith("SELECT") and "ratelimit_app_blacklistentry" in query["sql"]
    ]


def test_an_edit_when_there_may_be_millions_of_bans_looks_at_none_but_its_own() -> None:
    """A look at all bans takes seconds while a million of them are being committed: no edit depends on one."""
    BlacklistEntry.objects.create(kind="user", value="1")
    with CaptureQueriesContext(connection) as captured:
        Rule.objects.create(name="a", rate="5/s")
        AllowlistEntry.objects.create(kind="user", value="7")
    assert [] == statements(captured)
    with CaptureQueriesContext(connection) as captured:
        BlacklistEntry.objects.create(kind="user", value="2")
        BlacklistEntry.objects.create(kind="device", value="d")
    assert statements(captured)
    assert all(re.search(r"""["`]value["`] IN \(|["`]value["`] = """, sql) for sql in statements(captured))


def test_the_kinds_of_marks_when_bans_come_and_go_follow_each_edit(valkey: Any) -> None:
    """A kind is there with its first ban and gone with its last, whoever else edits in between."""
    first = BlacklistEntry.objects.create(kind="user", value="1")
    second = BlacklistEntry.objects.create(kind="user", value="2")
    BlacklistEntry.objects.create(kind="device", value="d")
    Rule.objects.create(name="a", rate="5/s")
    assert ["device", "user"] == body(valkey)["kinds"]
    first.delete()
    assert ["device", "user"] == body(valkey)["kinds"]
    second.delete()
    assert ["device"] == body(valkey)["kinds"]
    BlacklistEntry.objects.update(kind="user", value="3")
    assert ["user"] == body(valkey)["kinds"]


@pytest.mark.parametrize("text", ["{broken", "7", '{"kinds": 7}', '{"kinds": [7]}', "{}"])
def test_the_kinds_of_marks_when_redis_does_not_say_them_are_looked_for(valkey: Any, text: str) -> None:
    """A damaged snapshot is written anew by the next edit, with every kind."""
    BlacklistEntry.objects.create(kind="user", value="1")
    valkey.hset(conf.keys.snapshot, "body", text)
    BlacklistEntry.objects.create(kind="device", value="d")
    assert ["device", "user"] == body(valkey)["kinds"]
