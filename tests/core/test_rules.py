"""Rules: what a snapshot's row becomes, and what is refused with the name of the wrong part."""

from __future__ import annotations

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
    }
    row |= {"mode": "shadow", "on_failure": "closed", "starts_us": 5, "ends_us": 9, "rate": "5/s;9/m"}
    rule = rule_from_dict(row)
    assert (("user", "ip"), "sale", "/api/") == (tuple(s.kind for s in rule.sources), rule.scope, rule.route)
    assert frozenset({"GET", "HEAD", "POST"}) == rule.methods
    assert (4, 2, "closed", 5, 9) == (rule.burst, rule.cost, rule.on_failure, rule.starts_us, rule.ends_us)
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
