"""The admin: what its users can do, what it refuses, and what it writes into its history."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import redis
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection
from django.urls import reverse
from django.utils import timezone

from ratelimit_app import offences, publishing, snapshot_cache
from ratelimit_app.conf import conf
from ratelimit_app.core.algorithms import ALGORITHMS
from ratelimit_app.models import AllowlistEntry, BlacklistEntry, PromotionPolicy, Rule, to_us

if TYPE_CHECKING:
    from django.test import Client

pytestmark = pytest.mark.django_db(transaction=True)

MODELS: list[Any] = [Rule, BlacklistEntry, AllowlistEntry, PromotionPolicy]
RULE = {
    "name": "a", "description": "", "mode": "enforce", "scope": "", "route": "", "methods": "", "starts_at_0": "",
    "starts_at_1": "", "ends_at_0": "", "ends_at_1": "", "key": "ip", "rate": "5/s", "algorithm": "sliding_window",
    "burst": "", "cost": "1", "on_failure": "", "offence_weight": "1",
}  # fmt: skip
POLICY = {
    "name": "p", "enabled": "on", "kinds": "ip,user", "threshold": "20", "find_period": "60", "block_period": "300",
    "factor": "2", "max_block_period": "86400", "decay_period": "86400", "max_blocks_per_run": "100",
}  # fmt: skip


@pytest.fixture
def staff(client: Client) -> Any:
    """A superuser who is logged in."""
    user = get_user_model().objects.create_superuser("boss", password="x")
    client.force_login(user)
    publishing.sync()
    # The middleware would wait for this process's next look at Redis.
    snapshot_cache.refresh()
    return user


def url(model: Any, page: str, *args: Any) -> str:
    """An admin page of a model."""
    return reverse(f"admin:ratelimit_app_{model._meta.model_name}_{page}", args=args)


def entry(kind: str = "ip", value: str = "198.51.100.9", **fields: str) -> dict[str, str]:
    """What is typed into the form of an entry."""
    return {
        "kind": kind,
        "value": value,
        "reason": "scraping",
        "expires_at_0": "",
        "expires_at_1": "",
    } | fields


def act(client: Client, model: Any, action: str, *rows: Any) -> str:
    """Run an action on some rows; gives the page that follows."""
    data = {"action": action, "_selected_action": [row.pk for row in rows], "post": "yes"}
    response = client.post(url(model, "changelist"), data, follow=True)
    assert 200 == response.status_code
    return response.content.decode()


def history(row: Any) -> list[str]:
    """What the admin's history says of a row."""
    found = LogEntry.objects.filter(object_id=str(row.pk), content_type__model=row._meta.model_name)
    return [log.get_change_message() for log in found.order_by("pk")]


def mark(valkey: Any, identity: str) -> int | None:
    """The mark of an identity in Redis."""
    value = valkey.get(conf.keys.mark(identity))
    return None if value is None else int(value)


def make_one_of_each() -> None:
    """A row of each model."""
    policy = PromotionPolicy.objects.create(name="p")
    policy.rules.add(Rule.objects.create(name="a", rate="5/s"))
    AllowlistEntry.objects.create(kind="user", value="7")
    BlacklistEntry.objects.create(
        kind="ip", value="203.0.113.9", source="promoted", policy=policy, evidence="20 of a"
    )


def test_the_pages_when_opened_use_no_keys_command_and_no_inline_code(
    client: Client, staff: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C104: every page works with a client that raises on KEYS and SCAN, and under a strict content policy."""
    make_one_of_each()

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(args)

    for command in ("keys", "scan", "scan_iter"):
        monkeypatch.setattr(redis.Redis, command, refuse)
    for model in MODELS:
        row = model.objects.get()
        for page in (
            url(model, "changelist"),
            url(model, "add"),
            url(model, "change", row.pk),
            url(model, "history", row.pk),
        ):
            response = client.get(page)
            assert 200 == response.status_code
            text = response.content.decode()
            assert not re.search(
                r"<script(?![^>]*\b(src|type=\"application/json\"))[^>]*>|<style|\sstyle=|\son\w+=", text
            )


def test_the_lists_when_filtered_and_searched_find_their_rows(client: Client, staff: Any) -> None:
    """Filters and search of every list."""
    make_one_of_each()
    policy = PromotionPolicy.objects.get().pk
    queries: dict[Any, list[str]] = {
        Rule: ["mode=enforce", "algorithm=sliding_window", "scope=", "on_failure=", "group=", "q=a"],
        BlacklistEntry: [
            "source__exact=promoted",
            "active=yes",
            "kind=ip",
            f"policy__id__exact={policy}",
            "q=203.0.113",
        ],
        AllowlistEntry: ["source__exact=manual", "active=yes", "q=7", "q=user:7"],
        PromotionPolicy: ["enabled__exact=1", "dry_run__exact=0", "q=p"],
    }
    for model, parts in queries.items():
        for part in parts:
            page = client.get(f"{url(model, 'changelist')}?{part}")
            assert [1] == [len(page.context["cl"].result_list)], (model, part)
    page = client.get(f"{url(BlacklistEntry, 'changelist')}?active=no")
    assert [] == list(page.context["cl"].result_list)


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("203.0.113.9", {"203.0.113.9", "203.0.113.0/24"}), ("::ffff:203.0.113.9", {"203.0.113.9", "203.0.113.0/24"}),
        ("ip:203.0.113.0/24", {"203.0.113.0/24"}), ("2001:DB8:0::1", {"2001:db8::/64"}),
        ("header:x-key:hunter2-hunter2", {"~"}), ("198.51.100.1", set()),
    ],
)  # fmt: skip
def test_the_blacklist_when_searched_for_an_identity_finds_what_bans_it(
    client: Client, staff: Any, typed: str, found: set[str]
) -> None:
    """C15, C26: any spelling finds the entry, an address the networks that hold it, a secret its digest."""
    for value in ("203.0.113.9", "203.0.113.0/24", "2001:db8::/64"):
        BlacklistEntry.objects.create(kind="ip", value=value)
    BlacklistEntry.objects.create(kind="header:x-key", value="hunter2-hunter2")
    page = client.get(url(BlacklistEntry, "changelist"), {"q": typed})
    assert found == {
        row.value[: 1 if row.value[0] == "~" else None] for row in page.context["cl"].result_list
    }


def test_a_rule_when_added_and_edited_in_the_form_is_published(client: Client, staff: Any) -> None:
    """Who did what stands in the history; the page says that Redis has the rule."""
    client.post(url(Rule, "add"), RULE)
    rule = Rule.objects.get()
    client.post(url(Rule, "change", rule.pk), RULE | {"rate": "6/s"})
    assert ["Added.", "Changed Rate."] == history(rule)
    page = client.get(url(Rule, "changelist"))
    assert [True] == [row.is_published for row in page.context["cl"].result_list]
    assert ["6/s"] == [row.rate for row in page.context["cl"].result_list]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rate", "10/month"),
        ("key", "usr"),
        ("route", "a b"),
        ("methods", "FETCH"),
        ("cost", "6"),
        ("name", "a b"),
        ("group", "a b"),
        ("reserve", "2"),
        ("lease", "2"),
    ],
)
def test_a_rule_form_when_wrong_says_so_beside_the_field(
    client: Client, staff: Any, field: str, value: str
) -> None:
    """C28, C135: nothing is saved, and the message holds what was typed."""
    response = client.post(url(Rule, "add"), RULE | {field: value})
    assert 200 == response.status_code
    assert field in response.context["adminform"].form.errors
    assert 0 == Rule.objects.count()


def test_a_rule_form_when_the_rule_shares_a_limit_is_held_to_its_group(client: Client, staff: Any) -> None:
    """What fits is saved; what does not is said beside the field, by form and action."""
    shared = RULE | {"group": "shop", "reserve": "3"}
    client.post(url(Rule, "add"), shared)
    assert ("shop", 3, None) == Rule.objects.values_list("group", "reserve", "lease").get()
    response = client.post(url(Rule, "add"), shared | {"name": "b", "key": "user", "reserve": ""})
    assert "cannot share" in str(response.context["adminform"].form.errors["group"])
    client.post(url(Rule, "add"), shared | {"name": "b", "key": "user", "reserve": "", "mode": "shadow"})
    assert "Nothing was changed: " in act(client, Rule, "enable", *Rule.objects.all())
    assert "shadow" == Rule.objects.get(name="b").mode


def test_the_rule_form_when_opened_offers_every_algorithm_and_explains_shared_limits(
    client: Client, staff: Any
) -> None:
    """Each algorithm that this release has, and words beside what is hard to guess."""
    form = client.get(url(Rule, "add")).context["adminform"].form
    assert set(ALGORITHMS) == {value for value, _ in form.fields["algorithm"].choices if value}
    assert all(form.fields[name].help_text for name in ("group", "reserve", "lease"))


@pytest.mark.parametrize(
    ("action", "mode"), [("enable", "enforce"), ("shadow", "shadow"), ("disable", "off")]
)
def test_an_action_on_rules_when_run_sets_their_mode(
    client: Client, staff: Any, action: str, mode: str
) -> None:
    """C95: actions are bulk writes that publish; the history names each rule that changed, and no other."""
    modes = ["enforce", "shadow", "off"]
    rules = {before: Rule.objects.create(name=before, rate="5/s", mode=before) for before in modes}
    act(client, Rule, action, *rules.values())
    assert {mode} == set(Rule.objects.values_list("mode", flat=True))
    page = client.get(url(Rule, "changelist"))
    assert [True] * 3 == [row.is_published for row in page.context["cl"].result_list]
    for before, rule in rules.items():
        said = [] if before == mode else [f"Mode changed from {before} to {mode} by an action."]
        assert said == history(rule)
    assert {staff.pk} == set(LogEntry.objects.values_list("user", flat=True))


def test_an_action_on_rules_when_one_is_spoilt_changes_nothing_and_says_so(
    client: Client, staff: Any
) -> None:
    """C136: a row that raw SQL has spoilt gives a message, not an error page."""
    from django.db.models.query import QuerySet

    rules = [Rule.objects.create(name=name, rate="5/s") for name in "ab"]
    QuerySet(Rule).filter(name="a").update(rate="garbage")
    text = act(client, Rule, "disable", *rules)
    assert "Nothing was changed" in text
    assert "garbage" in text
    assert {"enforce"} == set(Rule.objects.values_list("mode", flat=True))


def test_a_ban_when_made_in_the_form_says_who_made_it(client: Client, staff: Any, valkey: Any) -> None:
    """created_by and source are set, not typed; the value is normalised; Redis has the mark."""
    client.post(
        url(BlacklistEntry, "add"), entry(value=" ::ffff:198.51.100.9 ", source="promoted", level="9")
    )
    made = BlacklistEntry.objects.get()
    assert ("ip:198.51.100.9", "manual", staff, 0) == (
        made.identity,
        made.source,
        made.created_by,
        made.level,
    )
    assert 0 == mark(valkey, made.identity)
    assert ["Added."] == history(made)


def test_a_ban_when_edited_keeps_its_identity(client: Client, staff: Any, valkey: Any) -> None:
    """C96: end and reason are edited; the identity is not, nor where the entry comes from."""
    ban = BlacklistEntry.objects.create(kind="user", value="42", source="promoted", level=2)
    end = timezone.localtime() - timedelta(minutes=1)
    typed = {"expires_at_0": f"{end:%Y-%m-%d}", "expires_at_1": f"{end:%H:%M:%S}", "reason": "a mistake"}
    response = client.post(url(BlacklistEntry, "change", ban.pk), typed | {"kind": "ip", "value": "1.1.1.1"})
    assert 302 == response.status_code
    ban.refresh_from_db()
    assert ("user:42", "promoted", 2, "a mistake") == (ban.identity, ban.source, ban.level, ban.reason)
    assert mark(valkey, "user:42") is None


@pytest.mark.parametrize("value", ["0.0.0.0/0", "::/0", "64.0.0.0/7", "127.0.0.1", "10.0.0.5"])
def test_a_ban_when_it_would_break_the_site_asks_for_confirmation(
    client: Client, staff: Any, value: str
) -> None:
    """C114: refused unless the box is ticked."""
    response = client.post(url(BlacklistEntry, "add"), entry(value=value))
    (error,) = response.context["adminform"].form.errors["value"]
    assert "is refused" in error
    assert 0 == BlacklistEntry.objects.count()
    client.post(url(BlacklistEntry, "add"), entry(value=value, confirm="on"))
    assert 1 == BlacklistEntry.objects.count()


def test_a_ban_when_it_holds_ones_own_address_asks_for_confirmation(client: Client, staff: Any) -> None:
    """Nobody locks themselves out by a slip, behind a trusted proxy either."""
    meta: dict[str, Any] = {"REMOTE_ADDR": "10.0.0.5", "HTTP_X_FORWARDED_FOR": "198.51.100.9"}
    response = client.post(url(BlacklistEntry, "add"), entry(value="198.51.100.0/24"), **meta)
    assert "your own address, 198.51.100.9" in str(response.context["adminform"].form.errors["value"])
    client.post(url(BlacklistEntry, "add"), entry(value="198.51.101.0/24"), **meta)
    assert 1 == BlacklistEntry.objects.count()


def test_an_allowlist_entry_when_it_holds_nearly_everybody_asks_for_confirmation(
    client: Client, staff: Any
) -> None:
    """An allowlist of the whole internet switches every rule off; a trusted proxy may be allowed."""
    assert 200 == client.post(url(AllowlistEntry, "add"), entry(value="0.0.0.0/0")).status_code
    assert 302 == client.post(url(AllowlistEntry, "add"), entry(value="10.0.0.0/8")).status_code
    assert 302 == client.post(url(AllowlistEntry, "add"), entry(value="0.0.0.0/0", confirm="on")).status_code


@pytest.mark.parametrize(
    ("kind", "value", "field"),
    [
        ("ip", "nowhere", "value"),
        ("global", "all", "kind"),
        ("header", "x", "kind"),
        ("ip", "192.0.2.0/33", "value"),
    ],
)
def test_a_ban_when_it_names_nobody_is_refused(
    client: Client, staff: Any, kind: str, value: str, field: str
) -> None:
    """C100: a message beside the field."""
    response = client.post(url(BlacklistEntry, "add"), entry(kind, value))
    assert [field] == list(response.context["adminform"].form.errors)


def test_a_ban_when_listed_already_is_refused_with_a_way_on(client: Client, staff: Any) -> None:
    """Another spelling of the same identity is the same identity; there is no error page."""
    BlacklistEntry.objects.create(kind="ip", value="198.51.100.9")
    response = client.post(url(BlacklistEntry, "add"), entry(value="::ffff:198.51.100.9"))
    assert "edit or extend that one" in str(response.context["adminform"].form.errors["value"])


def test_a_secret_when_typed_into_the_form_is_never_shown_again(client: Client, staff: Any) -> None:
    """C26: neither the list, nor the entry, nor the history has it."""
    client.post(url(BlacklistEntry, "add"), entry("header:x-key", "hunter2-hunter2"))
    ban = BlacklistEntry.objects.get()
    pages = [
        url(BlacklistEntry, "changelist"),
        url(BlacklistEntry, "change", ban.pk),
        url(BlacklistEntry, "history", ban.pk),
    ]
    assert not any(
        "hunter2" in client.get(page).content.decode() for page in [*pages, reverse("admin:index")]
    )
    assert ban.value in client.get(pages[0]).content.decode()


def test_the_block_action_when_run_bans_for_a_day(client: Client, staff: Any, valkey: Any) -> None:
    """An ended manual row begins anew; a promoted one stays as it is, beside a manual one."""
    ended = timezone.now() - timedelta(days=9)
    manual = BlacklistEntry.objects.create(kind="user", value="1", expires_at=ended)
    promoted = BlacklistEntry.objects.create(
        kind="user", value="2", source="promoted", level=4, expires_at=ended
    )
    act(client, BlacklistEntry, "block", manual, promoted)
    for value in "12":
        made = BlacklistEntry.objects.get(value=value, source="manual")
        assert abs(made.expires_at - timezone.now() - timedelta(days=1)) < timedelta(seconds=10)
        assert (staff, to_us(made.expires_at)) == (made.created_by, mark(valkey, made.identity))
        assert ["Blocked for 24 hours from now by an action."] == history(made)
    promoted.refresh_from_db()
    assert (4, ended) == (promoted.level, promoted.expires_at)


def test_the_extend_action_when_run_lengthens_bans(client: Client, staff: Any, valkey: Any) -> None:
    """A day is added to what is active and ends."""
    end = timezone.now() + timedelta(hours=1)
    ban, endless = (
        BlacklistEntry.objects.create(kind="user", value=v, expires_at=e)
        for v, e in (("1", end), ("2", None))
    )
    act(client, BlacklistEntry, "extend", ban, endless)
    ban.refresh_from_db()
    assert end + timedelta(days=1) == ban.expires_at
    assert to_us(ban.expires_at) == mark(valkey, "user:1")
    assert (["Extended by 24 hours by an action."], []) == (history(ban), history(endless))


def test_the_unblock_action_when_run_lifts_bans_and_forgets_offences(
    client: Client, staff: Any, valkey: Any
) -> None:
    """C96: manual rows go, promoted ones end and keep their level; the history names both."""
    manual = BlacklistEntry.objects.create(kind="user", value="1")
    promoted = BlacklistEntry.objects.create(kind="user", value="2", source="promoted", level=4)
    valkey.hset(conf.keys.offences("user:2"), "1|a", 5)
    logged = str(manual.pk)
    act(client, BlacklistEntry, "unblock", manual, promoted)
    assert (None, None) == (mark(valkey, "user:1"), mark(valkey, "user:2"))
    assert [] == offences.counts("user:2")
    left = BlacklistEntry.objects.get()
    assert (promoted.pk, 4, False) == (left.pk, left.level, left.is_active())
    assert ["Unblocked by an action."] == history(promoted)
    assert LogEntry.objects.filter(object_id=logged, action_flag=3, user=staff).exists()


def test_the_delete_action_when_run_lifts_bans(client: Client, staff: Any, valkey: Any) -> None:
    """C95: the admin's own bulk delete is published like every other."""
    bans = [BlacklistEntry.objects.create(kind="user", value=value) for value in "123"]
    act(client, BlacklistEntry, "delete_selected", *bans[:2])
    assert (None, None, 0) == tuple(mark(valkey, f"user:{n}") for n in "123")
    client.post(url(BlacklistEntry, "delete", bans[2].pk), {"post": "yes"})
    assert mark(valkey, "user:3") is None


def test_the_actions_when_one_may_only_look_are_not_offered(client: Client) -> None:
    """Whoever may view may not block."""
    viewer = get_user_model().objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.set(Permission.objects.filter(codename__startswith="view_"))
    client.force_login(viewer)
    make_one_of_each()
    for model in MODELS:
        page = client.get(url(model, "changelist"))
        assert 200 == page.status_code
        assert "_selected_action" not in page.content.decode()


def test_the_pages_when_redis_is_away_work_and_say_unknown(client: Client, staff: Any, settings: Any) -> None:
    """C120: an outage makes no error page; the column says that it is not known."""
    make_one_of_each()
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/valkey.sock?db=0"}
    settings.CACHES = {"default": cache}
    for model in (Rule, BlacklistEntry):
        page = client.get(url(model, "changelist"))
        assert [None] == [row.is_published for row in page.context["cl"].result_list]
    assert 302 == client.post(url(Rule, "add"), RULE | {"name": "b"}).status_code
    act(client, Rule, "disable", *Rule.objects.all())
    assert {"off"} == set(Rule.objects.values_list("mode", flat=True))


@pytest.mark.parametrize("model", [Rule, BlacklistEntry, AllowlistEntry])
def test_the_pages_when_an_edit_is_not_in_redis_yet_say_so_until_it_is(
    client: Client, staff: Any, settings: Any, model: Any
) -> None:
    """Whoever edits during an outage is told what becomes of it; once Redis has it, nothing is said."""
    live = settings.CACHES
    settings.CACHES = {"default": live["default"] | {"LOCATION": "unix:///nowhere/valkey.sock?db=0"}}
    data = RULE if model is Rule else entry(kind="user", value="77")
    saved = client.post(url(model, "add"), data, follow=True)
    assert "Redis does not answer. Edits are saved" in saved.content.decode()
    row = model.objects.get()
    settings.CACHES = live
    for page in (url(model, "changelist"), url(model, "change", row.pk)):
        assert "Redis does not have the latest edits yet" in client.get(page).content.decode()
    snapshot_cache.restorer.on_missing = publishing.publish_missing
    snapshot_cache.restorer.on_return = publishing.publish_missed
    deadline = time.monotonic() + 20
    while "latest edits" in (text := client.get(url(model, "changelist")).content.decode()):
        assert time.monotonic() < deadline
    assert "Redis does not answer" not in text
    assert not publishing.sync(check=True).has_drifted


def test_the_rules_when_raw_sql_has_changed_one_are_not_in_redis_yet(client: Client, staff: Any) -> None:
    """Also of what no process of ours has seen."""
    make_one_of_each()
    assert "latest edits" not in client.get(url(Rule, "changelist")).content.decode()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE ratelimit_app_rule SET rate = '6/s'")
    assert "latest edits" in client.get(url(Rule, "changelist")).content.decode()
    publishing.sync()
    assert "latest edits" not in client.get(url(Rule, "changelist")).content.decode()


def test_a_policy_when_it_names_kinds_that_clients_choose_is_told_the_risk(
    client: Client, staff: Any
) -> None:
    """The form says what the kinds risk, before and after they are chosen."""
    assert "can have it banned" in client.get(url(PromotionPolicy, "add")).content.decode()
    safe = client.post(url(PromotionPolicy, "add"), POLICY, follow=True)
    assert "This policy may ban" not in safe.content.decode()
    risky = client.post(
        url(PromotionPolicy, "add"), POLICY | {"name": "q", "kinds": "ip,device"}, follow=True
    )
    assert "This policy may ban device" in risky.content.decode()
    refused = client.post(url(PromotionPolicy, "add"), POLICY | {"name": "r", "kinds": "ip,global"})
    assert ["kinds"] == list(refused.context["adminform"].form.errors)


def test_an_automatic_ban_when_looked_at_tells_why(client: Client, staff: Any) -> None:
    """C106: bans are rows with policy and evidence, seen in the admin."""
    make_one_of_each()
    ban = BlacklistEntry.objects.get()
    text = client.get(url(BlacklistEntry, "change", ban.pk)).content.decode()
    assert "20 of a" in text
    assert "203.0.113.9" in client.get(url(BlacklistEntry, "changelist")).content.decode()


def test_every_model_when_registered_is_in_the_admin() -> None:
    """All four, and not the publishers' row."""
    ours = {model.__name__ for model in admin.site._registry if model._meta.app_label == "ratelimit_app"}
    assert {model.__name__ for model in MODELS} == ours
