"""Every way of writing reaches Redis when, and only when, its transaction commits; on any database alias."""

from __future__ import annotations

import json
import time
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connections, transaction
from django.db.migrations.executor import MigrationExecutor
from django.test import TestCase
from django_redis import get_redis_connection

from ratelimit_app import offences, publishing, snapshot_cache
from ratelimit_app.conf import conf
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.models import AllowlistEntry, BlacklistEntry, PromotionPolicy, Publication, Rule
from ratelimit_app.publishing import ledger
from ratelimit_app.signals import identity_blocked, identity_unblocked, rows_changed
from tests.databases import upsert

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

FIXTURE = [
    {"model": "ratelimit_app.rule", "fields": {"name": "a", "rate": "2/s"}},
    {"model": "ratelimit_app.allowlistentry", "fields": {"kind": "ip", "value": "192.0.2.9/24"}},
    {"model": "ratelimit_app.blacklistentry", "fields": {"kind": "header:x-key", "value": "hunter2-hunter2"}},
]
DEAD = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": "unix:///nowhere/valkey.sock?db=0",
    }
}


def rates(valkey: Any) -> dict[str, str]:
    """Name and rate of each rule in Redis."""
    body = json.loads(valkey.hget(conf.keys.snapshot, "body") or b'{"rules": []}')
    return {rule["name"]: rule["rate"] for rule in body["rules"]}


def bans(valkey: Any) -> set[str]:
    """All identities that Redis bans: marks that the index knows, and networks."""
    marked = {identity.decode() for identity in valkey.hgetall(conf.keys.marks)}
    assert all(valkey.exists(conf.keys.mark(identity)) for identity in marked)
    return marked | {f"ip:{network.decode()}" for network in valkey.hgetall(conf.keys.networks)}


def rule(name: str = "a", rate: str = "1/s") -> Rule:
    """A rule that is not saved yet."""
    return Rule(name=name, rate=rate)


def by_save(alias: str) -> None:
    """Save a new row and an old one."""
    made = rule()
    made.save(using=alias)
    made.rate = "2/s"
    made.save()


def by_create(alias: str) -> None:
    """Through the manager."""
    Rule.objects.using(alias).create(name="a", rate="2/s")


def by_update(alias: str) -> None:
    """Through a queryset."""
    rule().save(using=alias)
    Rule.objects.using(alias).filter(name="a").update(rate="2/s")


def by_bulk_create(alias: str) -> None:
    """Many at once."""
    Rule.objects.using(alias).bulk_create([rule(rate="2/s")])


def by_upsert(alias: str) -> None:
    """Many at once, over what there is."""
    rule().save(using=alias)
    Rule.objects.using(alias).bulk_create([rule(rate="2/s")], **upsert("name", update="rate", alias=alias))


def by_bulk_update(alias: str) -> None:
    """Many objects at once."""
    rule().save(using=alias)
    made = Rule.objects.using(alias).get()
    made.rate = "2/s"
    Rule.objects.using(alias).bulk_update([made], ["rate"])


def by_get_or_create(alias: str) -> None:
    """Only when it is missing."""
    Rule.objects.using(alias).get_or_create(name="a", defaults={"rate": "2/s"})


def by_update_or_create(alias: str) -> None:
    """Whether it is missing or not."""
    rule().save(using=alias)
    Rule.objects.using(alias).update_or_create(name="a", defaults={"rate": "2/s"})


def by_related_manager(alias: str) -> None:
    """Through a policy's rules."""
    rule().save(using=alias)
    policy = PromotionPolicy.objects.using(alias).create(name="p")
    policy.rules.set(Rule.objects.using(alias).all())
    policy.rules.all().update(rate="2/s")


def by_deserialising(alias: str) -> None:
    """As loaddata does."""
    from django.core import serializers

    for row in serializers.deserialize("python", FIXTURE[:1]):
        row.save(using=alias)


def by_historical_models(alias: str) -> None:
    """As a data migration does."""
    old = MigrationExecutor(connections[alias]).loader.project_state().apps.get_model("ratelimit_app", "Rule")
    assert old is not Rule
    old(name="a", rate="1/s").save(using=alias)
    old.objects.using(alias).filter(name="a").update(rate="2/s")


WAYS = [value for name, value in sorted(globals().items()) if name.startswith("by_")]


@pytest.mark.parametrize("alias", ["default", "other"])
@pytest.mark.parametrize("write", WAYS)
def test_a_write_by_whatever_way_when_committed_reaches_redis(
    valkey: Any, write: Callable[[str], None], alias: str
) -> None:
    """C95: on any alias, without a sync."""
    write(alias)
    assert {"a": "2/s"} == rates(valkey)
    assert not publishing.sync(check=True).has_drifted


@pytest.mark.parametrize("alias", ["default", "other"])
@pytest.mark.parametrize("write", WAYS)
def test_a_write_by_whatever_way_when_rolled_back_leaves_redis_untouched(
    valkey: Any, write: Callable[[str], None], alias: str
) -> None:
    """C98: nothing is published before the commit, nor without one."""
    with transaction.atomic(using=alias):
        write(alias)
        assert [] == valkey.keys()
        transaction.set_rollback(True, using=alias)
    assert [] == valkey.keys()


def delete_instance(alias: str) -> None:
    """One row."""
    for model in (Rule, BlacklistEntry):
        for row in model.objects.using(alias).all():
            row.delete()


def delete_queryset(alias: str) -> None:
    """All rows of a queryset."""
    Rule.objects.using(alias).all().delete()
    BlacklistEntry.objects.using(alias).filter(kind="ip").delete()


def delete_historical(alias: str) -> None:
    """As a data migration does."""
    state = MigrationExecutor(connections[alias]).loader.project_state().apps
    state.get_model("ratelimit_app", "Rule").objects.using(alias).get().delete()
    state.get_model("ratelimit_app", "BlacklistEntry").objects.using(alias).all().delete()


@pytest.mark.parametrize("alias", ["default", "other"])
@pytest.mark.parametrize("delete", [delete_instance, delete_queryset, delete_historical])
def test_a_delete_by_whatever_way_when_committed_reaches_redis(
    valkey: Any, delete: Callable[[str], None], alias: str
) -> None:
    """C95: rules leave the snapshot; marks and networks are lifted."""
    rule().save(using=alias)
    for value in ("203.0.113.9", "203.0.113.0/24"):
        BlacklistEntry.objects.using(alias).create(kind="ip", value=value)
    assert {"ip:203.0.113.9", "ip:203.0.113.0/24"} == bans(valkey)
    delete(alias)
    assert ({}, set()) == (rates(valkey), bans(valkey))


def end_by_save(entry: BlacklistEntry) -> None:
    """The row ends."""
    from django.utils import timezone

    entry.expires_at = timezone.now()
    entry.save()


def end_by_update(entry: BlacklistEntry) -> None:
    """The row ends, by a queryset."""
    from django.utils import timezone

    BlacklistEntry.objects.filter(pk=entry.pk).update(expires_at=timezone.now())


def move_by_save(entry: BlacklistEntry) -> None:
    """The row is somebody else's now."""
    again = BlacklistEntry.objects.get(pk=entry.pk)
    again.value = "2"
    again.save()


def move_by_update(entry: BlacklistEntry) -> None:
    """The row is somebody else's now, by a queryset."""
    BlacklistEntry.objects.update(value="2")


def move_by_bulk_update(entry: BlacklistEntry) -> None:
    """The row is somebody else's now, by many objects at once."""
    again = BlacklistEntry.objects.get(pk=entry.pk)
    again.value = "2"
    BlacklistEntry.objects.bulk_update([again], ["value"])


@pytest.mark.parametrize(
    "change", [end_by_save, end_by_update, move_by_save, move_by_update, move_by_bulk_update]
)
def test_a_ban_when_its_row_changes_is_lifted_or_moved(
    valkey: Any, change: Callable[[BlacklistEntry], None]
) -> None:
    """C96: the identity that the row no longer names may pass, the one that it names may not."""
    change(BlacklistEntry.objects.create(kind="user", value="1"))
    assert ({"user:2"} if change.__name__.startswith("move") else set()) == bans(valkey)


def test_a_user_when_deleted_leaves_their_entries_in_force(valkey: Any) -> None:
    """A cascade that only forgets who listed an identity lifts no ban."""
    staff = get_user_model().objects.create(username="staff")
    BlacklistEntry.objects.create(kind="user", value="1", created_by=staff)
    staff.delete()
    assert BlacklistEntry.objects.get().created_by is None
    assert {"user:1"} == bans(valkey)


def test_a_policy_when_deleted_leaves_its_bans_in_force(valkey: Any) -> None:
    """The ladder's rows outlive their policy until they end."""
    policy = PromotionPolicy.objects.create(name="p", find_period=7_200)
    BlacklistEntry.objects.create(kind="user", value="1", source="promoted", policy=policy)
    policy.delete()
    assert {"user:1"} == bans(valkey)
    assert 3_600 == json.loads(valkey.hget(conf.keys.snapshot, "body"))["offence_ttl"]


def test_the_rules_of_a_policy_when_changed_are_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy's m2m is a write like any other, from both of its ends."""
    policy = PromotionPolicy.objects.create(name="p")
    one = Rule.objects.create(name="a", rate="1/s")
    calls: list[str] = []
    monkeypatch.setattr(publishing, "publish", lambda *_, using: calls.append(using))
    policy.rules.add(one)
    one.policies.clear()
    policy.rules.set([one])
    policy.rules.remove(one)
    assert ["default"] * 4 == calls


@pytest.mark.parametrize("alias", ["default", "other"])
def test_loaddata_when_it_loads_rows_normalises_and_publishes_them(
    valkey: Any, tmp_path: Any, alias: str
) -> None:
    """C26, C95, C100: a fixture's rows are raw saves; their secrets and host bits go the same way."""
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(FIXTURE))
    call_command("loaddata", str(path), database=alias, stdout=StringIO())
    assert {"a": "2/s"} == rates(valkey)
    assert "192.0.2.0/24" == AllowlistEntry.objects.using(alias).get().value
    entry = BlacklistEntry.objects.using(alias).get()
    assert entry.value.startswith("~")
    assert {entry.identity} == bans(valkey)


def test_a_migrate_when_it_ends_publishes_everything(valkey: Any) -> None:
    """A data migration that wrote by raw SQL is published when migrate ends."""
    Rule.objects.create(name="a", rate="1/s")
    with connections["default"].cursor() as cursor:
        cursor.execute("UPDATE ratelimit_app_rule SET rate = '2/s'")
    valkey.flushall()
    call_command("migrate", "ratelimit_app", verbosity=0)
    assert {"a": "2/s"} == rates(valkey)


def test_a_migrate_of_another_alias_when_it_has_no_rows_is_none_of_ours(valkey: Any) -> None:
    """Only databases that were ever written are read."""
    call_command("migrate", "ratelimit_app", verbosity=0, database="other")
    assert all(row.aliases == [] for row in Publication.objects.all())
    assert [] == valkey.keys()


def test_rows_of_two_aliases_when_published_stand_together(valkey: Any) -> None:
    """The snapshot is of all databases that were ever written; the router's wins where names meet."""
    Rule.objects.create(name="a", rate="1/s")
    Rule.objects.using("other").create(name="b", rate="2/s")
    Rule.objects.using("other").create(name="a", rate="3/s")
    BlacklistEntry.objects.using("other").create(kind="user", value="1")
    assert {"a": "1/s", "b": "2/s"} == rates(valkey)
    valkey.flushall()
    publishing.sync()
    assert {"a": "1/s", "b": "2/s"} == rates(valkey)
    assert {"user:1"} == bans(valkey)
    assert ["other"] == Publication.objects.get().aliases


def test_a_transaction_when_it_writes_often_is_published_once(
    valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rows a transaction writes, in however many savepoints: one publication on commit."""
    calls: list[Any] = []
    publish = publishing.publish

    def note(*args: Any, **kwargs: Any) -> str:
        calls.append(args)
        return publish(*args, **kwargs)

    monkeypatch.setattr(publishing, "publish", note)
    with transaction.atomic():
        for n in range(5):
            with transaction.atomic():
                Rule.objects.create(name=f"r{n}", rate="1/s")
                BlacklistEntry.objects.create(kind="user", value=str(n))
    assert [({f"user:{n}" for n in range(5)},)] == calls
    assert 5 == len(rates(valkey)) == len(bans(valkey))


def test_a_savepoint_when_rolled_back_is_not_published(valkey: Any) -> None:
    """C98: what the outer transaction keeps is published, what it gave up is not."""
    with transaction.atomic():
        Rule.objects.create(name="kept", rate="1/s")
        with transaction.atomic():
            Rule.objects.create(name="lost", rate="1/s")
            BlacklistEntry.objects.create(kind="user", value="1")
            transaction.set_rollback(True)
    assert {"kept": "1/s"} == rates(valkey)
    assert set() == bans(valkey)


def test_a_save_when_redis_is_away_succeeds_is_told_once_and_published_on_its_return(
    valkey: Any, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """C120: the admin's user sees no error; the log has one line for each outage; nobody has to do anything."""
    snapshot_cache.restorer.on_missing = publishing.publish_missing
    snapshot_cache.restorer.on_return = publishing.publish_missed
    live = settings.CACHES
    for outage in ("one", "two"):
        settings.CACHES = DEAD
        for n in range(3):
            Rule.objects.create(name=f"r{outage}{n}", rate="1/s")
        BlacklistEntry.objects.create(kind="user", value=outage)
        Rule.objects.using("other").create(name=f"other{outage}", rate="1/s")
        known = valkey.exists(conf.keys.mark(f"user:{outage}"))
        settings.CACHES = live
        assert (0, True) == (known, snapshot_cache.restorer.has_unpublished)
        _wait_for(lambda: not snapshot_cache.restorer.has_unpublished)
        failures = [record for record in caplog.records if "publish_failed" in record.getMessage()]
        assert [outage] == [outage for record in failures if record.levelname == "ERROR"]
        caplog.clear()
        assert not publishing.sync(check=True).has_drifted
    assert 8 == len(rates(valkey))
    assert {"user:one", "user:two"} == bans(valkey)


def test_a_refill_when_it_fails_half_way_is_finished_by_the_next_refresh(
    valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An emptied Redis that has its rules again, and not its bans, is still owed them."""
    Rule.objects.create(name="a", rate="1/s")
    BlacklistEntry.objects.create(kind="user", value="1")
    valkey.flushall()
    put, failures = ledger.put_marks, [StoreUnavailable("one reply was late")]

    def put_marks(ends: Any) -> None:
        if failures:
            raise failures.pop()
        put(ends)

    monkeypatch.setattr(ledger, "put_marks", put_marks)
    snapshot_cache.restorer.on_missing = publishing.publish_missing
    snapshot_cache.restorer.on_return = publishing.publish_missed
    _wait_for(lambda: snapshot_cache.refresh() is not None)
    _wait_for(lambda: bans(valkey) == {"user:1"} and not snapshot_cache.restorer.is_owing)
    assert not failures


def _wait_for(holds: Callable[[], bool]) -> None:
    """Wait for what the refresh beside the requests does."""
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_write_when_transactions_are_manual_is_left_to_the_sync(
    valkey: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody tells when such a transaction commits: the write itself must not fail for that."""
    transaction.set_autocommit(False)
    try:
        Rule.objects.update(rate="2/s")
        Rule.objects.create(name="a", rate="1/s")
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert "publish_late" in caplog.text
    publishing.sync()
    assert {"a": "1/s"} == rates(valkey)


def test_an_unblock_when_committed_forgets_the_offences(valkey: Any) -> None:
    """C96: the next denial is not a ban again; a ban that another row keeps in force forgets nothing."""
    first = BlacklistEntry.objects.create(kind="user", value="1")
    second = BlacklistEntry.objects.create(kind="user", value="1", source="imported")
    valkey.hset(conf.keys.offences("user:1"), "1|a", 5)
    first.delete()
    assert [(1, "a", 5)] == offences.counts("user:1")
    second.delete()
    assert [] == offences.counts("user:1")


def test_bans_when_they_begin_and_end_are_told_on_commit() -> None:
    """identity_blocked and identity_unblocked, once each, whatever way was taken."""
    told: list[tuple[str, str]] = []

    def on_blocked(identity: str, entry: BlacklistEntry, **_: Any) -> None:
        told.append(("blocked", identity))
        assert entry.identity == identity

    def on_unblocked(identity: str, **_: Any) -> None:
        told.append(("unblocked", identity))

    identity_blocked.connect(on_blocked)
    identity_unblocked.connect(on_unblocked)
    with transaction.atomic():
        entry = BlacklistEntry.objects.create(kind="user", value="1")
        assert [] == told
    entry.save()
    BlacklistEntry.objects.create(kind="user", value="2", source="promoted")
    entry.delete()
    identity_blocked.disconnect(on_blocked)
    identity_unblocked.disconnect(on_unblocked)
    assert [("blocked", "user:1"), ("unblocked", "user:1")] == told


def test_a_change_of_unknown_rows_when_committed_compares_everything(valkey: Any) -> None:
    """A write of very many rows is not listed row by row."""
    BlacklistEntry.objects.create(kind="user", value="1")
    valkey.flushall()
    rows_changed.send(sender=BlacklistEntry, using="default", identities=None)
    assert {"user:1"} == bans(valkey)


def test_other_models_when_deleted_keep_their_fast_path() -> None:
    """Nothing listens to every model of the project: that would slow all its deletes."""
    from django.db.models.signals import m2m_changed, post_delete, pre_delete

    user = get_user_model()
    found = [
        receiver
        for signal in (pre_delete, post_delete)
        for live in signal._live_receivers(user)
        for receiver in live
    ]
    assert not [receiver for receiver in found if receiver.__module__.startswith("ratelimit_app")]
    assert not m2m_changed.has_listeners(user.groups.through)


class PublishingInTestCase(TestCase):
    """A project's own tests, in which nothing commits."""

    databases = {"default", "other"}

    def test_a_write_in_a_testcase_when_commits_are_captured_is_published(self) -> None:
        """captureOnCommitCallbacks publishes what the block wrote, time and again, and nothing is before it."""
        valkey = get_redis_connection()
        Rule.objects.create(name="before", rate="1/s")
        assert {} == rates(valkey)
        for n in range(2):
            with self.captureOnCommitCallbacks(execute=True):
                Rule.objects.create(name=f"r{n}", rate="1/s")
                BlacklistEntry.objects.create(kind="user", value=str(n))
            assert {"before", *(f"r{k}" for k in range(n + 1))} == set(rates(valkey))
            assert {f"user:{k}" for k in range(n + 1)} == bans(valkey)

    def test_a_write_of_another_alias_in_a_testcase_when_captured_is_published(self) -> None:
        """The second alias's commits are captured by its name."""
        valkey = get_redis_connection()
        with self.captureOnCommitCallbacks(using="other", execute=True):
            Rule.objects.using("other").bulk_create([rule(rate="2/s")])
        assert {"a": "2/s"} == rates(valkey)
