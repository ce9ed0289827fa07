"""Groups: rules that share one limit agree on what counts, keep their reserves, and one decides a request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_app.core.groups import deciding, join, share
from ratelimit_app.core.rules import Rule, RuleError, rule_from_dict


def rule(name: str, **fields: Any) -> Rule:
    """A rule of the group `shop`, unless another is named."""
    return rule_from_dict({"name": name, "rate": "100/m", "key": "ip", "group": "shop"} | fields)


def shared(*rules: Rule) -> tuple[dict[str, int], list[str]]:
    """Give what is held from each rule that stays, and what was said of the others."""
    refused: list[str] = []
    kept = share(rules, lambda rule, error: refused.append(f"{rule.name}: {error}"))
    return {rule.name: rule.held for rule in kept}, refused


def test_a_reserve_when_shared_is_held_from_the_other_rules_only() -> None:
    """What `pay` keeps, `browse` may not use; each rule is held by the sum of the others' reserves."""
    rules = rule("browse"), rule("pay", reserve=30), rule("ship", reserve=20), rule("alone", group="")
    assert ({"browse": 50, "pay": 20, "ship": 30, "alone": 0}, []) == shared(*rules)


def test_a_reserve_when_its_rule_sleeps_is_held_all_the_same() -> None:
    """A reserve counts while its rule is enforced, whatever its schedule."""
    asleep = rule("pay", reserve=30, starts_us=5, ends_us=6)
    assert 30 == shared(rule("browse"), asleep)[0]["browse"]


def test_a_reserve_when_its_rule_only_watches_holds_nothing() -> None:
    """Watching changes nothing for the others, and shows what enforcing would deny."""
    rules = rule("browse", mode="shadow"), rule("pay", reserve=30), rule("ship", reserve=20, mode="shadow")
    assert ({"browse": 30, "pay": 0, "ship": 30}, []) == shared(*rules)


@pytest.mark.parametrize("rate", ["20/m", "0/m"])
def test_what_is_held_when_a_watching_rule_has_less_is_no_more_than_its_limit(rate: str) -> None:
    """No rule ends up with less than nothing."""
    held, _ = shared(rule("browse", rate=rate, mode="shadow"), rule("pay", reserve=30))
    assert int(rate.partition("/")[0]) == held["browse"]


def test_a_limit_of_zero_when_its_group_has_reserves_is_taken() -> None:
    """Switching one rule of a group to `0/m` at midnight is not refused for another's reserve."""
    assert ({"browse": 0, "pay": 0}, []) == shared(rule("browse", rate="0/m"), rule("pay", reserve=30))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"key": "user"}, "key (ip and user)"),
        ({"rate": "100/2m"}, "periods (60 s and 120 s)"),
        ({"rate": "100/m;5/s"}, "periods (60 s and 60 s, 1 s)"),
        ({"burst": 9}, "burst (the limit and 9)"),
        ({"key": "user", "burst": 9}, "key (ip and user), burst (the limit and 9)"),
    ],
)
def test_a_rule_when_it_counts_otherwise_than_its_group_is_refused(change: dict[str, Any], said: str) -> None:
    """The first by name stands; the other is refused with what differs, and named."""
    held, refused = shared(rule("pay", **change), rule("browse"), rule("watch", mode="shadow", **change))
    assert {"browse": 0, "watch": 0} == held
    assert 1 == len(refused)
    assert refused[0].startswith("pay: 'pay' cannot share the limit of the group 'shop' with 'browse'")
    assert f"differ in {said}." in refused[0]


def test_a_rule_when_its_algorithm_is_another_is_refused() -> None:
    """One key holds the state of one algorithm."""
    _, refused = shared(rule("a"), replace(rule("b"), algorithm="gcra"))
    assert "algorithm (sliding_window and gcra)" in refused[0]


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket", "gcra"])
def test_rules_when_what_they_share_drains_have_one_limit(algorithm: str) -> None:
    """The limit of a meter is the speed at which it drains, and one level cannot drain at two speeds."""
    meter = replace(rule("a"), algorithm=algorithm)
    assert [] == shared(meter, replace(meter, name="b", reserve=5))[1]
    slower = replace(rule("b", rate="50/m"), algorithm=algorithm)
    assert "differ in rate (100/m and 50/m)." in shared(meter, slower)[1][0]


def test_reserves_when_a_meter_has_a_burst_are_parts_of_the_burst() -> None:
    """A bucket holds its burst, whatever flows in."""
    meter = replace(rule("a"), algorithm="token_bucket", burst=10)
    assert [] == shared(meter, replace(meter, name="b", reserve=9))[1]
    assert "of the 10 that its rate 100/m holds" in shared(meter, replace(meter, name="b", reserve=10))[1][0]


def test_rules_when_only_their_limits_differ_share() -> None:
    """Each rule judges the shared count by its own limit."""
    assert ({"browse": 0, "pay": 0}, []) == shared(rule("browse", rate="10/m"), rule("pay", rate="50/m"))


@pytest.mark.parametrize(
    "rules",
    [
        (rule("a", reserve=60), rule("b", reserve=41)),
        (rule("a", rate="20/m"), rule("b", reserve=20)),
        (rule("a", cost=11), rule("b", reserve=90)),
    ],
)
def test_reserves_when_they_leave_a_rule_no_room_are_refused(rules: tuple[Rule, ...]) -> None:
    """Nobody's reserve turns another rule into one that can never pass."""
    held, refused = shared(*rules)
    assert ["a"] == list(held)
    assert "Write lower reserves, or a higher limit." in refused[0]


def test_reserves_when_they_take_the_whole_limit_are_taken() -> None:
    """As long as every rule has room for one request of its own."""
    assert ({"a": 40, "b": 60}, []) == shared(rule("a", reserve=60), rule("b", reserve=40))


def test_newcomers_when_they_fit_the_members_join() -> None:
    """New rules are held to the members and to each other; members that do not fit among themselves do not matter."""
    members = rule("a"), rule("b", burst=5)
    join(members, [rule("c"), rule("d", reserve=9), rule("e", group="other", burst=7)])
    for bad in ([rule("c", burst=5)], [rule("c", reserve=60), rule("d", reserve=60)]):
        with pytest.raises(RuleError, match="group 'shop'"):
            join(members, bad)


def test_the_rule_that_decides_when_several_match_has_the_greatest_reserve() -> None:
    """Then the lowest limit, then the first by name; rules outside the group and watchers all stay."""
    pay, browse = rule("pay", reserve=9), rule("browse")
    watch, other = rule("watch", mode="shadow"), rule("other", group="")
    assert [watch, pay, other] == deciding([browse, watch, pay, other])
    low, high = rule("low", rate="10/m"), rule("high")
    assert [low] == deciding([high, low, browse])
    assert [browse] == deciding([high, browse])


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 2)), min_size=1, max_size=5))
def test_the_rule_that_decides_when_rules_sleep_is_the_first_awake(
    bounds: list[tuple[int, int, int]],
) -> None:
    """At every instant exactly the highest of the rules that are awake decides, and none where all sleep."""
    rules = [
        rule(str(n), starts_us=start, ends_us=end, reserve=reserve)
        for n, (start, end, reserve) in enumerate(bounds)
    ]
    turns = deciding(rules)
    for now in range(8):
        awake = sorted((r for r in rules if is_awake(r, now)), key=lambda r: (-r.reserve, r.name))
        assert [r.name for r in awake[:1]] == [r.name for r in turns if is_awake(r, now)]


def is_awake(rule: Rule, now: int) -> bool:
    """Whether a rule judges at this instant."""
    return rule.starts_us <= now and (not rule.ends_us or now < rule.ends_us)
