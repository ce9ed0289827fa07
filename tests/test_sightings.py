"""Sightings: how many addresses were seen, and how many signed-in users behind each, counted beside the requests."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.test import AsyncClient, Client, RequestFactory
from rest_framework.authtoken.models import Token

from ratelimit_app import sightings, visitors
from ratelimit_app.models import BlacklistEntry
from ratelimit_app.promotion import promote_repeat_offenders
from ratelimit_app.signals import alert_raised
from tests.offending import make_policy, make_rule, offend

OFFICE, HOME = "ip:203.0.113.9", "ip:203.0.113.10"


def see(address: str, *users: int) -> None:
    """Note that users are signed in at an address."""
    for user in users:
        sightings.note(address, f"user:{user}")
    sightings.flush()


def test_addresses_when_seen_are_counted_once(valkey: Any) -> None:
    """However often they come, and by however many processes."""
    for _ in range(3):
        for number in range(200):
            sightings.note(f"ip:198.51.100.{number}", None)
    sightings.flush()
    assert 195 <= sightings.active() <= 205
    sightings.forget()
    sightings.note("ip:198.51.100.7", None)
    sightings.flush()
    assert 195 <= sightings.active() <= 205


def test_users_when_many_sign_in_at_one_address_are_counted(valkey: Any) -> None:
    """One user makes no key: only an address with two is worth one."""
    see(HOME, 1, 1, 1)
    see(OFFICE, *range(10), *range(10))
    assert {OFFICE: 10, HOME: 0} == sightings.users_at([OFFICE, HOME])
    keys = list(valkey.scan_iter())
    assert 1 == sum(b"!users" in key for key in keys)
    assert all(0 < valkey.ttl(key) <= 7_200 for key in keys)


def test_sightings_when_the_hour_is_over_are_those_of_this_hour_and_the_last(
    valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crowd of yesterday shields nobody today."""
    see(OFFICE, *range(10))
    hour = sightings._hour()
    monkeypatch.setattr(sightings, "_hour", lambda: hour + 1)
    assert (1, 10) == (sightings.active(), sightings.users_at([OFFICE])[OFFICE])
    see(OFFICE, 10)
    assert sightings.users_at([OFFICE])[OFFICE] == 11
    see(OFFICE, 11, 12)
    assert sightings.users_at([OFFICE])[OFFICE] == 13
    monkeypatch.setattr(sightings, "_hour", lambda: hour + 3)
    assert (0, 0) == (sightings.active(), sightings.users_at([OFFICE])[OFFICE])


def test_sightings_when_redis_is_away_raise_nothing(settings: Any) -> None:
    """A request never notices, and neither does the thread."""
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/v.sock?db=0"}
    settings.CACHES = {"default": cache}
    see(OFFICE, 1, 2, 3)


def test_a_process_when_it_has_seen_a_flood_forgets_and_tells_again(
    valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it remembers is bounded."""
    monkeypatch.setattr(sightings, "MAX_KNOWN", 10)
    for number in range(50):
        sightings.note(f"ip:198.51.100.{number}", f"user:{number}")
    sightings.flush()
    sightings.flush()
    assert 0 == len(sightings._sightings._addresses)
    assert 45 <= sightings.active() <= 55


@pytest.mark.django_db(transaction=True)
def test_a_request_when_its_user_is_known_is_noted_without_a_query(
    client: Client, rules: Any, django_assert_num_queries: Any
) -> None:
    """The middleware notes whom somebody has asked for; it asks for nobody."""
    rules(marked_kinds=frozenset())
    user = User.objects.create(username="u")
    client.force_login(user)
    with django_assert_num_queries(0):
        client.get("/plain/", REMOTE_ADDR="203.0.113.9")
    assert {OFFICE} == sightings._sightings._addresses
    assert {} == sightings._sightings._users
    request = RequestFactory().get("/")
    assert visitors.known_user_of(request) is None
    request.user = user
    assert str(user.pk) == visitors.known_user_of(request)
    for odd in (None, "somebody", 7, {}, object(), AnonymousUser()):
        request.user = odd  # type: ignore[assignment]
        assert visitors.known_user_of(request) is None


@pytest.mark.django_db(transaction=True)
def test_a_user_when_authenticated_by_a_token_is_noted(client: Client, rules: Any) -> None:
    """Whom DRF has authenticated is known when the answer leaves."""
    rules()
    token = Token.objects.create(user=User.objects.create(username="u"))
    client.get("/api/", REMOTE_ADDR="203.0.113.9", headers={"Authorization": f"Token {token.key}"})
    assert {OFFICE: f"user:{token.user_id}"} == sightings._sightings._users


async def test_a_request_when_async_is_noted_too(rules: Any) -> None:
    """The same in async code, and for who is turned away."""
    rules({"rate": "0/s"})
    assert 429 == (await AsyncClient().get("/plain/")).status_code
    assert {"ip:127.0.0.1"} == sightings._sightings._addresses


@pytest.mark.django_db(transaction=True)
def test_an_address_when_many_users_share_it_is_not_banned(valkey: Any) -> None:
    """The office stays, its offending user goes, and somebody is told, once a day."""
    alerts: list[dict[str, Any]] = []

    def hear(**said: Any) -> None:
        alerts.append(said)

    alert_raised.connect(hear)
    make_rule()
    make_policy(max_users=5)
    see(OFFICE, *range(5))
    see(HOME, 1, 2)
    for identity in (OFFICE, HOME, "user:3"):
        offend(identity)
    report = promote_repeat_offenders()
    assert {HOME, "user:3"} == {one.identity for one in report.promoted}
    assert [(OFFICE, "shared_address")] == [(one.identity, one.reason) for one in report.skipped]
    promote_repeat_offenders()
    assert ["shared_address"] == [alert["kind"] for alert in alerts]
    assert OFFICE in alerts[0]["message"]


@pytest.mark.django_db(transaction=True)
def test_an_address_when_nobody_is_spared_for_its_users_is_banned(valkey: Any) -> None:
    """A policy without the guard."""
    make_rule()
    make_policy(max_users=None)
    see(OFFICE, *range(50))
    offend(OFFICE)
    assert [OFFICE] == [one.identity for one in promote_repeat_offenders().promoted]


@pytest.mark.django_db(transaction=True)
def test_bans_when_they_would_be_too_large_a_share_stop(valkey: Any) -> None:
    """A rule that is wrong bans a part of the visitors and no more, over all runs of an hour."""
    alerts: list[dict[str, Any]] = []

    def hear(**said: Any) -> None:
        alerts.append(said)

    alert_raised.connect(hear)
    make_rule()
    make_policy(max_share=0.1)
    for number in range(60):
        sightings.note(f"ip:198.51.100.{number}", None)
    sightings.flush()
    seen = sightings.active()
    for number in range(30):
        offend(f"ip:198.51.100.{number}")
    report = promote_repeat_offenders()
    most = int(seen * 0.1)
    assert most == len(report.promoted) == BlacklistEntry.objects.count()
    assert [30 - most] == [capped.left for capped in report.capped]
    assert "max_share" in report.capped[0].message
    assert ["promotion_capped"] == [alert["kind"] for alert in alerts]
    assert () == promote_repeat_offenders().promoted
    BlacklistEntry.objects.all().delete()
    assert most == len(promote_repeat_offenders().promoted)


@pytest.mark.django_db(transaction=True)
def test_a_share_when_nobody_was_seen_caps_nothing(valkey: Any) -> None:
    """Without the middleware nobody counts visitors: max_blocks_per_run holds alone."""
    make_rule()
    make_policy(max_share=0.1)
    offend(HOME)
    assert 1 == len(promote_repeat_offenders().promoted)


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_share", 0), ("max_share", 1.5), ("max_share", -1), ("max_users", 1), ("max_users", 0)],
)
@pytest.mark.django_db(transaction=True)
def test_a_guard_when_it_makes_no_sense_is_refused_in_the_admin(
    admin_client: Client, field: str, value: float
) -> None:
    """The form says what was expected, beside the field or above."""
    data = {
        "name": "p", "kinds": "ip", "threshold": 3, "find_period": 60, "block_period": 60, "factor": 2,
        "max_block_period": 600, "decay_period": 600, "max_blocks_per_run": 10, "max_users": 100, field: value,
    }  # fmt: skip
    answer = admin_client.post("/admin/ratelimit_app/promotionpolicy/add/", data)
    assert answer.status_code == 200
    assert field in str(answer.context["errors"])
