"""An edit, by whatever way, reaches every process of the site within `REFRESH_INTERVAL` + 1 seconds."""

from __future__ import annotations

import time
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from ratelimit_app import aunblock, block, offences, publishing, snapshot_cache, unblock
from ratelimit_app.conf import conf
from ratelimit_app.models import BlacklistEntry, PromotionPolicy, Rule
from tests.integration.watchers import STARTING, Watcher, expect

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.django_db(transaction=True)

ADDRESS, NETWORK = "ip:203.0.113.9", "ip:198.51.100.0/24"


def in_the_admin(page: str, *args: Any, **data: Any) -> None:
    """Post a form of the admin."""
    client = Client()
    staff, _ = get_user_model().objects.get_or_create(username="boss", is_staff=True, is_superuser=True)
    client.force_login(staff)
    snapshot_cache.refresh()
    assert 302 == client.post(reverse(f"admin:ratelimit_app_{page}", args=args), data).status_code


def execute(sql: str, *values: Any) -> None:
    """Write past the ORM."""
    with connection.cursor() as cursor:
        cursor.execute(sql, values)


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


def by_function(entry: BlacklistEntry) -> None:
    """By `unblock`."""
    assert unblock(entry.identity)


def by_async_function(entry: BlacklistEntry) -> None:
    """By `aunblock`."""
    assert async_to_sync(aunblock)(entry.identity)


def by_command(entry: BlacklistEntry) -> None:
    """From the shell."""
    call_command("ratelimit_unblock", entry.identity, stdout=StringIO())


def by_action(entry: BlacklistEntry) -> None:
    """By the list's action."""
    in_the_admin("blacklistentry_changelist", action="unblock", _selected_action=[entry.pk])


def by_delete_action(entry: BlacklistEntry) -> None:
    """By the admin's own bulk delete."""
    in_the_admin(
        "blacklistentry_changelist", action="delete_selected", _selected_action=[entry.pk], post="yes"
    )


def by_delete_page(entry: BlacklistEntry) -> None:
    """By the page that deletes."""
    in_the_admin("blacklistentry_delete", entry.pk, post="yes")


def by_form(entry: BlacklistEntry) -> None:
    """By an end that has passed."""
    in_the_admin("blacklistentry_change", entry.pk, expires_at_0="2020-01-01", expires_at_1="00:00:00")


def by_delete(entry: BlacklistEntry) -> None:
    """By an instance."""
    entry.delete()


def by_queryset_delete(entry: BlacklistEntry) -> None:
    """By a queryset."""
    BlacklistEntry.objects.filter(pk=entry.pk).delete()


def by_update(entry: BlacklistEntry) -> None:
    """By an end that is now."""
    BlacklistEntry.objects.filter(pk=entry.pk).update(expires_at=timezone.now())


def by_save(entry: BlacklistEntry) -> None:
    """By an instance that ends."""
    entry.expires_at = timezone.now()
    entry.save()


def by_bulk_update(entry: BlacklistEntry) -> None:
    """By many instances that end."""
    entry.expires_at = timezone.now()
    BlacklistEntry.objects.bulk_update([entry], ["expires_at"])


def by_another_identity(entry: BlacklistEntry) -> None:
    """By a row that bans somebody else from now on."""
    entry.kind, entry.value = "user", f"was-{entry.pk}"
    entry.save()


def by_update_to_another(entry: BlacklistEntry) -> None:
    """The same, by a queryset."""
    BlacklistEntry.objects.filter(pk=entry.pk).update(kind="user", value=f"is-{entry.pk}")


def by_sync(entry: BlacklistEntry) -> None:
    """Past the ORM, which the periodic sync repairs."""
    execute("DELETE FROM ratelimit_app_blacklistentry WHERE id = %s", entry.pk)
    publishing.sync()


def by_function_where_several_ban(entry: BlacklistEntry) -> None:
    """By hand, imported and promoted at once."""
    for source in ("imported", "promoted"):
        BlacklistEntry.objects.create(kind=entry.kind, value=entry.value, source=source)
    assert 3 == unblock(entry.identity)


WAYS = (
    by_function, by_async_function, by_command, by_action, by_delete_action, by_delete_page, by_form, by_delete,
    by_queryset_delete, by_update, by_save, by_bulk_update, by_another_identity, by_update_to_another, by_sync,
    by_function_where_several_ban,
)  # fmt: skip
MANY = [f"203.0.113.{100 + number}" for number in range(len(WAYS) + 1)]


@pytest.mark.parametrize("watchers", [MANY], indirect=True)
def test_a_ban_when_lifted_in_any_way_is_forgotten_by_two_other_processes_and_not_made_again(
    watchers: list[Watcher],
) -> None:
    """C96: the mark, the offences and what each process remembers: the next promotion finds nothing to ban."""
    PromotionPolicy.objects.create(name="p", threshold=5)
    entries = [BlacklistEntry.objects.create(kind="ip", value=address) for address in MANY]
    # The one of the last stays, to show that the promotion would have banned the others.
    lifted, last = MANY[:-1], MANY[-1]
    expect(watchers, dict.fromkeys(MANY, 403), within=STARTING)
    offences.record((f"ip:{address}", "a") for address in MANY for _ in range(9))
    offences.flush()
    for way, entry in zip(WAYS, entries, strict=False):
        way(entry)
    expect(watchers, dict.fromkeys(lifted, 200) | {last: 403}, within=STARTING)
    call_command("ratelimit_promote", stdout=StringIO())
    promoted = BlacklistEntry.objects.active().filter(source="promoted")
    assert [last] == list(promoted.values_list("value", flat=True))
