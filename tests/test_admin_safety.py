"""What the admin asks before it lists somebody, and what it says when a ban does not do what it seems to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth import get_user_model
from django.urls import reverse
from django.utils import timezone

from ratelimit_app import lists, offences, publishing, snapshot_cache
from ratelimit_app.conf import conf
from ratelimit_app.models import AllowlistEntry, BlacklistEntry, to_us

if TYPE_CHECKING:
    from django.test import Client

pytestmark = pytest.mark.django_db(transaction=True)

OWN = "198.51.100.9"
BEHIND: dict[str, Any] = {"REMOTE_ADDR": "10.0.0.5", "HTTP_X_FORWARDED_FOR": f"192.0.2.66, {OWN}"}
DANGEROUS = [
    "0.0.0.0/0",
    "::/0",
    "64.0.0.0/7",
    "127.0.0.1",
    "::1",
    "10.0.0.5",
    "10.0.0.0/9",
    "198.51.100.0/24",
    OWN,
]


@pytest.fixture
def staff(client: Client) -> Any:
    """A superuser who is logged in, and comes through a trusted proxy."""
    user = get_user_model().objects.create_superuser("boss", password="x")
    client.force_login(user)
    client.defaults.update(BEHIND)
    publishing.sync()
    snapshot_cache.refresh()
    return user


def url(model: Any, page: str, *args: Any) -> str:
    """An admin page of a model."""
    return reverse(f"admin:ratelimit_app_{model._meta.model_name}_{page}", args=args)


def typed(end: datetime | None = None, **fields: str) -> dict[str, str]:
    """What is typed into the form of an entry, in the zone of whoever types."""
    local = timezone.localtime(end) if end else None
    date, clock = (f"{local:%Y-%m-%d}", f"{local:%H:%M:%S}") if local else ("", "")
    return {"reason": "scraping", "expires_at_0": date, "expires_at_1": clock} | fields


def errors(response: Any) -> str:
    """What a form says is wrong; nothing when it was saved."""
    return "" if response.status_code == 302 else str(response.context["adminform"].form.errors)


def act(client: Client, action: str, *rows: Any) -> str:
    """Run an action on some bans; gives the page that follows."""
    data = {"action": action, "_selected_action": [row.pk for row in rows], "post": "yes"}
    return told(client.post(url(BlacklistEntry, "changelist"), data, follow=True))


def told(response: Any) -> str:
    """The messages of a page."""
    return "\n".join(map(str, response.context["messages"]))


def in_hours(hours: float) -> datetime:
    """A time from now, in whole seconds, as a form takes it."""
    return timezone.now().replace(microsecond=0) + timedelta(hours=hours)


def cookie_of(client: Client) -> str:
    """The session's cookie of whoever is logged in."""
    return client.cookies["sessionid"].value


@pytest.mark.parametrize("kind", ["user", "session", "cookie:sessionid", "header:x-probe", "device"])
def test_a_ban_when_it_names_oneself_in_any_way_asks_for_confirmation(
    client: Client, staff: Any, kind: str
) -> None:
    """C114: one's own account, session, cookie, header or device; somebody else's is blocked without a question."""
    own = {"user": str(staff.pk), "header:x-probe": "mine", "device": "mine"}.get(kind) or cookie_of(client)
    headers: dict[str, Any] = {"HTTP_X_PROBE": "mine", "HTTP_X_DEVICE_ID": "mine"}
    add = url(BlacklistEntry, "add")
    assert f"your own {kind}" in errors(client.post(add, typed(kind=kind, value=own), **headers))
    assert 0 == BlacklistEntry.objects.count()
    assert not errors(client.post(add, typed(kind=kind, value="somebody-else"), **headers))
    publishing.sync()
    assert not errors(client.post(add, typed(kind=kind, value=own, confirm="on"), **headers))
    assert 2 == BlacklistEntry.objects.count()


def test_a_ban_when_its_kind_is_a_field_is_not_taken_for_oneself(client: Client, staff: Any) -> None:
    """What is typed into the form is nobody's identity."""
    add = url(BlacklistEntry, "add")
    assert not errors(client.post(add, typed(kind="field:reason", value="scraping")))
    assert not errors(client.post(f"{add}?a=b", typed(kind="param:a", value="b")))


@pytest.mark.parametrize("value", DANGEROUS)
def test_a_dangerous_ban_when_edited_to_last_longer_asks_again(
    client: Client, staff: Any, value: str
) -> None:
    """C114: a confirmation holds for what was confirmed; shorter, or another reason, is no danger."""
    row = BlacklistEntry.objects.create(kind="ip", value=value, expires_at=timezone.now() - timedelta(days=1))
    publishing.sync()
    page = url(BlacklistEntry, "change", row.pk)
    assert "confirm" in client.get(page).content.decode()
    for end in (in_hours(1), None):
        assert "is refused" in errors(client.post(page, typed(end)))
    assert not errors(client.post(page, typed(row.expires_at, reason="other")))
    row.refresh_from_db()
    assert ("other", False) == (row.reason, row.is_active())


@pytest.mark.parametrize("value", ["64.0.0.0/7", "127.0.0.1", "10.0.0.5"])
def test_a_dangerous_ban_when_active_may_be_shortened_and_kept_without_a_tick(
    client: Client, staff: Any, value: str
) -> None:
    """C114: only what makes it worse is asked about; with the tick, it is done."""
    row = BlacklistEntry.objects.create(kind="ip", value=value, expires_at=in_hours(9))
    page = url(BlacklistEntry, "change", row.pk)
    assert not errors(client.post(page, typed(row.expires_at)))
    assert not errors(client.post(page, typed(in_hours(3))))
    assert "is refused" in errors(client.post(page, typed(in_hours(5))))
    assert "is refused" in errors(client.post(page, typed()))
    assert not errors(client.post(page, typed(confirm="on")))
    row.refresh_from_db()
    assert row.expires_at is None


def test_a_ban_when_harmless_has_no_box_to_tick(client: Client, staff: Any) -> None:
    """A question that is always asked is answered without reading."""
    row = BlacklistEntry.objects.create(kind="ip", value="203.0.113.7", expires_at=in_hours(1))
    page = url(BlacklistEntry, "change", row.pk)
    assert 'name="confirm"' not in client.get(page).content.decode()
    assert not errors(client.post(page, typed()))


@pytest.mark.parametrize("action", ["block", "extend"])
@pytest.mark.parametrize("value", DANGEROUS)
def test_an_action_when_it_would_lengthen_a_dangerous_ban_leaves_it_and_says_so(
    client: Client, staff: Any, action: str, value: str
) -> None:
    """C114: an action has no box: it does what is harmless, and names the rest with the way to do it."""
    ends = timezone.now() + timedelta(seconds=30)
    # The allowlist lets the admin in, who would have been turned away.
    AllowlistEntry.objects.create(kind="user", value=str(staff.pk))
    bad, good = (
        BlacklistEntry.objects.create(kind="ip", value=v, source="imported", expires_at=ends)
        for v in (value, "203.0.113.7")
    )
    snapshot_cache.refresh()
    text = act(client, action, bad, good)
    assert f"The ban of {bad.identity} is left as it is: " in text
    assert f"1 entries {action}ed" in text
    bad.refresh_from_db()
    assert (ends, 1) == (bad.expires_at, BlacklistEntry.objects.filter(value=value).count())
    longest = BlacklistEntry.objects.filter(value="203.0.113.7").order_by("-expires_at")[0].expires_at
    assert longest > ends + timedelta(hours=23)


def test_an_action_when_it_would_block_oneself_leaves_it(client: Client, staff: Any) -> None:
    """C114: one's own account too."""
    row = BlacklistEntry.objects.create(kind="user", value=str(staff.pk), expires_at=timezone.now())
    assert "your own user" in act(client, "block", row)
    assert 1 == BlacklistEntry.objects.count()


@pytest.mark.parametrize("value", ["0.0.0.0/0", "::/0", "64.0.0.0/7", "2000::/16"])
def test_an_allowlist_entry_when_wide_asks_for_confirmation_also_when_it_is_edited(
    client: Client, staff: Any, value: str
) -> None:
    """An entry that has ended is as dangerous as a new one when it begins again."""
    row = AllowlistEntry.objects.create(kind="ip", value=value, expires_at=in_hours(-1))
    page = url(AllowlistEntry, "change", row.pk)
    assert "wider than" in errors(client.post(page, typed()))
    assert not errors(client.post(page, typed(in_hours(-2))))
    assert not errors(client.post(page, typed(confirm="on")))


@pytest.mark.parametrize("model", [BlacklistEntry, AllowlistEntry])
def test_an_entry_when_its_end_has_passed_is_not_made(client: Client, staff: Any, model: Any) -> None:
    """A ban that never was would look like one: the form says what time it has understood."""
    add = url(model, "add")
    assert "has passed" in errors(client.post(add, typed(in_hours(-1), kind="ip", value="203.0.113.7")))
    assert not errors(client.post(add, typed(in_hours(1), kind="ip", value="203.0.113.7")))


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata", "Pacific/Auckland"])
def test_an_end_when_typed_is_in_the_zone_of_the_site(
    client: Client, staff: Any, settings: Any, valkey: Any, zone: str
) -> None:
    """C112: what is typed, what is stored and what Redis ends by are one instant, in every zone."""
    settings.TIME_ZONE = zone
    end = in_hours(1)
    assert not errors(client.post(url(BlacklistEntry, "add"), typed(end, kind="ip", value="203.0.113.7")))
    row = BlacklistEntry.objects.get()
    assert end == row.expires_at.astimezone(UTC)
    assert str(to_us(end)).encode() == valkey.get(conf.keys.mark(row.identity))
    before = typed(in_hours(-0.1), kind="ip", value="203.0.113.8")
    assert "has passed" in errors(client.post(url(BlacklistEntry, "add"), before))


def test_a_ban_when_edited_to_an_end_that_has_passed_ends_and_says_so(
    client: Client, staff: Any, valkey: Any
) -> None:
    """C96: that is how a ban is ended by its form; nobody takes it for a ban that goes on."""
    row = BlacklistEntry.objects.create(kind="ip", value="203.0.113.7")
    response = client.post(url(BlacklistEntry, "change", row.pk), typed(in_hours(-1)), follow=True)
    assert "has ended, and counts no more" in told(response)
    assert valkey.get(conf.keys.mark(row.identity)) is None


@pytest.mark.parametrize("way", ["action", "delete", "delete_selected", "edit"])
def test_an_address_when_let_in_out_of_a_banned_network_is_told_of(
    client: Client, staff: Any, way: str
) -> None:
    """C96: the admin names what still bans: the networks, and another entry of the same identity."""
    for network in ("203.0.113.0/24", "203.0.112.0/23"):
        BlacklistEntry.objects.create(kind="ip", value=network)
    BlacklistEntry.objects.create(kind="ip", value="203.0.0.0/16", expires_at=timezone.now())
    row = BlacklistEntry.objects.create(kind="ip", value="203.0.113.7")
    BlacklistEntry.objects.create(kind="ip", value="203.0.113.7", source="imported")
    if way in ("action", "delete_selected"):
        text = act(client, "unblock" if way == "action" else way, row)
    else:
        data = {"post": "yes"} if way == "delete" else typed(in_hours(-1))
        page = url(BlacklistEntry, "delete" if way == "delete" else "change", row.pk)
        text = told(client.post(page, data, follow=True))
    for network in ("203.0.113.0/24", "203.0.112.0/23"):
        assert f"Still blocked: ip:203.0.113.7, by ip:{network}. Unblock that network too." in text
    assert "203.0.0.0/16" not in text
    assert ("by another entry of its own" in text) is (way != "action")


def test_the_unblock_action_when_run_on_one_entry_lifts_every_ban_of_the_identity(
    client: Client, staff: Any, valkey: Any
) -> None:
    """C96: it is the identity that is unblocked: by hand, imported and promoted together; others stay."""
    rows = [
        BlacklistEntry.objects.create(kind="user", value="42", source=source, level=2)
        for source in ("manual", "imported", "promoted")
    ]
    other = BlacklistEntry.objects.create(kind="device", value="42")
    valkey.hset(conf.keys.offences("user:42"), "1|a", 5)
    text = act(client, "unblock", rows[1])
    assert "3 entries unblocked" in text
    assert (None, b"0") == (valkey.get(conf.keys.mark("user:42")), valkey.get(conf.keys.mark("device:42")))
    assert {rows[2].pk, other.pk} == set(BlacklistEntry.objects.values_list("pk", flat=True))
    assert [] == offences.counts("user:42")


def test_a_ban_when_the_allowlist_makes_it_void_says_so(client: Client, staff: Any) -> None:
    """C102: nobody wonders why a ban does nothing."""
    AllowlistEntry.objects.create(kind="ip", value="203.0.113.0/24")
    AllowlistEntry.objects.create(kind="ip", value="203.0.0.0/16", expires_at=timezone.now())
    data = typed(kind="ip", value="203.0.113.7")
    text = told(client.post(url(BlacklistEntry, "add"), data, follow=True))
    assert "The ban of ip:203.0.113.7 is void: ip:203.0.113.0/24 is on the allowlist" in text
    assert "203.0.0.0/16 is on" not in text


def test_a_row_when_raw_sql_has_spoilt_it_can_be_looked_at_and_deleted(client: Client, staff: Any) -> None:
    """C136: what is no identity is nobody's danger, and no error page."""
    from django.db.models.query import QuerySet

    for model in (BlacklistEntry, AllowlistEntry):
        row = model.objects.create(kind="ip", value="203.0.113.7")
        QuerySet(model).filter(pk=row.pk).update(value="garbage")
        assert 200 == client.get(url(model, "change", row.pk)).status_code
        assert 302 == client.post(url(model, "delete", row.pk), {"post": "yes"}).status_code
    assert 0 == BlacklistEntry.objects.count()


@pytest.mark.parametrize(
    ("value", "networks"),
    [
        ("203.0.113.7", ["203.0.113.6/31", "203.0.113.0/24", "0.0.0.0/0"]),
        ("203.0.113.0/24", ["203.0.112.0/23", "0.0.0.0/0"]),
        ("2001:db8::1", ["2001:db8::/127", "2001:db8::/64", "::/0"]),
    ],
)
def test_networks_when_they_hold_an_address_are_all_found(value: str, networks: list[str]) -> None:
    """Of every width, by one indexed query; neighbours and what has ended are left out."""
    for network in (*networks, "203.0.113.128/25", "2001:db8:1::/64", "203.0.114.0/24"):
        BlacklistEntry.objects.create(kind="ip", value=network)
    BlacklistEntry.objects.create(kind="ip", value="203.0.0.0/16", expires_at=timezone.now())
    assert sorted(f"ip:{network}" for network in networks) == lists.covering("ip", value)
    assert [] == lists.covering("user", "42")
