"""Rules: what a snapshot's row becomes, and what is refused with the name of the wrong part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ratelimit_app.core.algorithms import MAX_LIMITS
from ratelimit_app.core.identity import Source
from ratelimit_app.core.rates import Rate
from ratelimit_app.core.rules import METHODS, Rule, RuleError, check_limits, parse_methods, rule_from_dict

ROW: dict[str, Any] = {"name": "grab", "rate": "5/s", "key": "ip"}


def test_a_rule_when_made_of_the_least_has_the_defaults() -> None:
    """Name, rate and key are enough; everything else has the default of the contract."""
    rule = rule_from_dict(ROW)
    assert Rule(name="grab", slot="grab", rates=(Rate(5, 1_000_000),), sources=(Source("ip"),)) == rule
    assert ("enforce", 1, "", "sliding_window") == (rule.mode, rule.cost, rule.on_failure, rule.algorithm)
    assert not rule.shadow
    assert not rule.needs_user


def test_a_rule_when_made_of_everything_keeps_it() -> None:
    """No field of a row is lost on the way."""
    row = ROW | {
        "key": "user+ip",
        "scope": "sale",
        "route": "/api/",
        "methods": "post, get",
        "burst": 4,
        "cost": 2,
        "group": "shop",
        "reserve": 3,
    }
    row |= {"mode": "shadow", "on_failure": "closed", "starts_us": 5, "ends_us": 9, "rate": "5/s;9/m"}
    rule = rule_from_dict(row)
    assert (("user", "ip"), "sale", "/api/") == (tuple(s.kind for s in rule.sources), rule.scope, rule.route)
    assert frozenset({"GET", "HEAD", "POST"}) == rule.methods
    assert (4, 2, "closed", 5, 9) == (rule.burst, rule.cost, rule.on_failure, rule.starts_us, rule.ends_us)
    assert ("shop", 3, "grab") == (rule.group, rule.reserve, rule.slot)
    assert (9, 5) == tuple(rate.limit for rate in rule.rates)
    assert rule.shadow
    assert rule.needs_user


@pytest.mark.parametrize("missing", [None, ""])
def test_a_rule_when_its_bounds_are_blank_has_none(missing: object) -> None:
    """A rule without a start or an end is always awake."""
    rule = rule_from_dict(ROW | {"starts_us": missing, "ends_us": missing})
    assert (0, 0) == (rule.starts_us, rule.ends_us)


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"mode": "on"}, "mode", "'on' is no mode: expected one of enforce, shadow, off"),
        ({"on_failure": "maybe"}, "on_failure", "'maybe' is no on_failure: expected one of open"),
        ({"algorithm": "magic"}, "algorithm", "'magic' is no algorithm: expected one of"),
        ({"methods": "GET,FETCH"}, "methods", "'FETCH' is no HTTP method"),
        ({"cost": 0}, "cost", "0 is not a cost"),
        ({"cost": -1}, "cost", "-1 is not a cost"),
        ({"cost": 6}, "cost", "6 is more than the limit of 5/s"),
        ({"group": "a b"}, "group", "'a b' is not a group: expected"),
        ({"group": 7}, "group", "7 is not a group: expected"),
        ({"reserve": 1}, "reserve", "1 units are reserved of a limit that nobody shares"),
        ({"reserve": -1}, "reserve", "-1 is not a reserve"),
        ({"reserve": 1.5}, "reserve", "1.5 is not a reserve"),
        ({"reserve": 5, "group": "g"}, "reserve", "5 is not less than the 5 that 5/s holds"),
        ({"reserve": 5, "group": "g", "rate": "9/m;5/s"}, "reserve", "5 is not less than the 5"),
        ({"lease": "many"}, "lease", "'many' is not a lease"),
        ({"lease": 2}, "lease", "2 is too much to take at a time of 5/s.* This limit is too low for one"),
        ({"lease": 11, "rate": "109/s"}, "lease", "11 is too much .* Write at most 10, or leave"),
        ({"lease": 10, "rate": "9/s;100/m"}, "lease", "too much to take at a time of 9/s"),
        ({"lease": 4, "cost": 5, "rate": "100/s"}, "lease", "4 is less than the cost of 5"),
        ({"lease": 2, "mode": "shadow"}, "lease", "2 is too much"),
        ({"rate": "10001/s"}, "rate", "sliding_window takes limits up to 10,000"),
        ({"cost": None}, "rule", "is not a rule"),
        ({"methods": 7}, "rule", "is not a rule"),
        ({"key": None}, "key source", "None is not a key source"),
        ({"rate": None}, "rate", "None is not a rate"),
        ({"rate": "5/x"}, "rate", "'5/x' is not a rate"),
        ({"key": "usr"}, "key", "'usr' is not a key source"),
    ],
)
def test_a_rule_when_a_part_is_wrong_is_refused(change: dict[str, Any], field: str, message: str) -> None:
    """Every refusal is a ValueError that says what was given and what is expected (C28, C135, C136)."""
    with pytest.raises(ValueError, match=message) as caught:
        rule_from_dict(ROW | change)
    if isinstance(caught.value, RuleError):
        assert field == caught.value.field


@pytest.mark.parametrize("name", ["rate", "key", "name"])
def test_a_rule_when_a_part_is_missing_is_refused(name: str) -> None:
    """A row that lacks what a rule needs is named, not guessed (C136)."""
    row = {field: value for field, value in ROW.items() if field != name}
    with pytest.raises(RuleError, match=f"is not a rule: KeyError\\('{name}'\\)"):
        rule_from_dict(row)


def test_a_zero_limit_when_any_cost_is_given_is_taken() -> None:
    """`0/s` always denies, whatever a request costs (C47)."""
    assert rule_from_dict(ROW | {"rate": "0/s", "cost": 3}).rates == (Rate(0, 1_000_000),)


def test_a_limit_when_it_is_the_highest_of_its_algorithm_is_taken() -> None:
    """The exact log holds 10,000 units, and not one more."""
    most = MAX_LIMITS["sliding_window"]
    check_limits((Rate(most, 1),), "sliding_window", most)
    with pytest.raises(RuleError, match="Write a lower limit"):
        check_limits((Rate(most + 1, 1),), "sliding_window", 1)


@pytest.mark.parametrize(
    ("methods", "covered"),
    [
        ("", METHODS - {"OPTIONS"} | {"PROPFIND", "?"}),
        ("post", {"POST"}),
        ("GET", {"GET", "HEAD"}),
        ("HEAD", {"HEAD"}),
        (" get , ,POST,", {"GET", "HEAD", "POST"}),
        ("OPTIONS", {"OPTIONS"}),
    ],
)
def test_a_rule_when_methods_are_named_covers_these(methods: str, covered: set[str]) -> None:
    """Blank is all but OPTIONS, any case is understood, GET includes HEAD (C72, C137)."""
    rule = rule_from_dict(ROW | {"methods": methods})
    asked = METHODS | {"PROPFIND", "?"}
    assert covered == {method for method in asked if rule.covers_method(method)}


def test_methods_when_none_is_named_are_empty() -> None:
    """Blanks and commas alone mean no choice."""
    assert frozenset() == parse_methods(" , ")


def test_a_label_when_the_rule_is_in_code_is_its_group() -> None:
    """Offences of rules in code count under their group, which no admin rule's slug can be."""
    admin, code = rule_from_dict(ROW), Rule(name="login", slot="@login:5/m", rates=(Rate(5, 1),))
    assert ("grab", "@login") == (admin.label, code.label)


def test_a_label_when_rules_share_a_limit_is_the_rules_own_name() -> None:
    """Offences count under the rule that denied, whatever log it shares."""
    assert ("grab", "%shop") == ((rule := rule_from_dict(ROW | {"group": "shop"})).label, rule.slot)


def test_a_slot_when_rules_share_a_limit_is_no_rules_and_no_codes() -> None:
    """Sharing happens only through a group: no name of a rule and no slot of code can be a group's (C22)."""
    slots = {rule_from_dict(ROW | row).slot for row in ({}, {"name": "g"}, {"group": "g"}, {"group": "grab"})}
    assert {"grab", "g", "%g", "%grab"} == slots


@pytest.mark.parametrize("mode", ["shadow", "off"])
def test_a_rule_when_it_is_not_enforced_counts_in_a_log_of_its_own(mode: str) -> None:
    """Watching changes nothing for those who share the limit, and takes no permits ahead."""
    rule = rule_from_dict(ROW | {"group": "shop", "mode": mode, "rate": "100/s", "lease": 10})
    assert ("grab", False, 0 if mode == "shadow" else 10) == (rule.slot, rule.shared, rule.lease)


@pytest.mark.parametrize(("lease", "kept"), [(None, 0), (0, 0), (1, 0), (2, 2), (1_000, 1_000)])
def test_a_lease_when_it_is_of_one_is_none(lease: int | None, kept: int) -> None:
    """One permit at a time is what happens anyway; a tenth of the limit is the most."""
    assert kept == rule_from_dict(ROW | {"rate": "10000/s", "lease": lease}).lease


def test_a_lease_when_over_a_thousand_is_refused() -> None:
    """However high the limit is."""
    with pytest.raises(RuleError, match="Write at most 1000"):
        rule_from_dict(ROW | {"rate": "10000/s", "lease": 1_001})


def test_a_limit_of_zero_when_the_rule_leases_or_reserves_is_taken() -> None:
    """Closing a door for the night needs no other change (C47)."""
    row = ROW | {"rate": "0/s", "group": "shop", "reserve": 4, "lease": 20}
    assert (4, 20) == ((rule := rule_from_dict(row)).reserve, rule.lease)


def test_a_rule_when_copied_works_out_anew_what_it_keeps() -> None:
    """What a rule knows of itself follows its fields."""
    rule = rule_from_dict(ROW | {"group": "shop"})
    watching = replace(rule, mode="shadow", sources=(Source("user"),))
    assert ((False, True, False), (True, False, True)) == tuple(
        (r.shadow, r.shared, r.needs_user) for r in (rule, watching)
    )
