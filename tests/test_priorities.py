"""The worked example of `docs/priorities.md`, run as it is written."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.test import RequestFactory
from django.utils import timezone

from ratelimit_app import check, testing

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "priorities.md").read_text()
GROUP: dict[str, Any] = {"key": "global", "rate": "100/m", "group": "shop"}
RULES = (GROUP | {"name": "browse"}, GROUP | {"name": "pay", "route": "/pay/", "reserve": 40})
ROWS = re.findall(r"^\| (\d+) \| `(\S+)` \| (\d+) \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)


def admitted(path: str, times: int) -> int:
    """Ask some times; gives how often the answer was yes."""
    return sum(check(RequestFactory().post(path)).allowed for _ in range(times))


def test_the_worked_example_when_run_has_the_numbers_of_its_page() -> None:
    """Paying is admitted when browsing no longer is, up to the limit of both; exact to the request."""
    assert 5 == len(ROWS)
    counted = 0
    with testing.override_rules(*RULES):
        for times, path, passed, refused, after in ROWS:
            assert int(times) == int(passed) + int(refused)
            assert int(passed) == admitted(path, int(times)), (times, path)
            counted += int(passed)
            assert int(after) == counted
        with testing.travel(61):
            assert (60, 40) == (admitted("/products/", 61), admitted("/pay/", 41))


def test_a_shared_limit_when_its_rules_match_one_request_charges_it_once() -> None:
    """A payment is a matter of `pay` alone, though `browse` covers every route (C22)."""
    with testing.override_rules(*RULES):
        decision = check(RequestFactory().post("/pay/"))
        assert [("pay", 99)] == [(result.rule, result.remaining) for result in decision.results]
        assert ["browse"] == [result.rule for result in check(RequestFactory().post("/products/")).results]


def test_a_rule_of_a_group_when_it_sleeps_is_stood_in_for_by_the_next() -> None:
    """Before its start and after its end `browse` judges payments, by the clock of the store."""
    start = timezone.now() + timedelta(hours=1)
    pay = RULES[1] | {"starts_at": start, "ends_at": start + timedelta(hours=1)}
    with testing.override_rules(RULES[0], pay):
        for seconds, expected in ((0, "browse"), (5_400, "pay"), (9_000, "browse")):
            with testing.travel(seconds):
                decision = check(RequestFactory().post("/pay/"))
                assert [expected] == [result.rule for result in decision.results]


def test_rules_when_their_names_match_but_no_group_is_named_count_apart() -> None:
    """Sharing happens only through a group: one named like another rule shares nothing with it (C22)."""
    alone, grouped = {"name": "shop", "rate": "2/m"}, {"name": "other", "rate": "2/m", "group": "shop"}
    with testing.override_rules(alone | {"route": "/a/"}, grouped | {"route": "/b/"}):
        assert (2, 2) == (admitted("/a/", 3), admitted("/b/", 3))


def test_rules_of_a_group_when_their_limits_differ_judge_one_count() -> None:
    """What one admits the other counts (C22)."""
    small, large = GROUP | {"name": "small", "rate": "2/m"}, GROUP | {"name": "large", "rate": "5/m"}
    with testing.override_rules(small | {"route": "/a/"}, large | {"route": "/b/"}):
        assert (2, 3, 0) == (admitted("/a/", 3), admitted("/b/", 5), admitted("/a/", 1))


def test_a_rule_of_a_group_when_it_only_watches_takes_nothing_from_the_others() -> None:
    """Its requests are counted in a log of its own."""
    watch = GROUP | {"name": "watch", "rate": "2/m", "route": "/a/", "mode": "shadow"}
    with testing.override_rules(watch, GROUP | {"name": "decide", "rate": "2/m", "route": "/b/"}):
        assert (5, 2) == (admitted("/a/", 5), admitted("/b/", 3))
