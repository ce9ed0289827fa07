"""Headers: whole seconds, rounded up; what is left is never negative; names cannot break out."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_app.core.algorithms import State, sliding_window
from ratelimit_app.core.decision import Reason, RuleResult, Verdict
from ratelimit_app.core.headers import limit_headers, retry_after, seconds
from ratelimit_app.core.rates import Rate


def result(**changes: object) -> RuleResult:
    """Give a result of a rule `grab` of 5/s with 4 left."""
    fields: dict[str, object] = {
        "rule": "grab",
        "identity": "ip:203.0.113.9",
        "allowed": True,
        "verdict": Verdict.ALLOWED,
        "reason": Reason.WITHIN_LIMIT,
        "limit": 5,
        "period": 1.0,
        "remaining": 4,
        "retry_after": 0.0,
        "reset_after": 0.7,
        "at": 1,
    }
    return RuleResult(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wait", "expected"), [(1.2, 2), (0.3, 1), (0.0, 1), (-5.0, 1), (2.0, 2), (60.000001, 61), (1e9, 10**9)]
)
def test_a_wait_when_written_is_whole_and_rounded_up(wait: float, expected: int) -> None:
    """1.2 s are 2, 0.3 s are 1; never 0, never a fraction (C65, C68)."""
    assert expected == seconds(wait)
    assert {"Retry-After": str(expected)} == retry_after(wait)


def test_retry_after_when_waiting_never_helps_is_absent() -> None:
    """No number is better than a wrong one (C81)."""
    assert {} == retry_after(None)


@given(st.floats(0, 1e9))
def test_retry_after_when_written_is_digits_alone(wait: float) -> None:
    """Integer text only, and never less than the wait (C65, C68)."""
    text = retry_after(wait)["Retry-After"]
    assert re.fullmatch(r"[0-9]+", text)
    assert int(text) >= wait


@pytest.mark.parametrize(
    ("style", "names"),
    [
        ("ietf", ["RateLimit-Policy", "RateLimit"]),
        ("legacy", ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"]),
        (None, []),
    ],
)
def test_headers_when_a_style_is_chosen_are_of_that_style(style: str | None, names: list[str]) -> None:
    """`HEADERS` decides which forms are written."""
    assert names == list(limit_headers(result(), style))
    if style:
        assert set(names) < set(limit_headers(result(), "both"))


def test_headers_when_written_have_the_contract_form() -> None:
    """`"name";q=5;w=1` and `"name";r=4;t=1`; the legacy reset is seconds from now as well."""
    expected = {
        "RateLimit-Policy": '"grab";q=5;w=1',
        "RateLimit": '"grab";r=4;t=1',
        "X-RateLimit-Limit": "5",
        "X-RateLimit-Remaining": "4",
        "X-RateLimit-Reset": "1",
    }
    assert expected == limit_headers(result(), "both")


def test_headers_when_the_window_is_empty_or_short_are_not_negative() -> None:
    """A reset in the past is 0, and a window below a second is written as one."""
    headers = limit_headers(result(reset_after=-3.0, period=0.5), "both")
    assert ("0", '"grab";q=5;w=1') == (headers["X-RateLimit-Reset"], headers["RateLimit-Policy"])


@given(st.text(max_size=40))
def test_a_rule_name_when_hostile_stays_inside_its_quotes(name: str) -> None:
    """Quotes, backslashes, line ends and other alphabets do not break the structured field."""
    headers = limit_headers(result(rule=name), "ietf")
    assert all(re.fullmatch(r'"(?:[ !#-\[\]-~]|\\["\\])*";[a-z0-9;=]+', value) for value in headers.values())


def test_remaining_when_a_limit_of_three_is_spent_counts_down_to_zero() -> None:
    """Limit 3 gives 2, 1, 0, 0, 0 (C69)."""
    log: State | None = ()
    seen = []
    for now in range(1, 6):
        log, outcome = sliding_window(log, Rate(3, 60_000_000), now)
        seen.append(limit_headers(result(remaining=outcome.remaining), "legacy")["X-RateLimit-Remaining"])
    assert ["2", "1", "0", "0", "0"] == seen


@given(st.lists(st.integers(0, 3_000_000), min_size=1, max_size=20), st.integers(1, 3), st.integers(1, 3))
def test_a_client_when_it_obeys_retry_after_is_admitted(arrivals: list[int], limit: int, cost: int) -> None:
    """Whoever waits as long as the header says is not denied again for that reason (C65)."""
    rate, now = Rate(limit, 2_000_000), 0
    log: State | None = ()
    for arrival in sorted(arrivals):
        now = arrival
        log, outcome = sliding_window(log, rate, now)
    log, outcome = sliding_window(log, rate, now, min(cost, limit))
    if not outcome.allowed:
        assert outcome.retry_after_us is not None
        wait = int(retry_after(outcome.retry_after_us / 1_000_000)["Retry-After"])
        assert sliding_window(log, rate, now + wait * 1_000_000, min(cost, limit))[1].allowed
