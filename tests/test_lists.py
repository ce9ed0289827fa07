"""Blocking and unblocking in code."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.db import connections, transaction
from django.db.models.query import QuerySet
from django.utils import timezone

import ratelimit_app
from ratelimit_app import ablock, aunblock, block, lists, offences, snapshot_cache, unblock
from ratelimit_app.conf import conf
from ratelimit_app.core.addresses import parse_address
from ratelimit_app.models import AllowlistEntry, BlacklistEntry, to_us

pytestmark = pytest.mark.django_db(transaction=True)


def mark(valkey: Any, identity: str) -> int | None:
    """The mark of an identity in Redis."""
    value = valkey.get(conf.keys.mark(identity))
    return None if value is None else int(value)


def test_block_when_called_makes_a_manual_entry_in_force(valkey: Any) -> None:
    """The entry says who, why, how long and by whom; Redis has it when the call returns."""
    staff = get_user_model().objects.create(username="staff")
    before = timezone.now()
    entry = block("user:42", reason="scraping", period=90, created_by=staff)
    assert ("user", "42", "scraping", "manual", staff) == (
        entry.kind, entry.value, entry.reason, entry.source, entry.created_by,
    )  # fmt: skip
    assert entry.expires_at is not None
    assert timedelta(0) <= entry.expires_at - before - timedelta(seconds=90) < timedelta(seconds=5)
    assert to_us(entry.expires_at) == mark(valkey, "user:42")


def test_block_when_there_is_an_entry_extends_it_and_never_shortens(valkey: Any) -> None:
    """C111: a ban for ever stays one; the longer of two ends counts."""
    first = block("user:42", reason="one", period=60)
    longer = block("user:42", reason="two", period=3_600)
    shorter = block("user:42", reason="three", period=60)
    assert first.pk == longer.pk == shorter.pk
    assert longer.expires_at == shorter.expires_at != first.expires_at
    assert block("user:42", reason="four").expires_at is None
    assert block("user:42", reason="five", period=60).expires_at is None
    assert ("five", 1) == (BlacklistEntry.objects.get().reason, BlacklistEntry.objects.count())
    assert 0 == mark(valkey, "user:42")


def test_block_when_the_entry_has_ended_begins_anew(valkey: Any) -> None:
    """An ended ban does not lengthen the next one."""
    entry = block("user:42", reason="one", period=60)
    BlacklistEntry.objects.update(expires_at=timezone.now() - timedelta(days=1))
    assert mark(valkey, "user:42") is None
    assert block("user:42", reason="two", period=60).pk == entry.pk
    assert mark(valkey, "user:42")


def test_block_when_promoted_too_leaves_the_promoted_entry_alone(valkey: Any) -> None:
    """A ban by hand is a row of its own; the longer of both is in force."""
    promoted = BlacklistEntry.objects.create(
        kind="user", value="42", source="promoted", level=3, expires_at=timezone.now() + timedelta(hours=9)
    )
    block("user:42", reason="by hand", period=60)
    assert to_us(promoted.expires_at) == mark(valkey, "user:42")
    promoted.refresh_from_db()
    assert (3, "promoted") == (promoted.level, promoted.source)


def test_an_identity_when_on_both_lists_passes(client: Any) -> None:
    """C102: the allowlist wins, at once, over a ban that is in force already; an ended entry allows nothing."""
    block("ip:203.0.113.9", reason="")
    block("ip:203.0.113.0/24", reason="")

    def status() -> int:
        snapshot_cache.refresh()
        code: int = client.get("/plain/", REMOTE_ADDR="203.0.113.9").status_code
        return code

    assert 403 == status()
    allowed = AllowlistEntry.objects.create(kind="ip", value="203.0.113.9")
    assert 200 == status()
    AllowlistEntry.objects.update(expires_at=timezone.now())
    assert 403 == status()
    AllowlistEntry.objects.update(expires_at=None)
    assert 200 == status()
    allowed.delete()
    assert 403 == status()


@pytest.mark.parametrize(
    ("typed", "identity"),
    [
        ("ip:203.0.113.9", "ip:203.0.113.9"), ("ip:203.0.113.77/24", "ip:203.0.113.0/24"),
        ("ip:2001:DB8::1/64", "ip:2001:db8::/64"), ("ip:::ffff:203.0.113.9", "ip:203.0.113.9"),
        ("user:42", "user:42"), ("device:ab12", "device:ab12"), ("device:a:b", "device:a:b"),
    ],
)  # fmt: skip
def test_block_when_given_an_identity_writes_it_in_its_one_form(typed: str, identity: str) -> None:
    """C100: what is typed and what is looked up are the same text."""
    assert identity == block(typed, reason="").identity
    assert 1 == unblock(identity)


def test_block_when_the_value_is_secret_keeps_only_its_digest(valkey: Any) -> None:
    """C26: neither the row nor Redis holds the secret; unblocking takes the secret or its digest."""
    entry = block("header:X-Api-Key:hunter2:hunter2", reason="stolen")
    assert entry.identity.startswith("header:x-api-key:~")
    assert not any(b"hunter2" in key for key in list(valkey.keys()))
    assert 1 == unblock(entry.identity)
    block("header:x-api-key:hunter2:hunter2", reason="stolen")
    assert 1 == unblock("header:x-api-key:hunter2:hunter2")


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "203.0.113.9",
        "ip:",
        "ip:nowhere",
        "global:all",
        "header:x-key",
        "user+ip:1",
        "nobody:1",
        "ip:10.0.0.0/99",
    ],
)
def test_block_when_given_no_identity_refuses_with_the_remedy(bad: str) -> None:
    """What cannot be looked up is refused where it is typed."""
    with pytest.raises(ValueError, match="expected"):
        block(bad, reason="")
    with pytest.raises(ValueError, match="expected"):
        unblock(bad)
    assert 0 == BlacklistEntry.objects.count()


@pytest.mark.parametrize("bad", [None, 42, b"user:42"])
def test_block_when_given_no_text_refuses_with_the_remedy(bad: Any) -> None:
    """What is of another type is a ValueError like every other bad identity."""
    for refuse in (lambda: block(bad, reason=""), lambda: unblock(bad)):
        with pytest.raises(ValueError, match=r"is no identity: expected text such as"):
            refuse()


@pytest.mark.parametrize("period", [0, -1, float("nan"), float("inf"), 1e12, "5", True, timedelta(1)])
def test_block_when_the_period_is_none_refuses_it(period: Any) -> None:
    """A period is a time that passes."""
    with pytest.raises(ValueError, match="is not a period"):
        block("user:42", reason="", period=period)


def test_unblock_when_called_lifts_every_ban_of_the_identity(valkey: Any) -> None:
    """C96: manual and imported rows go; the promoted one ends now and keeps its level; offences are forgotten."""
    policyless = {"kind": "user", "value": "42"}
    block("user:42", reason="")
    BlacklistEntry.objects.create(**policyless, source="imported")
    BlacklistEntry.objects.create(**policyless, source="promoted", level=2)
    block("user:43", reason="")
    valkey.hset(conf.keys.offences("user:42"), "1|a", 5)
    assert 3 == unblock("user:42")
    assert mark(valkey, "user:42") is None
    assert 0 == mark(valkey, "user:43")
    assert [] == offences.counts("user:42")
    left = BlacklistEntry.objects.get(value="42")
    assert ("promoted", 2, False) == (left.source, left.level, left.is_active())
    assert 0 == unblock("user:42")


def test_unblock_when_nobody_is_banned_forgets_offences_and_memory_all_the_same(
    valkey: Any, client: Any
) -> None:
    """C96: who is about to be banned is let off; and so is whom only this process still knows to be banned."""
    block("ip:203.0.113.9", reason="")
    snapshot_cache.refresh()
    assert 403 == client.get("/plain/", REMOTE_ADDR="203.0.113.9").status_code
    QuerySet(BlacklistEntry)._raw_delete("default")
    valkey.delete(conf.keys.mark("ip:203.0.113.9"), conf.keys.marks)
    valkey.hset(conf.keys.offences("ip:203.0.113.9"), "1|a", 5)
    assert 403 == client.get("/plain/", REMOTE_ADDR="203.0.113.9").status_code
    assert 0 == unblock("ip:203.0.113.9")
    assert [] == offences.counts("ip:203.0.113.9")
    assert 200 == client.get("/plain/", REMOTE_ADDR="203.0.113.9").status_code


def test_unblock_when_rolled_back_forgets_nothing(valkey: Any) -> None:
    """C98: until the commit the ban stands, and so do the offences."""
    block("user:42", reason="")
    valkey.hset(conf.keys.offences("user:42"), "1|a", 5)
    with transaction.atomic():
        assert 1 == unblock("user:42")
        transaction.set_rollback(True)
    assert (0, [(1, "a", 5)]) == (mark(valkey, "user:42"), offences.counts("user:42"))


def test_unblock_when_redis_is_away_lifts_the_ban_and_raises_nothing(settings: Any, caplog: Any) -> None:
    """C120: the row is gone; what Redis still has is repaired by the sync, and the log says so."""
    block("user:42", reason="")
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/valkey.sock?db=0"}
    settings.CACHES = {"default": cache}
    assert 1 == unblock("user:42")
    assert 0 == BlacklistEntry.objects.count()
    assert "ratelimit.offences_kept" in caplog.text


async def test_the_async_twins_when_awaited_do_the_same(valkey: Any) -> None:
    """ablock and aunblock."""
    entry = await ablock("user:42", reason="scraping", period=60)
    assert to_us(entry.expires_at) == mark(valkey, "user:42")
    assert 1 == await aunblock("user:42")
    assert mark(valkey, "user:42") is None
    # The twins' thread has a connection of its own, which the test database would wait for.
    await sync_to_async(connections.close_all)()


def test_extend_when_called_lengthens_what_is_active() -> None:
    """Endless bans stay endless, ended ones ended."""
    now = timezone.now()
    ends = [None, now - timedelta(hours=1), now + timedelta(hours=1)]
    rows = [
        BlacklistEntry.objects.create(kind="user", value=str(n), expires_at=end) for n, end in enumerate(ends)
    ]
    assert 1 == lists.extend(BlacklistEntry.objects.all(), 3_600)
    for row in rows:
        row.refresh_from_db()
    assert [*ends[:2], now + timedelta(hours=2)] == [row.expires_at for row in rows]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("0.0.0.0/0", "loopback"), ("::/0", "loopback"), ("64.0.0.0/7", "wider"), ("2000::/16", "wider"),
        ("127.0.0.1", "loopback"), ("::1", "loopback"), ("10.1.2.3", "trusted proxy"), ("10.0.0.0/7", "trusted proxy"),
        ("203.0.113.0/24", "your own address"), ("203.0.113.9", "your own address"),
    ],
)  # fmt: skip
def test_a_danger_when_blocking_would_break_the_site_is_named(value: str, reason: str) -> None:
    """C114: too wide, loopback, trusted proxies, oneself."""
    assert reason in (lists.danger("ip", value, parse_address("203.0.113.9")) or "")


@pytest.mark.parametrize(
    ("kind", "value"), [("ip", "198.51.100.0/24"), ("ip", "2001:db8::/32"), ("user", "1")]
)
def test_a_danger_when_there_is_none_is_not_invented(kind: str, value: str) -> None:
    """Ordinary bans need no confirmation."""
    assert lists.danger(kind, value, parse_address("203.0.113.9")) is None


def test_the_package_when_asked_offers_all_four() -> None:
    """The functions users import."""
    assert {"block", "unblock", "ablock", "aunblock"} <= set(ratelimit_app.__all__)
