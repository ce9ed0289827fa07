"""What a process grants by itself: the reference algorithms, by its share, all or nothing, bounded."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_app.core import outage
from ratelimit_app.core.algorithms import ALGORITHMS
from ratelimit_app.core.calls import ROW, ROWS, Demand
from ratelimit_app.core.keys import Keys
from ratelimit_app.core.outage import OutageLimits
from ratelimit_app.core.plans import Plan
from ratelimit_app.core.rates import parse_rate
from ratelimit_app.core.rules import Rule, rule_from_dict

KEYS = Keys("rl", b"secret")
NOW = 1_000_000_000_000
WHO = "ip:203.0.113.9"


def rule(name: str = "r", rate: str = "5/s", **row: Any) -> Rule:
    """Make a rule."""
    return rule_from_dict({"name": name, "rate": rate, "key": "ip"} | row)


def demands(*rules: Rule, who: str = WHO, cost: int = 1) -> list[Demand]:
    """Ask rules for one request."""
    return [
        Demand(part, who, KEYS.base(who) + part.name, part.cost * cost) for part in Plan(rules, KEYS).parts
    ]


def rows(row: tuple[float, ...]) -> list[tuple[float, ...]]:
    """Cut what each rule said out of a reply."""
    return [row[at : at + ROW] for at in range(ROWS, len(row), ROW)]


def passes(limits: OutageLimits, *rules: Rule, at: int = NOW, share: float = 1.0, **more: Any) -> bool:
    """Whether a request passes."""
    return limits.judge(demands(*rules, **more), at, share)[0] == 0


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
@given(
    st.lists(st.tuples(st.integers(0, 1_500_000), st.integers(1, 4)), min_size=1, max_size=40),
    st.sampled_from(["5/s", "3/500ms", "7/3s"]),
)
def test_a_timeline_when_decided_alone_is_what_the_reference_says(
    algorithm: str, timeline: list[tuple[int, int]], rate: str
) -> None:
    """With all of the limit one process is the specification itself, field by field, for every algorithm (C130)."""
    limits, state, now = OutageLimits(0), None, NOW
    asked = rule(rate=rate, algorithm=algorithm)
    burst = parse_rate(rate).limit if algorithm in {"token_bucket", "leaky_bucket", "gcra"} else None
    for pause, cost in timeline:
        now += pause
        state, expected = ALGORITHMS[algorithm](state, parse_rate(rate), now, cost, burst=burst)
        (said,) = rows(limits.judge(demands(asked, cost=cost), now, 1.0))
        retry = -1 if expected.retry_after_us is None else expected.retry_after_us
        assert (
            (0 if expected.allowed else 1),
            expected.remaining,
            retry,
            expected.reset_after_us,
            expected.at_us,
        ) == said


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
@pytest.mark.parametrize(("share", "granted"), [(1.0, 10), (0.5, 5), (0.25, 2), (0.01, 1), (0.0, 0)])
def test_a_share_when_granted_is_rounded_down_and_at_least_one(
    algorithm: str, share: float, granted: int
) -> None:
    """Ten processes with a tenth each grant the limit together; a share of nothing is nothing."""
    limits, asked = OutageLimits(0), rule(rate="10/m", algorithm=algorithm)
    assert granted == sum(passes(limits, asked, share=share) for _ in range(20))


def test_a_request_when_it_costs_more_than_the_share_takes_all_of_it() -> None:
    """What could pass by the whole limit is not shut out for the outage; what never could stays out."""
    limits, asked = OutageLimits(0), rule(rate="10/s", cost=4)
    assert passes(limits, asked, share=0.2)
    assert not passes(limits, asked, share=0.2)
    assert passes(limits, asked, share=0.2, at=NOW + 2_000_000)
    assert not passes(limits, rule(rate="3/s", name="low"), cost=4)


def test_rules_when_one_denies_charge_none() -> None:
    """All or nothing, as in Redis; the wait is that of the rule that denied."""
    limits = OutageLimits(0)
    wide, narrow = rule("wide", "5/s"), rule("narrow", "1/s")
    assert passes(limits, wide, narrow)
    reply = limits.judge(demands(wide, narrow), NOW + 1, 1.0)
    assert 1 == reply[0]
    assert [(0, 4), (1, 0)] == [said[:2] for said in rows(reply)]
    assert [True] * 4 + [False] == [passes(limits, wide, at=NOW + 2) for _ in range(5)]


def test_a_look_when_it_is_made_charges_nothing() -> None:
    """It tells what is left, however often."""
    limits, asked = OutageLimits(0), rule(rate="2/s")
    assert passes(limits, asked)
    for _ in range(3):
        assert [(0, 1)] == [said[:2] for said in rows(limits.judge(demands(asked), NOW, 1.0, look=True))]
    assert passes(limits, asked)
    assert [(1, 0)] == [said[:2] for said in rows(limits.judge(demands(asked), NOW, 1.0, look=True))]


def test_a_shadow_rule_when_over_denies_nobody_and_a_sleeping_one_says_nothing() -> None:
    """Modes and schedules hold without Redis too."""
    limits = OutageLimits(0)
    watched, later = rule("w", "1/s", mode="shadow"), rule("l", "1/s", starts_us=NOW + 10)
    replies = [limits.judge(demands(watched, later), NOW, 1.0) for _ in range(2)]
    assert [0, 0] == [reply[0] for reply in replies]
    assert [[0, 2], [1, 2]] == [[said[0] for said in rows(reply)] for reply in replies]


def test_identities_when_many_are_bounded_and_the_latest_stay() -> None:
    """A flood of addresses takes no more memory than the table has room for (C130, C141)."""
    limits, asked = OutageLimits(0), rule(rate="1/h")
    for number in range(outage.LEAST + 500):
        assert passes(limits, asked, who=f"user:{number}")
    assert outage.LEAST == len(limits)
    assert not passes(limits, asked, who=f"user:{outage.LEAST + 499}")
    assert passes(limits, asked, who="user:0")


def test_stamps_when_many_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long logs count by what they hold, not as one."""
    monkeypatch.setattr(outage, "MAX_STAMPS", 1_000)
    limits, asked = OutageLimits(0), rule(rate="300/h")
    for number in range(5):
        assert passes(limits, asked, who=f"user:{number}", cost=300)
    assert 3 == len(limits)
    assert not passes(limits, asked, who="user:4")


def test_what_is_forgotten_counts_from_nothing() -> None:
    """A reset, by the whole or by a part; everything when Redis is back; a fork begins with nothing."""
    limits, asked = OutageLimits(0), rule(rate="1/h")
    joined = "user:7+ip:203.0.113.9"
    for who in (WHO, joined, "user:8"):
        assert passes(limits, asked, who=who)
        assert not passes(limits, asked, who=who)
    limits.forget([WHO])
    assert [True, True, False] == [passes(limits, asked, who=who) for who in (WHO, joined, "user:8")]
    limits.clear()
    assert passes(limits, asked, who="user:8")
    limits.after_fork()
    assert 0 == len(limits)
    assert passes(limits, asked, who="user:8")


@pytest.mark.usefixtures("_restless")
def test_threads_when_they_ask_at_once_are_granted_the_limit_and_no_more() -> None:
    """Sixteen threads, one key: exactly the limit (C58)."""
    limits, asked, passed = OutageLimits(0), rule(rate="100/h"), list[bool]()

    def ask() -> None:
        passed.extend(passes(limits, asked) for _ in range(50))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (100, 800) == (sum(passed), len(passed))
