"""The demo judges its own limiter: each kind of fault is found, and nothing else is."""

from __future__ import annotations

import json

import pytest

from demo_project.rehearsal.report import Report, as_text, make_report
from demo_project.rehearsal.sale import Banned, Outcome
from demo_project.rehearsal.visitors import Answer, Group, Visitor

SITE = ("127.0.0.1", 1)
REDIS = {"server": "Valkey", "version": "9", "where": "embedded"}
SECOND = 1_000_000

Charge = list[str | int]


def _charge(at: int, limit: int = 2, *, identity: str = "user:1", rule: str = "per-user") -> Charge:
    return [rule, identity, limit, 5 * SECOND, at]


def _answer(
    status: int, *charges: Charge, quantity: int = 1, decided_at: dict[str, int] | None = None
) -> Answer:
    body = json.dumps({"quantity": quantity, "decided_at": decided_at or {}}).encode()
    return Answer(status, {"x-charges": json.dumps(charges)}, body)


def _outcome(*answers: Answer, genuine: bool = False, statuses: tuple[int, ...] = (403, 403)) -> Outcome:
    group = Group("crowd", "does things", genuine)
    visitor = Visitor(SITE, group, "203.0.113.9")
    for answer in answers:
        group.note(visitor, answer)
    return Outcome([group], [Banned("ip:203.0.113.9", "too many", list(statuses))], seconds=2.0)


def _report(outcome: Outcome) -> Report:
    return make_report(outcome, redis=REDIS, duration=3.0)


def test_report_when_all_went_well_then_finds_nothing_and_counts():
    """Two of two admitted, one limited, one banned and turned away: a good sale."""
    outcome = _outcome(_answer(201, _charge(0)), _answer(409, _charge(1)), _answer(429))
    report = _report(outcome)

    assert report["findings"] == []
    assert (report["limit"], report["max_in_window"], report["requests_per_second"]) == (2, 2, 2)
    assert report["groups"]["crowd"] == {
        "about": "does things",
        "asked": 3,
        "got": 1,
        "limited": 1,
        "blocked": 0,
        "statuses": {"201": 1, "409": 1, "429": 1},
    }
    assert "Nothing went over a limit." in as_text(report)


def test_report_when_a_window_held_more_than_the_limit_then_finds_it():
    """One admission too many within five seconds is a fault, wherever among the identities it is."""
    others = [_answer(201, _charge(0, identity="user:2"))]
    outcome = _outcome(*others, *(_answer(201, _charge(at)) for at in (0, 1, 4 * SECOND)))
    report = _report(outcome)

    assert (report["limit"], report["max_in_window"]) == (2, 3)
    assert report["findings"] == ["per-user: 3 admitted in a window of 5.0 s, over the limit 2."]
    assert "FAULT: per-user" in as_text(report)


def test_report_when_a_charge_stands_although_a_later_door_refused_then_it_counts():
    """A request that is refused in the end has been admitted by the rules that charged it."""
    refused = [_answer(429, _charge(at, rule="per-address")) for at in range(3)]

    assert _report(_outcome(*refused))["rules"]["per-address"]["max_in_window"] == 3


def test_report_when_an_order_is_for_several_then_it_counts_that_often_under_the_rules_it_was_charged_to():
    """An order for two takes two from the rules that its receipt names, one from the others."""
    charges = _charge(7, rule="per-user", limit=5), _charge(7, rule="per-address", limit=5)
    report = _report(_outcome(_answer(201, *charges, quantity=2, decided_at={"per-user": 7})))

    assert {name: rule["max_in_window"] for name, rule in report["rules"].items()} == {
        "per-address": 1,
        "per-user": 2,
    }


def _sharing(browsed: list[Answer], paid: list[Answer]) -> Outcome:
    outcome = _outcome(_answer(201, _charge(0)))
    for name, answers, genuine in (("browsing", browsed, False), ("paying", paid, True)):
        group = Group(name, "shares a limit", genuine)
        outcome.groups.append(group)
        for answer in answers:
            group.note(Visitor(SITE, group, "203.0.113.1"), answer)
    return outcome


def _shared(at: int, rule: str) -> Answer:
    return _answer(200, _charge(at, identity="global", rule=rule))


def test_report_when_browsing_was_refused_and_paying_was_not_then_is_content():
    """What the shared limit is for: the two together are within it, and the report says who had to wait."""
    report = _report(_sharing([_shared(0, "browse"), _answer(429)], [_shared(1, "pay")]))

    assert report["findings"] == []
    assert report["shared"] == {
        "limit": 2,
        "period_s": 5.0,
        "max_in_window": 2,
        "browsing": {"asked": 2, "refused": 1},
        "paying": {"asked": 1, "refused": 0},
    }
    assert "paying goes first: at most 2 of the 2" in as_text(report)


def test_report_when_browsing_and_paying_together_went_over_their_limit_then_finds_it():
    """Each rule on its own looks well: the sharing is what is broken."""
    browsed = [_shared(0, "browse"), _shared(1, "browse"), _answer(429)]
    report = _report(_sharing(browsed, [_shared(2, "pay")]))

    assert report["findings"] == [
        "browse and pay together: 3 admitted in a window of 5.0 s, over the limit 2."
    ]


def test_report_when_paying_was_refused_or_browsing_never_then_finds_it():
    """A reserve that does not hold, and a rehearsal that shows nothing, are both faults."""
    refused = _report(_sharing([_shared(0, "browse"), _answer(429)], [_shared(1, "pay"), _answer(429)]))
    idle = _report(_sharing([_shared(0, "browse")], [_shared(1, "pay")]))

    assert refused["findings"] == ["1 requests of genuine users were refused."]
    assert idle["findings"] == ["Nobody who browsed was refused: the shared limit was never reached."]


@pytest.mark.parametrize("status", [403, 429, 503])
def test_report_when_a_genuine_user_was_refused_then_finds_it(status):
    """Whatever the refusal, it is one."""
    report = _report(_outcome(_answer(201, _charge(0)), _answer(status), genuine=True))

    assert report["genuine_denied"] == 1
    assert "1 requests of genuine users were refused." in report["findings"]


@pytest.mark.parametrize(
    ("status", "key"), [(500, "server_errors"), (502, "server_errors"), (0, "unanswered")]
)
def test_report_when_the_server_failed_then_finds_it(status, key):
    """A 5xx is a fault, and so is no answer at all."""
    report = _report(_outcome(_answer(201, _charge(0)), _answer(status)))

    assert report[key] == 1
    assert len(report["findings"]) == 1


def test_report_when_an_order_was_let_through_undecided_then_finds_it():
    """An order that no rule was charged for may have been over any limit: it cannot pass for a good one."""
    report = _report(_outcome(_answer(201, _charge(0)), _answer(201)))

    assert report["findings"] == ["1 orders were let through without a decision of Redis."]


def test_report_when_a_banned_client_was_served_then_finds_it():
    """A ban that lets one request through is none."""
    report = _report(_outcome(_answer(201, _charge(0)), statuses=(403, 409)))

    assert report["findings"] == ["ip:203.0.113.9 was banned and still served."]


def test_report_when_no_rule_charged_and_nobody_was_banned_then_finds_both():
    """A limiter that is switched off does not pass for a good one."""
    report = _report(Outcome([Group("crowd", "does things")], []))

    assert len(report["findings"]) == 2
    assert (report["limit"], report["max_in_window"]) == (None, None)
