"""Rules, lists and policies: what is refused, in form, model and database, and what is brought into its one form."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import F
from django.db.models.query import QuerySet
from django.forms import modelform_factory
from django.utils import timezone

from ratelimit_app.conf import conf
from ratelimit_app.core.identity import digest
from ratelimit_app.models import AllowlistEntry, BlacklistEntry, PromotionPolicy, Publication, Rule
from tests.databases import upsert

pytestmark = pytest.mark.django_db

BAD_RULES: dict[str, list[Any]] = {
    "rate": ["", "-1/s", "1.7/s", "5/0s", "5/-1s", "5/x", "10/month", "10/week-end", "1.5/s", "5", "20000/s"],
    "key": ["", "usr", "ip+ip", "header:", "ip,user"],
    "name": ["", "a b", "a;b", "ä"],
    "route": ["a b", "a::b", ":", "no spaces /", "/login?next=/", "/page#top"],
    "methods": ["FETCH"],
    "algorithm": ["", "unknown"],
    "mode": ["", "on"],
    "on_failure": ["maybe"],
    "cost": [0, 6],
    "burst": [0],
    "group": ["a b", "ä", "%x", "@x"],
    "reserve": [1, -1],
    "lease": [2, -1],
}
CASES = [
    pytest.param(field, value, id=f"{field}={value!r}")
    for field, values in BAD_RULES.items()
    for value in values
]
GOOD = {"name": "good", "rate": "5/s"}


def raw(model: Any) -> Any:
    """A queryset that validates nothing, as raw SQL does."""
    return QuerySet(model)


@pytest.mark.parametrize(("field", "value"), CASES)
def test_a_rule_when_saved_with_nonsense_is_refused(field: str, value: Any) -> None:
    """C28, C135: save() refuses what no rule may be, whatever validation was left out."""
    with pytest.raises(ValidationError) as refusal:
        Rule.objects.create(**GOOD | {field: value})
    assert [field] == list(refusal.value.message_dict)


@pytest.mark.parametrize(("field", "value"), CASES)
def test_a_rule_form_when_given_nonsense_says_so_beside_the_field(field: str, value: Any) -> None:
    """C135: the form refuses the same, beside the field."""
    fields = ("name", "route", "methods", "key", "rate", "algorithm", "burst", "cost", "mode", "on_failure")
    good = {"key": "ip", "algorithm": "sliding_window", "cost": 1, "mode": "enforce", **GOOD}
    form_class = modelform_factory(Rule, fields=(*fields, "group", "reserve", "lease"))
    assert form_class(good).is_valid()
    form = form_class(good | {field: value})
    assert not form.is_valid()
    assert field in form.errors


@pytest.mark.parametrize(
    "bad",
    [
        {"rate": ""}, {"rate": "-1/s"}, {"rate": "1.7/s"}, {"rate": "5/0s"}, {"rate": "5/-1s"}, {"key": ""},
        {"name": ""}, {"mode": "on"}, {"on_failure": "maybe"}, {"algorithm": "unknown"}, {"cost": 0}, {"burst": 0},
    ],
    ids=str,
)  # fmt: skip
def test_a_rule_when_written_past_the_model_is_refused_by_the_database(bad: dict[str, Any]) -> None:
    """C135: a CheckConstraint stands behind the model's validation."""
    with pytest.raises(IntegrityError), transaction.atomic():
        raw(Rule).bulk_create([Rule(**GOOD | bad)])


def test_a_rule_when_it_ends_before_it_starts_is_refused_by_form_and_database() -> None:
    """A rule's end comes after its start."""
    now = timezone.now()
    rule = Rule(**GOOD, starts_at=now, ends_at=now)
    with pytest.raises(ValidationError):
        rule.full_clean()
    with pytest.raises(IntegrityError), transaction.atomic():
        rule.save()


@pytest.mark.parametrize(
    "good",
    [
        {"rate": "10 per 2 hours"}, {"rate": "5/s; 100/m"}, {"rate": "0/s"}, {"rate": "20/500ms"}, {"key": "user+ip"},
        {"key": "ip+field:email"}, {"route": "/api/"}, {"route": "coupons:grab"}, {"route": "nowhere"},
        {"methods": "get,POST"}, {"burst": 10}, {"cost": 5}, {"on_failure": "closed"},
        {"group": "shop-1"}, {"group": "shop", "reserve": 4}, {"rate": "20/s", "lease": 2}, {"lease": 1}, {"reserve": 0},
    ],
    ids=str,
)  # fmt: skip
def test_a_rule_when_it_means_something_is_taken_by_form_and_database(good: dict[str, Any]) -> None:
    """What the contract names is no mistake."""
    rule = Rule(**GOOD | good)
    rule.full_clean()
    rule.save()


def test_a_refusal_when_read_holds_value_grammar_and_remedy() -> None:
    """The message says what was given, what was expected and what to write."""
    with pytest.raises(ValidationError) as refusal:
        Rule.objects.create(name="x", rate="10/month")
    text = refusal.value.message_dict["rate"][0]
    assert "'10/month'" in text
    assert "Write <limit>/<period>" in text


@pytest.mark.parametrize("values", [{"rate": "5/x"}, {"key": "usr"}, {"cost": 6}, {"mode": "on"}], ids=str)
def test_a_queryset_when_it_updates_to_nonsense_refuses_and_writes_nothing(values: dict[str, Any]) -> None:
    """C135: update() validates literal values, against each row they would meet."""
    Rule.objects.create(**GOOD)
    with pytest.raises(ValidationError), transaction.atomic():
        Rule.objects.update(**values)
    assert ("5/s", "ip", 1, "enforce") == Rule.objects.values_list("rate", "key", "cost", "mode").get()


def test_a_queryset_when_it_updates_by_an_expression_leaves_that_to_the_database() -> None:
    """An expression's value is not known before the write; the constraint looks at it."""
    Rule.objects.create(**GOOD, cost=2)
    assert 1 == Rule.objects.update(cost=F("cost") + 1)
    with pytest.raises(IntegrityError), transaction.atomic():
        Rule.objects.update(cost=F("cost") - 3)


def test_a_bulk_create_when_one_row_is_nonsense_creates_none() -> None:
    """C135: bulk_create validates every row."""
    with pytest.raises(ValidationError):
        Rule.objects.bulk_create([Rule(**GOOD), Rule(name="bad", rate="5/x")])
    assert 0 == Rule.objects.count()


SHARED = {"rate": "10/s", "group": "shop"}


def fresh(**changes: Any) -> Rule:
    """A rule of a group that holds `browse` and `pay`, whose reserve is 4."""
    for name, reserve in (("browse", None), ("pay", 4)):
        Rule.objects.create(name=name, reserve=reserve, **SHARED)
    return Rule(**{"name": "new"} | SHARED | changes)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"key": "user"}, "group"), ({"rate": "10/m"}, "group"), ({"burst": 5}, "group"), ({"reserve": 7}, "reserve"),
        ({"rate": "4/s"}, "reserve"), ({"cost": 7}, "reserve"),
    ],
    ids=str,
)  # fmt: skip
def test_a_rule_when_it_cannot_share_its_groups_limit_is_refused(change: dict[str, Any], field: str) -> None:
    """By save, form and bulk_create, with the other rule's or the group's name."""
    new = fresh(**change)
    for write in (new.save, new.full_clean, lambda: Rule.objects.bulk_create([new])):
        with pytest.raises(ValidationError) as refusal:
            write()
        assert [field] == list(refusal.value.message_dict)
        assert "'shop'" in refusal.value.messages[0]
    assert 2 == Rule.objects.count()


def test_a_rule_when_it_only_watches_or_rests_may_differ_from_its_group() -> None:
    """It is held to the others when it is enforced, and said so then; off and shadow are never refused."""
    new = fresh(key="user", mode="shadow")
    new.save()
    with pytest.raises(ValidationError, match=r"key \(ip and user\)"):
        Rule.objects.filter(name="new").update(mode="enforce")
    for mode in ("off", "shadow"):
        assert 3 == Rule.objects.update(mode=mode)


def test_a_rule_of_a_group_when_saved_again_is_not_held_to_itself() -> None:
    """Its own row is the one that it replaces; so is one that an upsert writes over."""
    fresh()
    pay = Rule.objects.get(name="pay")
    pay.reserve = 6
    pay.save()
    Rule.objects.bulk_create(
        [Rule(name="pay", **SHARED | {"reserve": 9})], **upsert("name", update="reserve")
    )
    assert 9 == Rule.objects.get(name="pay").reserve


def test_a_group_when_updated_as_a_whole_may_change_what_its_rules_share() -> None:
    """The rows are held to what they will be: all of them together, or none."""
    fresh()
    with pytest.raises(ValidationError):
        Rule.objects.filter(name="pay").update(rate="20/m")
    assert 2 == Rule.objects.filter(group="shop").update(rate="20/m", key="user")
    rows = list(Rule.objects.all())
    for row in rows:
        row.key = "ip"
    Rule.objects.bulk_update(rows, ["key"])
    assert {("20/m", "ip")} == set(Rule.objects.values_list("rate", "key"))


def test_rules_of_a_new_group_when_created_together_are_held_to_each_other() -> None:
    """A batch that disagrees within itself creates nothing."""
    rows = [Rule(name="a", **SHARED), Rule(name="b", **SHARED | {"key": "user"})]
    with pytest.raises(ValidationError, match="'b' cannot share"):
        Rule.objects.bulk_create(rows)
    assert 0 == Rule.objects.count()


def test_a_rule_when_a_row_of_its_group_is_spoilt_is_taken() -> None:
    """What raw SQL has left unreadable or out of line stands in nobody's way (C136)."""
    fresh()
    raw(Rule).filter(name="browse").update(rate="5/x")
    raw(Rule).filter(name="pay").update(key="global")
    Rule.objects.create(name="new", **SHARED | {"key": "global"})
    assert 3 == Rule.objects.count()


@pytest.mark.parametrize(
    ("kind", "typed", "stored"),
    [
        ("ip", "192.0.2.121/24", "192.0.2.0/24"),
        ("ip", "192.0.2.1", "192.0.2.1"),
        ("ip", " 192.0.2.0/24 ", "192.0.2.0/24"),
        ("ip", "192.0.2.7/32", "192.0.2.7"),
        ("ip", "::ffff:192.0.2.1", "192.0.2.1"),
        ("ip", "2001:DB8:0:0::1", "2001:db8::1"),
        ("ip", "2001:db8:1:2:3::/64", "2001:db8:1:2::/64"),
        ("user", " 42 ", "42"),
        ("device", "a\r\nb", "a%0D%0Ab"),
        ("device", "a%0D%0Ab", "a%0D%0Ab"),
        ("device", "{x}+", "%7Bx%7D%2B"),
    ],
)
def test_an_entry_when_saved_is_stored_in_its_one_form(kind: str, typed: str, stored: str) -> None:
    """C15, C100: host bits, mapped addresses, blanks and unsafe characters; saving again changes nothing."""
    entry = BlacklistEntry.objects.create(kind=kind, value=typed)
    assert stored == BlacklistEntry.objects.get().value
    entry.save()
    BlacklistEntry.objects.get().save()
    assert stored == BlacklistEntry.objects.get().value
    form = modelform_factory(BlacklistEntry, fields=("kind", "value"))({"kind": kind, "value": typed})
    assert not form.is_valid() or form.instance.value == stored


@pytest.mark.parametrize("kind", ["session", "header:X-Api-Key", "cookie:id", "param:token", "field:email"])
def test_an_entry_when_its_value_is_secret_never_reaches_the_database_as_typed(kind: str) -> None:
    """C26: session, header, cookie, param and field values are stored as a digest, by every way of writing."""
    secret = "hunter2-hunter2"
    kept = kind.lower()
    expected = digest(conf.key_secret, kept, secret)
    BlacklistEntry.objects.create(kind=kind, value=secret)
    BlacklistEntry.objects.bulk_create([BlacklistEntry(kind=kind, value=secret, source="imported")])
    other = BlacklistEntry.objects.create(kind=kind, value="else", source="promoted")
    BlacklistEntry.objects.filter(pk=other.pk).update(value=secret)
    assert {(kept, expected)} == set(BlacklistEntry.objects.values_list("kind", "value"))
    assert 3 == BlacklistEntry.objects.count()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("ip", "192.0.2.256"), ("ip", "192.0.2.0/33"), ("ip", "example.org"), ("ip", ""), ("ip", "192.0.2.1-192.0.2.9"),
        ("global", "all"), ("view", "x"), ("user_or_ip", "1"), ("header", "x"), ("user+ip", "1"), ("", "1"),
        ("user", "  "),
    ],
)  # fmt: skip
def test_an_entry_when_it_names_nobody_is_refused_by_form_and_model(kind: str, value: str) -> None:
    """A bad network, kind or value is refused where it is made."""
    with pytest.raises(ValidationError):
        BlacklistEntry.objects.create(kind=kind, value=value)
    form = modelform_factory(BlacklistEntry, fields=("kind", "value"))({"kind": kind, "value": value})
    assert not form.is_valid()


def test_an_allowlist_entry_when_its_kind_is_chosen_by_clients_is_refused_by_model_and_database() -> None:
    """Only ip and user can be allowed: whatever a client chooses would be a way past every rule."""
    with pytest.raises(ValidationError):
        AllowlistEntry.objects.create(kind="device", value="x")
    with pytest.raises(IntegrityError), transaction.atomic():
        raw(AllowlistEntry).bulk_create([AllowlistEntry(kind="device", value="x")])


@pytest.mark.parametrize("source", ["manual", "imported"])
def test_an_entry_when_listed_twice_by_one_source_is_refused(source: str) -> None:
    """One row for an identity and a source, whatever the spelling; another source may list it too."""
    BlacklistEntry.objects.create(kind="ip", value="192.0.2.1", source=source)
    BlacklistEntry.objects.create(kind="ip", value="192.0.2.1", source="promoted")
    with pytest.raises(IntegrityError), transaction.atomic():
        BlacklistEntry.objects.create(kind="ip", value="::ffff:192.0.2.1", source=source)


def test_a_promoted_entry_when_its_policy_is_gone_stands_beside_others() -> None:
    """Deleting two policies that have banned one identity takes no ban along, and fails on none."""
    policies = [PromotionPolicy.objects.create(name=name) for name in ("one", "other")]
    for policy in policies:
        BlacklistEntry.objects.create(kind="user", value="1", source="promoted", policy=policy)
        policy.delete()
    assert [None, None] == [entry.holder for entry in BlacklistEntry.objects.all()]


@pytest.mark.parametrize("source", ["manual", "imported", "promoted"])
def test_an_entry_when_validated_as_a_whole_meets_its_like_and_no_other(source: str) -> None:
    """`full_clean`, as a project's own form calls it, says what the database would: another policy is another holder."""
    one, other = (PromotionPolicy.objects.create(name=name) for name in ("one", "other"))
    policy = one if source == "promoted" else None
    made = BlacklistEntry(kind="user", value="1", source=source, policy=policy)
    made.full_clean()
    made.save()
    made.full_clean()
    with pytest.raises(ValidationError, match="has such an entry already"):
        BlacklistEntry(kind="user", value="1", source=source, policy=policy).full_clean()
    for beside in (None, other):
        BlacklistEntry(kind="user", value="1", source="promoted", policy=beside).full_clean()
    BlacklistEntry(kind="user", value="1", source=source, policy=policy).full_clean(exclude={"policy"})


@pytest.mark.parametrize(("one", "other"), [("A1", "a1"), ("é", "e"), ("ß", "ss"), ("1", "1 ")])
def test_an_identity_when_it_differs_in_any_character_is_another(one: str, other: str) -> None:
    """Every database compares by code point: MySQL and MariaDB would take all of these for one."""
    rows = [BlacklistEntry(kind="device", value=value) for value in (one, other)]
    raw(BlacklistEntry).bulk_create(rows)
    assert [one] == list(BlacklistEntry.objects.filter(value=one).values_list("value", flat=True))
    assert [one] == list(BlacklistEntry.objects.filter(value__in=[one]).values_list("value", flat=True))


def test_a_rule_when_only_capitals_tell_it_from_another_is_another() -> None:
    """Headers, logs and overrides name a rule exactly."""
    for name in ("grab", "GRAB"):
        Rule.objects.create(name=name, key="ip", rate="1/s")
    assert "GRAB" == Rule.objects.get(name="GRAB").name


def test_a_promoted_entry_when_its_policy_has_one_already_is_refused() -> None:
    """C107: one promoted row for an identity and a policy; another policy has its own."""
    one, other = (PromotionPolicy.objects.create(name=name) for name in ("one", "other"))
    for policy in (one, other):
        BlacklistEntry.objects.create(kind="user", value="1", source="promoted", policy=policy)
    with pytest.raises(IntegrityError), transaction.atomic():
        BlacklistEntry.objects.create(kind="user", value="1", source="promoted", policy=one)


@pytest.mark.parametrize(
    "bad",
    [
        {"threshold": 0}, {"find_period": 0}, {"block_period": 0}, {"decay_period": 0}, {"factor": 0.5},
        {"max_blocks_per_run": 0}, {"max_block_period": 299}, {"kinds": ""},
    ],
    ids=str,
)  # fmt: skip
def test_a_policy_when_its_numbers_make_no_sense_is_refused_by_form_and_database(bad: dict[str, Any]) -> None:
    """C135: constraints for every number, seen by full_clean too."""
    with pytest.raises(ValidationError):
        PromotionPolicy(name="p", **bad).full_clean()
    with pytest.raises(IntegrityError), transaction.atomic():
        raw(PromotionPolicy).bulk_create([PromotionPolicy(name="p", **bad)])


def test_a_policy_when_its_kinds_are_spelled_freely_stores_one_form() -> None:
    """Kinds are a comma list of what can be listed, each once."""
    policy = PromotionPolicy.objects.create(name="p", kinds=" ip, user ,ip, header:X_Api-Key")
    assert "ip,user,header:x-api-key" == policy.kinds
    with pytest.raises(ValidationError):
        PromotionPolicy.objects.create(name="q", kinds="ip,global")


def test_a_policy_when_made_plainly_has_the_documented_defaults() -> None:
    """The defaults are safe: ip and user only, an emergency brake, doubling up to a day."""
    policy = PromotionPolicy.objects.create(name="p")
    assert ("ip,user", True, False) == (policy.kinds, policy.enabled, policy.dry_run)
    assert (20, 60, 300, 2, 86_400, 86_400, 100) == (
        policy.threshold, policy.find_period, policy.block_period, policy.factor, policy.max_block_period,
        policy.decay_period, policy.max_blocks_per_run,
    )  # fmt: skip


def test_an_update_of_a_value_when_rows_are_of_several_kinds_is_refused() -> None:
    """A literal value has one meaning only with one kind."""
    BlacklistEntry.objects.create(kind="user", value="1")
    BlacklistEntry.objects.create(kind="ip", value="192.0.2.1")
    with pytest.raises(ValidationError):
        BlacklistEntry.objects.update(value="2")
    with pytest.raises(ValidationError):
        BlacklistEntry.objects.update(kind="user")
    BlacklistEntry.objects.filter(kind="ip").update(value="192.0.2.9/24")
    assert {"1", "192.0.2.0/24"} == set(BlacklistEntry.objects.values_list("value", flat=True))


def test_an_entry_when_it_has_ended_is_not_active() -> None:
    """C112: an entry counts until its end, one without an end for ever."""
    now = timezone.now()
    assert BlacklistEntry(expires_at=None).is_active()
    assert BlacklistEntry(expires_at=now + timedelta(seconds=1)).is_active(now)
    assert not BlacklistEntry(expires_at=now).is_active(now)


def test_the_publication_when_locked_is_one_row() -> None:
    """The row is made where it is missing, and there is never another."""
    assert 1 == Publication.objects.lock().pk
    assert 1 == Publication.objects.lock().pk == Publication.objects.count()
    with pytest.raises(IntegrityError), transaction.atomic():
        Publication.objects.create(pk=2)
