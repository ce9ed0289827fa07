"""From denial to ban: who is promoted, for how long, how often, and who never."""

from __future__ import annotations

import json
import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, connection
from django.test import override_settings

from ratelimit_app import promotion, publishing, snapshot_cache, unblock
from ratelimit_app.conf import conf
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.models import AllowlistEntry, BlacklistEntry, PromotionPolicy
from ratelimit_app.promotion import announcing, banning
from ratelimit_app.signals import alert_raised, identity_blocked
from tests.offending import make_policy, make_rule, offend

pytestmark = pytest.mark.django_db(transaction=True)

WHO = "ip:203.0.113.9"


@pytest.fixture
def now():
    """A whole second near the present, so that bans are active in Redis too."""
    return int(time.time())


@pytest.fixture
def heard():
    """What the signals said: (identity, level) of each ban, kind of each alert."""
    said = []

    def on_blocked(identity, entry, **_):
        said.append((identity, entry.level))

    def on_alert(kind, message, details, **_):
        said.append((kind, details["left"]))

    identity_blocked.connect(on_blocked)
    alert_raised.connect(on_alert)
    yield said
    identity_blocked.disconnect(on_blocked)
    alert_raised.disconnect(on_alert)


def promote(now: float | None = None, **options: Any) -> promotion.PromotionReport:
    """Run the promotion."""
    return promotion.promote_repeat_offenders(now=now, **options)


def mark(valkey: Any, identity: str) -> float | None:
    """Read an identity's mark in Redis: the end of its ban in seconds, 0 for never, None without."""
    end = valkey.get(conf.keys.mark(identity))
    return None if end is None else int(end) / 1_000_000


def names(report: promotion.PromotionReport) -> list[str]:
    """Name those who were promoted, in order."""
    return [item.identity for item in report.promoted]


def test_promote_at_the_threshold_bans_publishes_and_tells(valkey, now, heard):
    """C106: a promotion is a row that says which policy, which rules, how many and when; Redis knows it."""
    make_rule()
    policy = make_policy()
    offend(WHO, count=2, at=now - 9)
    offend(WHO, "@api", 1, at=now)
    report = promote(now)
    entry = BlacklistEntry.objects.get()
    assert (entry.kind, entry.value, entry.source, entry.level) == ("ip", "203.0.113.9", "promoted", 1)
    assert (entry.policy, entry.created_by) == (policy, None)
    assert entry.expires_at == datetime.fromtimestamp(now + 100, UTC)
    assert "repeat" in entry.reason
    assert "3 offences (@api 1, grab 2)" in entry.reason
    evidence = json.loads(entry.evidence)
    assert evidence["rules"] == {"grab": 2, "@api": 1}
    assert evidence["first"] == datetime.fromtimestamp(now - 9, UTC).isoformat()
    assert mark(valkey, WHO) == now + 100
    assert heard == [(WHO, 1)]
    assert (names(report), report.announced) == ([WHO], (WHO,))
    json.dumps(report.as_dict())


def test_promote_below_the_threshold_or_too_long_ago_bans_nobody(now, heard):
    """Offences below the threshold within the find period are no reason for a ban."""
    make_rule()
    make_policy()
    offend(WHO, count=2, at=now)
    offend(WHO, count=9, at=now - 60)
    assert promote(now).promoted == ()
    assert not BlacklistEntry.objects.exists()
    assert heard == []


def test_promote_of_the_same_offences_five_times_bans_once(now, heard):
    """C107: run again, or late, the same offences give one row, one level, one end and one signal."""
    make_rule()
    make_policy()
    offend(WHO, at=now)
    for later in (0, 0, 5, 30, 100, 101):
        promote(now + later)
    entry = BlacklistEntry.objects.get()
    assert (entry.level, entry.expires_at) == (1, datetime.fromtimestamp(now + 100, UTC))
    assert heard == [(WHO, 1)]


def test_promote_of_one_who_comes_back_climbs_in_the_same_row(valkey, now, heard):
    """The ladder lives in the row: the next ban is longer, and is told of again."""
    make_rule()
    make_policy()
    offend(WHO, at=now)
    promote(now)
    offend(WHO, at=now + 100)
    promote(now + 101)
    entry = BlacklistEntry.objects.get()
    assert (entry.level, entry.expires_at) == (2, datetime.fromtimestamp(now + 301, UTC))
    assert mark(valkey, WHO) == now + 301
    assert heard == [(WHO, 1), (WHO, 2)]


def test_promote_after_good_behaviour_starts_lower(now):
    """The level falls by one for each decay period since the last ban's end."""
    make_rule()
    policy = make_policy()
    end = datetime.fromtimestamp(now - 1_000, UTC)
    BlacklistEntry.objects.create(
        kind="ip", value="203.0.113.9", source="promoted", policy=policy, level=4, expires_at=end
    )
    offend(WHO, at=now)
    assert [item.level for item in promote(now).promoted] == [3]


def test_promote_of_offences_from_before_a_bans_end_counts_only_those_after(now):
    """Offences before the end of a ban are used up by it, those of the buffers that come late too."""
    make_rule()
    make_policy()
    offend(WHO, at=now)
    promote(now)
    offend(WHO, count=50, at=now + 99)
    offend(WHO, count=2, at=now + 100)
    assert promote(now + 110).promoted == ()
    offend(WHO, count=1, at=now + 110)
    assert names(promote(now + 110)) == [WHO]


@pytest.mark.parametrize("period", [None, 1_000])
def test_promote_beside_a_manual_ban_leaves_it_and_the_longer_one_wins(valkey, now, period):
    """C111: a manual ban is never rewritten nor shortened; the longest decides."""
    make_rule()
    make_policy()
    end = None if period is None else datetime.fromtimestamp(now + period, UTC)
    manual = BlacklistEntry.objects.create(kind="ip", value="203.0.113.9", reason="by hand", expires_at=end)
    offend(WHO, at=now)
    promote(now)
    manual.refresh_from_db()
    assert (manual.source, manual.reason, manual.expires_at) == ("manual", "by hand", end)
    assert BlacklistEntry.objects.filter(source="promoted").count() == 1
    assert mark(valkey, WHO) == (0 if period is None else now + period)


def test_promote_of_an_entry_made_permanent_leaves_it_so(now):
    """C111: a promoted entry that an operator made permanent never becomes a temporary one."""
    make_rule()
    make_policy()
    offend(WHO, at=now)
    promote(now)
    BlacklistEntry.objects.update(expires_at=None)
    offend(WHO, count=99, at=now + 5_000)
    promote(now + 5_001)
    assert BlacklistEntry.objects.get().expires_at is None


def test_promote_with_two_rules_of_two_policies_shares_nothing(now):
    """C116: two offences each against two rules are below the threshold of each rule's own policy."""
    for name in ("grab", "login"):
        make_policy(name).rules.add(make_rule(name))
        offend(WHO, name, 2, at=now)
    assert promote(now).promoted == ()
    offend(WHO, "login", 1, at=now)
    assert [item.policy for item in promote(now).promoted] == ["login"]


def test_promote_with_two_policies_over_all_rules_gives_each_its_own_ladder(valkey, now, heard):
    """Policies share nothing: each has its row, its level and its end, and the longer ban decides."""
    make_rule()
    make_policy("short")
    make_policy("long", block_period=500)
    offend(WHO, at=now)
    assert sorted(item.policy for item in promote(now).promoted) == ["long", "short"]
    offend(WHO, at=now + 150)
    promote(now + 151)
    assert sorted(BlacklistEntry.objects.values_list("policy__name", "level")) == [("long", 1), ("short", 2)]
    assert mark(valkey, WHO) == now + 500
    assert len(heard) == 3


@pytest.mark.parametrize(
    ("fields", "slot", "count", "expected"),
    [
        ({"offence_weight": 3}, "grab", 1, True),
        ({"offence_weight": 0}, "grab", 99, False),
        ({"mode": "shadow"}, "grab", 99, False),
        ({"mode": "off"}, "grab", 99, False),
        ({}, "gone", 99, False),
        ({}, "@api", 3, True),
        ({}, "@api", 2, False),
    ],
)
def test_promote_of_weighted_offences_sums_what_counts(now, fields, slot, count, expected):
    """Weights are the rules' own; code groups weigh 1; rules that are off, in shadow or gone do not count."""
    make_rule(**fields)
    make_policy()
    offend(WHO, slot, count, at=now)
    assert bool(promote(now).promoted) is expected


def test_promote_by_a_policy_with_chosen_rules_leaves_groups_in_code_alone(now):
    """A policy that names rules counts those and nothing else."""
    make_policy().rules.add(make_rule())
    offend(WHO, "@api", 99, at=now)
    assert promote(now).promoted == ()


def test_promote_of_a_kind_that_the_policy_does_not_name_bans_nobody(now):
    """What a client chooses is banned only where a policy names its kind on purpose."""
    make_rule()
    make_policy()
    offend("device:ab12", at=now)
    offend("user:42", at=now)
    assert names(promote(now)) == ["user:42"]
    PromotionPolicy.objects.update(kinds="device")
    assert names(promote(now)) == ["device:ab12"]


def test_promote_by_a_disabled_policy_bans_nobody(now):
    """A policy that is switched off bans nobody."""
    make_rule()
    make_policy(enabled=False)
    offend(WHO, at=now)
    assert promote(now).promoted == ()


@pytest.mark.parametrize(
    "identity",
    [
        "ip:2001:db8:1:2::/64",
        "session:~0123456789abcdef0123456789abcdef",
        "device:a%2Bb",
        "device:a b",
        "user:42",
    ],
)
def test_promote_of_any_kind_of_identity_marks_what_requests_carry(valkey, now, identity):
    """An IPv6 client is its /64, a secret its digest: the mark is of the same text as the offence."""
    make_rule()
    make_policy(kinds="ip,user,device,session")
    offend(identity, at=now)
    assert names(promote(now)) == [identity]
    assert BlacklistEntry.objects.get().identity == identity
    assert mark(valkey, identity) == now + 100


def test_promote_with_garbage_among_the_offenders_bans_the_others(now):
    """An identity that no entry can hold is reported, and stops nobody's promotion."""
    make_rule()
    make_policy()
    for identity in ("ip:nonsense", "user:", "ip:203.0.113.9/8", WHO):
        offend(identity, at=now)
    report = promote(now)
    assert names(report) == [WHO]
    assert {item.reason for item in report.skipped} == {"not_listable"}
    assert len(report.skipped) == 3


def allow(identity: str, **fields: Any) -> None:
    """Put an identity on the allowlist."""
    kind, _, value = identity.partition(":")
    AllowlistEntry.objects.create(kind=kind, value=value, **fields)


@pytest.mark.parametrize(
    ("identity", "allowed"),
    [
        (WHO, WHO),
        (WHO, "ip:203.0.113.0/24"),
        ("ip:2001:db8:1:2::/64", "ip:2001:db8::/32"),
        ("ip:2001:db8:1:2::/64", "ip:2001:db8:1:2::5"),
        ("user:42", "user:42"),
    ],
)
def test_promote_of_one_on_the_allowlist_skips_it(now, identity, allowed):
    """C102: the allowlist keeps from promotion, by address, by network and by user."""
    make_rule()
    make_policy()
    allow(allowed)
    allow("user:7")
    allow("ip:198.51.100.0/24")
    offend(identity, at=now)
    report = promote(now)
    assert report.promoted == ()
    assert [(item.identity, item.reason) for item in report.skipped] == [(identity, "allowlist")]


def test_promote_of_one_whose_allowance_has_ended_bans(now):
    """An expired entry of the allowlist protects nobody."""
    make_rule()
    make_policy()
    allow(WHO, expires_at=datetime.fromtimestamp(now, UTC))
    offend(WHO, at=now)
    assert names(promote(now)) == [WHO]


@pytest.mark.parametrize(
    ("identity", "reason"),
    [
        ("ip:10.0.0.5", "trusted_proxy"),
        ("ip:2001:db8:9:9::/64", "trusted_proxy"),
        ("ip:127.0.0.1", "loopback"),
        ("ip:127.9.9.9", "loopback"),
        ("ip:::/64", "loopback"),
    ],
)
def test_promote_of_our_own_proxy_or_loopback_warns_once_and_bans_nobody(caplog, now, identity, reason):
    """C114: offences from a trusted proxy or from loopback give no row and one warning."""
    make_rule()
    make_policy()
    offend(identity, at=now)
    offend(WHO, at=now)
    with override_settings(RATELIMIT_APP={"TRUSTED_PROXIES": ["10.0.0.0/8", "2001:db8:9:9::1"]}):
        reports = [promote(now) for _ in range(3)]
    assert [[item.reason for item in report.skipped] for report in reports] == [[reason]] * 3
    assert [entry.identity for entry in BlacklistEntry.objects.all()] == [WHO]
    warnings = [record for record in caplog.records if "promotion_skipped" in record.getMessage()]
    assert len(warnings) == 1
    assert identity in warnings[0].getMessage()


def test_promote_of_staff_skips_them_with_one_query_for_all(django_assert_max_num_queries, now):
    """Staff and superusers are never banned, however many candidates there are."""
    make_rule()
    make_policy()
    flags = [{"is_staff": True}, {"is_superuser": True}, {"is_staff": True, "is_active": False}]
    staff = [User.objects.create(username=f"s{n}", **extra) for n, extra in enumerate(flags)]
    others = [User.objects.create(username=f"u{n}") for n in range(20)]
    for user in staff + others:
        offend(f"user:{user.pk}", at=now)
    with django_assert_max_num_queries(12):
        report = promote(now, dry_run=True)
    assert {item.identity: item.reason for item in report.skipped} == {f"user:{u.pk}": "staff" for u in staff}
    assert len(report.promoted) == len(others)


@pytest.mark.parametrize("value", ["no-number", "99999999999999999999999", "-1"])
def test_promote_of_a_user_key_that_the_database_cannot_have_still_works(now, value):
    """A user of some other kind of account is nobody's staff."""
    make_rule()
    make_policy()
    offend(f"user:{value}", at=now)
    assert names(promote(now)) == [f"user:{value}"]


def test_promote_of_too_many_bans_the_worst_and_raises_an_alert(caplog, now, heard):
    """A run stops at max_blocks_per_run, with the worst banned, an error in the log and one alert."""
    make_rule()
    make_policy(max_blocks_per_run=2)
    for number, count in enumerate((3, 9, 4, 7)):
        offend(f"ip:203.0.113.{number}", count=count, at=now)
    report = promote(now)
    assert names(report) == ["ip:203.0.113.1", "ip:203.0.113.3"]
    assert [(item.policy, item.left) for item in report.capped] == [("repeat", 2)]
    assert ("promotion_capped", 2) in heard
    assert [r.levelno for r in caplog.records if "promotion_capped" in r.getMessage()] == [logging.ERROR]
    assert names(promote(now)) == ["ip:203.0.113.2", "ip:203.0.113.0"]
    assert BlacklistEntry.objects.count() == 4


@pytest.mark.parametrize(("rehearses", "asked"), [(True, None), (False, True), (True, True)])
def test_promote_as_a_dry_run_reports_and_writes_nothing(valkey, now, heard, rehearses, asked):
    """A rehearsal, of the policy or asked for, says who would be banned and changes nothing."""
    make_rule()
    make_policy(dry_run=rehearses, max_blocks_per_run=1)
    offend(WHO, at=now)
    offend("ip:203.0.113.10", count=9, at=now)
    offend("ip:127.0.0.1", at=now)
    before = {key: valkey.dump(key) for key in valkey.scan_iter()}
    report = promote(now, dry_run=asked)
    assert names(report) == ["ip:203.0.113.10"]
    assert [item.dry_run for item in report.promoted] == [True]
    assert report.dry_run is bool(asked)
    assert ([item.left for item in report.capped], len(report.skipped)) == ([1], 1)
    assert not BlacklistEntry.objects.exists()
    assert heard == []
    after = {key: valkey.dump(key) for key in valkey.scan_iter() if b":turn:" not in key}
    assert before == after


def test_promote_told_to_write_overrides_a_policy_that_rehearses(now):
    """`dry_run=False` is said on purpose."""
    make_rule()
    make_policy(dry_run=True)
    offend(WHO, at=now)
    assert [item.dry_run for item in promote(now, dry_run=False).promoted] == [False]
    assert BlacklistEntry.objects.count() == 1


def test_promote_after_an_unblock_does_not_ban_for_what_was_before(valkey):
    """C96: an unblock clears the offences, even those that come late from the buffers, and keeps the level."""
    make_rule()
    make_policy()
    offend(WHO)
    promote()
    assert mark(valkey, WHO)
    unblock(WHO)
    offend(WHO, count=50, at=time.time() - 1)
    assert mark(valkey, WHO) is None
    assert promote().promoted == ()
    later = int(time.time()) + 5
    offend(WHO, at=later)
    assert [item.level for item in promote(later + 1).promoted] == [2]


def test_promote_after_redis_was_flushed_finds_the_ban_still_there(valkey, now):
    """C106: a ban survives the loss of Redis; the sync brings its mark back."""
    make_rule()
    make_policy()
    offend(WHO, at=now)
    promote(now)
    valkey.flushall()
    publishing.sync()
    assert mark(valkey, WHO) == now + 100


def leftover(now: int, **fields: Any) -> BlacklistEntry:
    """Make an entry as a run leaves it that was killed after its transaction: in no Redis, announced to nobody."""
    end = datetime.fromtimestamp(now + 100, UTC)
    policy = make_policy()
    row = {"kind": "ip", "value": "203.0.113.9", "source": "promoted", "policy": policy, "level": 1}
    entry = BlacklistEntry(**(row | {"expires_at": end} | fields))
    super(BlacklistEntry, entry).save_base(raw=True)
    return entry


def test_promote_after_a_run_that_was_killed_publishes_and_announces_what_it_left(valkey, now, heard):
    """A row that nobody was told of is published and announced by the next run, once."""
    leftover(now)
    valkey.flushall()
    first, second = promote(now), promote(now)
    assert (first.announced, second.announced) == ((WHO,), ())
    assert mark(valkey, WHO) == now + 100
    assert heard == [(WHO, 1)]


def test_announce_of_a_row_that_another_run_announces_meanwhile_is_silent(now, heard):
    """Two runs that see the same unannounced row give one signal."""
    entry = leftover(now)
    assert announcing._announce(entry, "default") is True
    assert announcing._announce(entry, "default") is False
    assert heard == [(WHO, 1)]


def breaks_by_model(**_: Any) -> None:
    """Fail in the database as a careless receiver does."""
    User.objects.create(username="twice")
    User.objects.create(username="twice")


def breaks_by_sql(**_: Any) -> None:
    """Fail in the database without Django's knowing; PostgreSQL then takes nothing more."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT no_such_column FROM auth_user")


def raises(**_: Any) -> None:
    """Fail elsewhere."""
    raise LookupError


@pytest.mark.parametrize("broken", [breaks_by_model, breaks_by_sql, raises])
def test_promote_with_a_receiver_that_fails_still_bans_and_tells_the_others(caplog, now, heard, broken):
    """A project's receiver that raises costs no ban; if it undid what others wrote, the log says so."""
    make_rule()
    make_policy()
    identity_blocked.connect(broken)
    offend(WHO, at=now)
    try:
        report = promote(now)
    finally:
        identity_blocked.disconnect(broken)
    assert report.announced == (WHO,)
    assert heard == [(WHO, 1)]
    assert promote(now).announced == ()
    assert BlacklistEntry.objects.get().announced_at
    if broken is breaks_by_model:
        assert "receiver_failed" in caplog.text
        assert not User.objects.exists()
    if broken is raises:
        assert "receiver_failed" not in caplog.text


def test_promote_while_redis_is_away_says_so_and_writes_nothing(settings, now):
    """Without offences to read there is nothing to judge; the caller is told."""
    make_rule()
    make_policy()
    offend(WHO, at=now)
    settings.CACHES = {
        "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/redis.sock?db=0"}
    }
    with pytest.raises(StoreUnavailable):
        promote(now)
    assert not BlacklistEntry.objects.exists()


def test_promote_when_a_policy_is_disabled_meanwhile_bans_nobody(monkeypatch, now):
    """What an operator switched off while the run was reading is off."""
    make_rule()
    policy = make_policy()
    offend(WHO, at=now)
    judged = banning.Judgement._rows

    def rows(self, identities):
        PromotionPolicy.objects.filter(pk=policy.pk).update(enabled=False)
        return judged(self, identities)

    monkeypatch.setattr(banning.Judgement, "_rows", rows)
    assert promote(now).promoted == ()
    assert not BlacklistEntry.objects.exists()


def test_promote_when_the_lock_fails_leaves_it_to_the_unique_constraint(monkeypatch, now, heard):
    """The last guard: two runs that both believe to be alone write one row, and the loser says so."""
    make_rule()
    make_policy()
    offend(WHO, at=now)
    promote(now)
    monkeypatch.setattr(banning.Judgement, "_rows", lambda self, identities: {})
    assert promote(now).promoted == ()
    assert BlacklistEntry.objects.get().level == 1
    with pytest.raises(IntegrityError):
        BlacklistEntry.objects.bulk_create(
            [
                BlacklistEntry(
                    kind="ip", value="203.0.113.9", source="promoted", policy=PromotionPolicy.objects.get()
                )
            ]
        )
    assert heard == [(WHO, 1)]


def test_promote_while_another_run_has_the_turn_says_busy(monkeypatch, valkey, now):
    """C108: of two workers at the same time one does the work."""
    monkeypatch.setattr("ratelimit_app.store.turns.TURN_TTL", 0.1)
    monkeypatch.setattr("ratelimit_app.store.turns.WAIT_SLACK", 0)
    make_rule()
    make_policy()
    offend(WHO, at=now)
    valkey.set(f"{conf.keys.root}:turn:promotion", "of another", ex=60)
    assert promote(now).busy
    assert not BlacklistEntry.objects.exists()


def test_promote_without_a_time_uses_the_clock_of_redis_and_of_tests_that_travel():
    """Offences and promotion share a clock; a test that travels takes the promotion along."""
    make_rule()
    make_policy()
    offend(WHO, at=time.time() + 500)
    assert promote().promoted == ()
    snapshot_cache.travel(500.5)
    assert names(promote()) == [WHO]


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_promote_by_a_policy_of_a_second_database_bans_there(valkey, now, heard):
    """Rows of every database alias count: policies, their rules, and who is allowed."""
    from ratelimit_app.models import Rule

    Rule.objects.using("other").create(name="grab", key="ip", rate="5/s")
    PromotionPolicy.objects.using("other").create(name="there", threshold=3)
    allow("ip:203.0.113.10")
    offend(WHO, at=now)
    offend("ip:203.0.113.10", at=now)
    assert names(promote(now)) == [WHO]
    assert BlacklistEntry.objects.using("other").count() == 1
    assert mark(valkey, WHO) == now + 300
    assert heard == [(WHO, 1)]


def entry_of(value: str, source: str, ends: datetime | None, **fields: Any) -> BlacklistEntry:
    """Make an entry of the blacklist."""
    entry: BlacklistEntry = BlacklistEntry.objects.create(
        kind="ip", value=value, source=source, expires_at=ends, **fields
    )
    return entry


def test_prune_of_both_lists_deletes_what_is_over_and_nothing_else(now):
    """Expired entries go; those without an end, those that last, and steps of the ladder stay."""
    past, future = (datetime.fromtimestamp(now + shift, UTC) for shift in (-1, 60))
    policy = make_policy()
    for number, (source, end) in enumerate(
        [("manual", past), ("imported", past), ("manual", future), ("manual", None)]
    ):
        entry_of(f"203.0.113.{number}", source, end)
        allow(f"ip:203.0.113.{number}", expires_at=end)
    entry_of("203.0.113.9", "promoted", past, policy=policy, level=1)
    entry_of("203.0.113.9", "promoted", past, level=1)
    assert promotion.prune_expired(now=now, dry_run=True) == 5
    assert promotion.prune_expired(now=now) == 5
    assert promotion.prune_expired(now=now) == 0
    assert sorted(BlacklistEntry.objects.values_list("value", flat=True)) == [
        "203.0.113.2",
        "203.0.113.3",
        "203.0.113.9",
    ]
    assert BlacklistEntry.objects.get(value="203.0.113.9").policy == policy
    assert AllowlistEntry.objects.count() == 2


@pytest.mark.parametrize(
    ("level", "since_end", "gone"), [(3, 1_499, False), (3, 1_500, True), (1, 500, True), (0, 0, True)]
)
def test_prune_of_the_ladder_waits_until_the_level_is_zero(now, level, since_end, gone):
    """A promoted row stays until its level is 0: one decay period for each level after the ban's end."""
    end = datetime.fromtimestamp(now - since_end, UTC)
    entry_of("203.0.113.9", "promoted", end, policy=make_policy(), level=level)
    assert promotion.prune_expired(now=now) == int(gone)


def test_prune_of_a_ladder_that_decays_after_ages_keeps_it(now):
    """A level that would take longer to fall than there has been time is no error."""
    policy = make_policy(decay_period=2**31 - 1)
    entry_of("203.0.113.9", "promoted", datetime.fromtimestamp(now - 9, UTC), policy=policy, level=2**31 - 1)
    assert promotion.prune_expired(now=now) == 0


def test_prune_of_many_rows_goes_in_batches(monkeypatch, now):
    """No transaction deletes more than a batch."""
    monkeypatch.setattr("ratelimit_app.promotion.pruning.BATCH", 2)
    for number in range(5):
        entry_of(f"203.0.113.{number}", "manual", datetime.fromtimestamp(now - 9, UTC))
    assert list(promotion.prune_batches(now=now)) == [2, 2, 1]


def test_prune_of_a_row_that_is_extended_meanwhile_keeps_it(monkeypatch, now):
    """A row that a person extends between the look and the deletion stays."""
    from ratelimit_app.promotion.pruning import Over

    entry = entry_of("203.0.113.9", "manual", datetime.fromtimestamp(now - 9, UTC))
    hold = Over._hold

    def extended(self, keys):
        BlacklistEntry.objects.filter(pk=entry.pk).update(expires_at=datetime.now(UTC) + timedelta(days=1))
        hold(self, keys)

    monkeypatch.setattr(Over, "_hold", extended)
    assert promotion.prune_expired(now=now) == 0
    assert BlacklistEntry.objects.count() == 1


def test_prune_of_offences_drops_those_that_no_policy_counts_any_more(valkey, now):
    """Who never stops does not grow a record without end."""
    make_policy(find_period=7_200)
    offend(WHO, at=now - 7_201)
    offend(WHO, at=now - 7_100)
    offend(WHO, at=now)
    promotion.prune_expired(now=now)
    kept = sorted(int(name.split(b"|")[0]) for name in valkey.hkeys(conf.keys.offences(WHO)))
    assert kept == [now - 7_100, now]
