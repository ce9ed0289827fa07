"""Decisions: frozen, and described by the rule that matters most."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from ratelimit_app.core.decision import Charge, Decision, Reason, RuleResult, Verdict, ruling


def result(rule: str, remaining: int = 1, retry: float | None = 0.0, **changes: object) -> RuleResult:
    """Give a result of limit 10; denied where it says so or has to wait."""
    made = RuleResult(
        rule=rule,
        identity="ip:203.0.113.9",
        allowed=retry == 0.0,
        verdict=Verdict.ALLOWED if retry == 0.0 else Verdict.LIMITED,
        reason=Reason.WITHIN_LIMIT if retry == 0.0 else Reason.OVER_LIMIT,
        limit=10,
        period=60.0,
        remaining=remaining,
        retry_after=retry,
        reset_after=1.0,
        at=1,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([], None),
        ([result("a")], "a"),
        ([result("a", 5), result("b", 2)], "b"),
        ([result("a", 5), result("b", 4, limit=4)], "a"),
        ([result("a", 0), result("b", 0, 3.0)], "b"),
        ([result("a", 0, 3.0), result("b", 0, 9.0), result("c", 0, 1.0)], "b"),
        ([result("a", 0, 9.0), result("b", 10, None)], "b"),
        ([result("a", 0, 9.0, shadow=True), result("b", 5)], "b"),
        ([result("a", 0, 9.0, shadow=True)], None),
        ([result("a", 0, 2.0, limit=0), result("b", 5)], "a"),
        ([result("a", 0, limit=0), result("b", 5)], "a"),
    ],
)
def test_the_ruling_result_when_several_speak_is_the_longest_wait_then_the_least_left(
    results: list[RuleResult], expected: str | None
) -> None:
    """Never beats every wait, a wait beats what is left, the smallest part left beats the rest; shadows do not speak (C83)."""
    found = ruling(results)
    assert expected == (found.rule if found else None)


def test_a_decision_when_asked_for_its_ruling_uses_its_results() -> None:
    """Doors read the result that describes the request from the decision itself."""
    denied = result("b", 0, 3.0)
    decision = Decision(False, Verdict.LIMITED, Reason.OVER_LIMIT, results=(result("a"), denied))
    assert decision.ruling is denied


def test_a_decision_when_changed_refuses() -> None:
    """A decision is a fact: nobody rewrites it between two doors."""
    decision = Decision(True, Verdict.ALLOWED, Reason.NO_RULE)
    with pytest.raises(FrozenInstanceError):
        decision.allowed = False  # type: ignore[misc]


def test_two_decisions_when_only_their_charges_differ_are_equal() -> None:
    """What `refund` needs is no part of the answer, and does not show in logs."""
    one = Decision(True, Verdict.ALLOWED, Reason.NO_RULE, charges=[Charge(0, b"key", 1, 1, 1, 1)])
    assert one == Decision(True, Verdict.ALLOWED, Reason.NO_RULE)
    assert "charges" not in repr(one)


def test_verdicts_and_reasons_when_compared_with_text_are_equal() -> None:
    """Projects may compare with the words of the contract."""
    assert ["allowed", "limited", "blocked", "unavailable"] == list(Verdict)
    assert {
        "within_limit",
        "over_limit",
        "allowlisted",
        "blacklisted",
        "no_rule",
        "disabled",
        "store_unavailable",
    } == set(Reason)
