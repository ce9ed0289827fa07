"""`explain` and `ratelimit_explain`: all that is known of one identity, charging nothing."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.core.management import CommandError, call_command
from django.db import DatabaseError
from django.test import Client, RequestFactory
from django.utils import timezone

from ratelimit_app import acquire, aexplain, block, check, explain, offences, snapshot_cache
from ratelimit_app.explaining import MAX_CHANGES
from ratelimit_app.models import AllowlistEntry, BlacklistEntry, Rule
from ratelimit_app.promotion import promote_repeat_offenders
from tests.offending import make_policy, make_rule, offend

pytestmark = pytest.mark.django_db(transaction=True)

WHO = "ip:203.0.113.9"
DEAD = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/v.sock?db=0"}}


@pytest.fixture
def _published() -> None:
    """Five rules, as processes know them."""
    make_rule("grab", rate="3/m")
    make_rule("both", key="user+ip", rate="5/m")
    make_rule("account", key="user", rate="5/m;50/h")
    make_rule("watched", key="ip", rate="2/m", mode="shadow", algorithm="token_bucket")
    make_rule("later", key="user_or_ip", rate="9/m", starts_at=timezone.now() + timedelta(hours=1))
    Rule.objects.create(name="off", key="ip", rate="1/m", mode="off")
    snapshot_cache.refresh()


def visit(address: str = "203.0.113.9", times: int = 1) -> None:
    """Have an address ask so many times."""
    for _ in range(times):
        check(RequestFactory().get("/", REMOTE_ADDR=address))


def run(*args: str, status: int = 0) -> str:
    """Run the command and give what it printed."""
    out, found = StringIO(), 0
    try:
        call_command("ratelimit_explain", *args, stdout=out)
    except SystemExit as ending:
        found = int(ending.code or 0)
    assert status == found, out.getvalue()
    return out.getvalue()


@pytest.mark.usefixtures("_published")
def test_windows_when_explained_say_what_they_hold_and_when_they_open() -> None:
    """Every rule that counts the address, in whatever way, and nothing is charged by looking."""
    visit(times=4)
    for _ in range(2):
        found = {(row.rule, row.rate): row for row in explain(WHO).windows}
    grab, watched = found["grab", "3/m"], found["watched", "2/m"]
    assert (3, 3, 0, "enforce", "") == (grab.limit, grab.used, grab.remaining, grab.mode, grab.note)
    assert grab.opens_in is not None
    assert 0 < grab.opens_in <= grab.empty_in <= 60
    assert ("shadow", "token_bucket", 2) == (watched.mode, watched.algorithm, watched.used)
    assert "requests without user" == found["account", "5/m"].note
    assert 3 == found["account", "50/h"].used
    assert found["later", "9/m"].note.startswith("asleep")
    assert not any(rule == "off" for rule, _ in found)
    assert ("both (user+ip)",) == explain(WHO).joined


@pytest.mark.usefixtures("_published")
def test_a_joined_identity_when_explained_is_counted_by_the_rules_that_join_it() -> None:
    """`user:7+ip:…` is what a rule by `user+ip` counts, and no other."""
    found = explain("user:7+ip:203.0.113.9")
    assert ["both"] == [row.rule for row in found.windows]
    assert "5/m" == found.windows[0].rate
    assert ["account"] == sorted({row.rule for row in explain("user:7").windows} - {"later"})


@pytest.mark.usefixtures("_published")
def test_an_address_when_written_in_any_way_is_the_client_that_is_counted() -> None:
    """An IPv6 address is its /64, one carried in IPv6 is IPv4; lists look at the address that was typed too."""
    block("ip:2001:db8::5", reason="that one")
    found = explain("ip:2001:DB8::5")
    assert "ip:2001:db8::/64" == found.identity
    assert ["ip:2001:db8::5"] == [row.identity for row in found.listings]
    assert "never" == found.banned_until
    assert WHO == explain("ip:::ffff:203.0.113.9").identity


@pytest.mark.usefixtures("_published")
def test_lists_when_explained_hold_rows_networks_and_what_has_ended() -> None:
    """Who banned it, why and until when; a network that holds it; the allowlist, which beats them."""
    admin = User.objects.create(username="eva")
    block(WHO, reason="scraping", period=3_600, created_by=admin)
    block("ip:203.0.113.0/24", reason="hosting")
    BlacklistEntry.objects.create(
        kind="ip",
        value="203.0.113.9",
        source="imported",
        reason="old",
        expires_at=timezone.now() - timedelta(1),
    )
    AllowlistEntry.objects.create(kind="ip", value="203.0.113.8/29", reason="office")
    snapshot_cache.refresh()
    rows = {(row.of, row.source, row.identity): row for row in explain(WHO).listings}
    manual = rows["blacklist", "manual", WHO]
    assert ("scraping", True, "eva") == (manual.reason, manual.active, manual.created_by)
    assert not rows["blacklist", "imported", WHO].active
    assert rows["blacklist", "manual", "ip:203.0.113.0/24"].reason == "hosting"
    assert rows["allowlist", "manual", "ip:203.0.113.8/29"].reason == "office"
    assert "never" == explain(WHO).banned_until
    assert "never" == explain("ip:203.0.113.0/24").banned_until


def test_what_was_done_in_the_admin_when_explained_outlives_the_entry(admin_client: Client) -> None:
    """Who banned somebody and who lifted it stays known when the row is gone."""
    data = {"kind": "ip", "value": "203.0.113.9", "reason": "scraping"}
    assert admin_client.post("/admin/ratelimit_app/blacklistentry/add/", data).status_code == 302
    entry = BlacklistEntry.objects.get()
    url = f"/admin/ratelimit_app/blacklistentry/{entry.pk}/delete/"
    assert admin_client.post(url, {"post": "yes"}).status_code == 302
    found = explain(WHO)
    assert () == found.listings
    assert ["admin", "admin"] == [change.by for change in found.history]
    assert "Added" in found.history[0].what
    assert "blacklist entry" in found.history[1].what
    assert "in the admin:" in str(found)


def test_what_was_done_in_the_admin_when_it_is_much_ends_with_the_last(admin_user: User) -> None:
    """The latest changes are told, in the order in which they were made; how the story ends is never cut off."""
    of = ContentType.objects.get_for_model(BlacklistEntry)
    LogEntry.objects.bulk_create(
        LogEntry(
            user=admin_user,
            content_type=of,
            object_repr=WHO,
            action_flag=CHANGE,
            change_message=f"no. {number}",
        )
        for number in range(MAX_CHANGES + 5)
    )
    told = [change.what.rpartition(" ")[2] for change in explain(WHO).history]
    assert [str(number) for number in range(5, MAX_CHANGES + 5)] == told


@pytest.mark.usefixtures("_published")
def test_a_promotion_when_explained_has_offences_level_and_evidence() -> None:
    """What it did, how far it has climbed, and the reason that was written down."""
    make_policy()
    offend(WHO, count=5)
    (offence,) = explain(WHO).offences
    assert ("grab", 5) == (offence.rule, offence.count)
    promote_repeat_offenders()
    (row,) = explain(WHO).listings
    assert ("promoted", 1, "repeat", True) == (row.source, row.level, row.policy, row.active)
    assert "grab" in row.evidence
    BlacklistEntry.objects.update(expires_at=timezone.now() - timedelta(seconds=600))
    (row,) = explain(WHO).listings
    assert (0, False) == (row.level, row.active)


@pytest.mark.usefixtures("_published")
def test_this_process_when_it_remembers_says_so(settings: Any) -> None:
    """Denials, boxes and bans that it answers without Redis."""
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "LOCAL_BLOCK_AFTER": 2}
    assert () == explain(WHO).remembered
    visit(times=6)
    found = {(row.what, row.rule): row.seconds for row in explain(WHO).remembered}
    assert {("denied by", "grab"), ("boxed for", "grab")} == set(found)
    assert all(seconds is not None and 0 < seconds <= 300 for seconds in found.values())
    block("user:9", reason="bots")
    snapshot_cache.refresh()
    acquire("user:9", "1/s", group="g")
    assert [("banned", "user:9", None)] == [
        (row.what, row.rule, row.seconds) for row in explain("user:9").remembered
    ]


@pytest.mark.usefixtures("_published")
def test_the_text_when_printed_names_everything() -> None:
    """A person reads it at midnight: every part has a title, and nothing is left to be guessed."""
    visit(times=4)
    offences.flush()
    block(WHO, reason="scraping", period=3_600)
    snapshot_cache.refresh()
    text = run(WHO)
    for words in (
        WHO, "in Redis:\n  banned until", "allowlist:\n  nothing", "scraping", "grab (ip, 3/m, sliding_window): 3 of 3 used",
        "both (user+ip) (asks for the whole of it)", "grab: 1, from", "this process remembers:\n",
    ):  # fmt: skip
        assert words in text
    found = json.loads(run(WHO, "--json"))
    assert found["identity"] == WHO
    assert {row["rule"] for row in found["windows"]} >= {"grab", "account", "watched"}


def test_redis_when_it_is_away_leaves_its_part_unknown(settings: Any) -> None:
    """The database's part is told, the rest is named, and the exit status is 1."""
    block(WHO, reason="scraping")
    settings.CACHES = DEAD
    snapshot_cache.forget()
    found = json.loads(run(WHO, "--json", status=1))
    assert ["scraping"] == [row["reason"] for row in found["listings"]]
    assert len(found["unknown"]) >= 1
    text = run(WHO, status=1)
    assert "not known:\n  Redis" in text
    for title in ("in Redis", "rules", "offences"):
        assert f"\n{title}:\n  not known" in text
    assert "\nallowlist:\n  nothing" in text


@pytest.mark.usefixtures("_published")
@pytest.mark.parametrize(
    "text", ["a\nrules:\n  nothing", "\x1b[2Jgone", "\u202egnihton", "\x9b2J", "a\rb\u2028c"]
)
def test_a_reason_when_it_holds_control_characters_is_told_as_one_line(text: str) -> None:
    """What a feed or a client wrote neither forges a part of the text nor drives a terminal."""
    BlacklistEntry.objects.create(kind="ip", value="203.0.113.9", reason=text)
    (line,) = (line for line in run(WHO).splitlines() if line.startswith(f"  {WHO}"))
    assert line.isprintable()
    assert line.endswith(text.encode("unicode_escape").decode())
    assert text == explain(WHO).listings[0].reason


def test_the_database_when_it_is_away_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit status 1, and why."""

    def refuse(*_: Any) -> Any:
        message = "gone"
        raise DatabaseError(message)

    monkeypatch.setattr("ratelimit_app.explaining.content.aliases", refuse)
    with pytest.raises(CommandError, match="gone") as failure:
        call_command("ratelimit_explain", WHO)
    assert failure.value.returncode == 1


@pytest.mark.parametrize("identity", ["", "ip:nowhere", "ip:1.2.3.4/99"])
def test_what_is_no_identity_when_asked_about_is_misuse(identity: str) -> None:
    """Exit status 2, with what was expected."""
    with pytest.raises(CommandError, match="expected") as failure:
        call_command("ratelimit_explain", identity)
    assert failure.value.returncode == 2


@pytest.mark.parametrize(
    "identity", ["global", "view:shop", "key:x", "device:ab12", "header:x-api-key:s3cret"]
)
def test_any_identity_when_explained_raises_nothing_and_shows_no_secret(
    identity: str, client: Client
) -> None:
    """Identities that no list can hold too; a secret is its digest."""
    found = explain(identity)
    assert found.listings == ()
    assert "s3cret" not in str(found) + json.dumps(found.as_dict())


def test_the_async_twin_when_awaited_says_the_same() -> None:
    """`aexplain` is for async code; the database is asked in the thread that the tests' connection is of."""
    assert WHO == async_to_sync(aexplain)(WHO).identity
