"""The deny cache against Redis itself: with it and without it, the same decisions at the same instants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratelimit_app.core.algorithms import ALGORITHMS
from ratelimit_app.core.decision import Decision, Verdict
from ratelimit_app.core.penalty_box import PenaltyBox, Terms
from ratelimit_app.core.rules import Rule, rule_from_dict
from tests.integration.driven import Clock, Process, new_keys

SECOND = 1_000_000
IDENTITIES = ("user:1", "user:2", "ip:203.0.113.9")
RATES = ("2/s", "5/s", "3/10s", "1/m", "0/s", "2/s;5/m", "150/s")


def rule(name: str = "grab", **fields: Any) -> Rule:
    """Make a rule."""
    return rule_from_dict({"name": name, "key": "ip", "rate": "2/s"} | fields)


@dataclass
class Pair:
    """Two processes at the same instants, each with its own Redis keys: one remembers, one asks every time."""

    valkey: Any
    clock: Clock = field(default_factory=Clock)
    rules: tuple[Rule, ...] = (rule(),)

    def __post_init__(self) -> None:
        self.remembering = Process(self.clock, new_keys())
        self.asking = Process(self.clock, new_keys(), size=0)

    def both(self) -> tuple[Process, Process]:
        """Give both."""
        return self.remembering, self.asking

    def ask(self, identity: str, cost: int) -> tuple[Decision, Decision]:
        """Ask both the same."""
        one, other = (process.ask(identity, *self.rules, cost=cost) for process in self.both())
        return one, other

    def reset(self, identity: str) -> None:
        """Delete the logs, as `reset` does, and tell the process that remembers."""
        for process in self.both():
            for made in self.rules:
                for number in range(len(made.rates)):
                    name = process.keys.rule_name(made.slot, number)
                    self.valkey.delete(process.keys.log(identity, name))
            process.local().denials.forget([identity])

    def ban(self, identity: str, seconds: int) -> None:
        """Write a mark, as the publisher does, and tell the process that remembers."""
        end = self.clock.now_us + seconds * SECOND if seconds else 0
        for process in self.both():
            self.valkey.set(process.keys.mark(identity), end)
            process.local().denials.forget([identity])

    def unblock(self, identity: str) -> None:
        """Delete the mark."""
        for process in self.both():
            self.valkey.delete(process.keys.mark(identity))
            process.local().denials.forget([identity])


def told(decision: Decision, cost: int = 1) -> tuple[Any, ...]:
    """
    Give what a caller is told of a decision by one rule.

    The wait for more than one unit may come from the denial of one: then it is the least that has to be waited. What
    remains, and when all is gone, is then what it was when it was denied: smaller requests may have passed since.
    """
    said = (decision.verdict, decision.reason, decision.rule, decision.limit, decision.identity)
    retry, reset = decision.retry_after, decision.reset_after
    if cost > 1 and not decision.allowed:
        return (*said, retry is None)
    wait = retry if retry is None else pytest.approx(retry, abs=2e-6)
    return (*said, decision.remaining, wait, pytest.approx(reset, abs=2e-6))


ASK = st.tuples(st.just("ask"), st.sampled_from(IDENTITIES), st.integers(1, 3))
WAIT = st.tuples(
    st.just("wait"), st.sampled_from([1, 999, 100_000, 499_999, SECOND, 7 * SECOND, 61 * SECOND])
)
RULE = st.fixed_dictionaries(
    {"rate": st.sampled_from(RATES), "algorithm": st.sampled_from(sorted(ALGORITHMS))},
    optional={"burst": st.integers(1, 6), "cost": st.just(1)},
)
STEPS = st.lists(
    ASK
    | ASK
    | ASK
    | ASK
    | ASK
    | WAIT
    | st.tuples(st.just("wait_for_room"), st.sampled_from([-1, 0, 1]))
    | st.tuples(st.just("change"), RULE)
    | st.tuples(st.just("reset"), st.sampled_from(IDENTITIES))
    | st.tuples(st.just("ban"), st.sampled_from(IDENTITIES), st.sampled_from([0, 1, 30]))
    | st.tuples(st.just("unblock"), st.sampled_from(IDENTITIES)),
    min_size=30,
    max_size=60,
)


def _run(pair: Pair, steps: list[tuple[Any, ...]], second: Rule | None) -> int:
    """Drive both through the same steps; give how many answers came without a call."""
    answered, room_us = 0, 0
    for step in steps:
        if step[0] == "ask":
            before = pair.remembering.calls
            one, other = pair.ask(*step[1:])
            answered += pair.remembering.calls == before
            assert other.verdict == one.verdict
            room_us = pair.clock.us + round((other.retry_after or 0) * SECOND)
            if second is None and len(pair.rules[0].rates) == 1:
                assert told(one, step[2]) == told(other, step[2])
                assert (one.retry_after or 0) <= (other.retry_after or 0) + 2e-6
        elif step[0] == "wait":
            pair.clock.us += step[1]
        elif step[0] == "wait_for_room":
            pair.clock.us = max(pair.clock.us, room_us + step[1])
        elif step[0] == "change":
            pair.rules = (rule(**step[1]), *([second] if second else []))
        else:
            getattr(pair, step[0])(*step[1:])
    return answered


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=RULE, steps=STEPS, with_second=st.booleans())
def test_a_decision_when_remembered_is_that_of_redis(
    valkey: Any, first: dict[str, Any], steps: list[tuple[Any, ...]], with_second: bool
) -> None:
    """C155: any requests, changes, resets, bans and unblocks: the cache changes no verdict and no number."""
    second = rule("slow", rate="4/10s") if with_second else None
    pair = Pair(valkey)
    pair.rules = (rule(**first), *([second] if second else []))
    _run(pair, steps, second)


def test_a_rule_when_changed_beside_a_denial_meets_redis_at_once(valkey: Any) -> None:
    """C155: what a rule finds of its former self is charged at the first call after the change, with or without us."""
    pair, second = Pair(valkey), rule("slow", rate="4/10s")
    pair.rules = (rule(rate="5/s", algorithm="fixed_window"), second)
    assert [True, False] == [pair.ask("user:1", cost)[0].allowed for cost in (3, 2)]
    pair.clock.us += 10 * SECOND - 1
    pair.rules = (rule(rate="3/10s", algorithm="gcra"), second)
    for wait, calls in ((0, 3), (0, 3), (1, 4)):
        pair.clock.us += wait
        one, other = pair.ask("user:1", 2 - wait)
        assert (other.verdict, calls) == (one.verdict, pair.remembering.calls)


def test_a_denial_when_met_at_several_doors_is_remembered_for_all(valkey: Any) -> None:
    """One door's rules do not make a process forget what it knows of another's."""
    process, limited = Process(Clock(), new_keys()), rule(rate="1/h")
    doors = ((limited, rule("basket", rate="5/h")), (limited, rule("catalogue", rate="5/h")))
    answers = [process.ask("user:1", *doors[n]).allowed for n in (0, 0, 1, 0, 1, 1, 0)]
    assert ([True] + [False] * 6, 3) == (answers, process.calls)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_a_denial_when_repeated_costs_no_call_until_its_instant(valkey: Any, algorithm: str) -> None:
    """C157: every algorithm names an instant; one microsecond before it the process still answers, at it Redis does."""
    pair = Pair(valkey)
    pair.rules = (rule(algorithm=algorithm, rate="3/10s"),)
    for _ in range(3):
        assert pair.ask("user:1", 1)[0].allowed
    wait = pair.ask("user:1", 1)[0].retry_after
    assert wait is not None
    calls, began = pair.remembering.calls, pair.clock.us
    for us in (1, round(wait * SECOND) // 2, round(wait * SECOND) - 1):
        pair.clock.us = began + us
        one, other = pair.ask("user:1", 1)
        assert (Verdict.LIMITED, calls) == (one.verdict, pair.remembering.calls)
        assert told(one) == told(other)
    pair.clock.us = began + round(wait * SECOND)
    one, other = pair.ask("user:1", 1)
    assert (True, True) == (one.allowed, other.allowed)


def test_a_denial_when_the_rule_ends_ends_with_it(valkey: Any) -> None:
    """Nobody is denied by a rule that is over."""
    pair = Pair(valkey)
    pair.rules = (rule(rate="1/h", ends_us=pair.clock.now_us + 5 * SECOND),)
    assert [True, False] == [pair.ask("user:1", 1)[0].allowed for _ in range(2)]
    pair.clock.us += 5 * SECOND - 1
    assert not pair.ask("user:1", 1)[0].allowed
    pair.clock.us += 1
    assert pair.ask("user:1", 1)[0].allowed


def test_a_denial_when_it_was_for_more_says_nothing_of_less(valkey: Any) -> None:
    """Three units did not fit; one does."""
    pair = Pair(valkey)
    pair.rules = (rule(rate="3/m"),)
    assert pair.ask("user:1", 2)[0].allowed
    assert not pair.ask("user:1", 2)[0].allowed
    assert not pair.ask("user:1", 3)[0].allowed
    assert pair.ask("user:1", 1)[0].allowed


def test_a_ban_when_known_costs_no_call_until_its_end(valkey: Any) -> None:
    """One trip at most for each banned identity; then the process answers by itself."""
    pair = Pair(valkey)
    pair.ban("user:1", 30)
    for _ in range(3):
        one, other = pair.ask("user:1", 1)
        assert told(one) == told(other)
        assert one.verdict is Verdict.BLOCKED
    assert 1 == pair.remembering.calls
    pair.clock.us += 30 * SECOND
    assert pair.ask("user:1", 1)[0].allowed


def test_a_user_when_banned_meets_the_ban_though_the_address_is_limited(valkey: Any) -> None:
    """A denial holds for the marks that were clean with it: another user's mark is read."""
    process = Process(Clock(), new_keys())
    limited = rule(rate="1/h")
    process.ask("ip:203.0.113.9+user:1", limited)
    assert process.ask("ip:203.0.113.9+user:1", limited).verdict is Verdict.LIMITED
    valkey.set(process.keys.mark("user:1"), 0)
    process.local().denials.forget(["user:1"])
    assert process.ask("ip:203.0.113.9+user:1", limited).verdict is Verdict.BLOCKED


def test_a_denial_when_asked_before_a_reset_is_not_remembered_after_it(valkey: Any) -> None:
    """An answer that was on its way when its log was reset tells of the past."""
    process = Process(Clock(), new_keys())
    limited = rule(rate="1/h")
    process.ask("user:1", limited)
    local, forget = process.local(), process.local().denials.forget
    # The reset comes while the call is on its way: after the question was made, before the answer is kept.
    process.local = lambda: (forget(["user:1"]) if process.calls == 2 else None, local)[1]  # type: ignore[method-assign]
    assert not process.ask("user:1", limited).allowed
    valkey.delete(process.keys.log("user:1", process.keys.rule_name("grab")))
    assert process.ask("user:1", limited).allowed


def test_the_penalty_box_when_full_answers_though_there_is_room(valkey: Any) -> None:
    """LOCAL_BLOCK_*: three denials in ten seconds, and the process itself answers 429 for five minutes."""
    clock = Clock()
    process = Process(clock, new_keys(), penalties=PenaltyBox(100, Terms(3, 10.0, 300.0)))
    limited = rule(rate="1/s")
    assert [True, False, False, False] == [process.ask("user:1", limited).allowed for _ in range(4)]
    clock.us += 2 * SECOND
    calls = process.calls
    decision = process.ask("user:1", limited)
    assert (Verdict.LIMITED, calls) == (decision.verdict, process.calls)
    assert decision.retry_after == pytest.approx(298, abs=0.1)
    assert process.ask("user:2", limited).allowed
    assert process.ask("user:1", rule("other", rate="1/s")).allowed
    assert process.ask("user:1", rule(rate="2/s")).allowed  # whoever changes the rule begins anew
    clock.us += 299 * SECOND
    assert process.ask("user:1", limited).allowed


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_a_limit_of_nothing_when_known_costs_no_call(valkey: Any, algorithm: str) -> None:
    """A door that is shut denies a flood by itself, and never tells anybody to wait."""
    pair = Pair(valkey)
    pair.rules = (rule(rate="0/s", algorithm=algorithm, burst=1),)
    for _ in range(3):
        one, other = pair.ask("user:1", 1)
        assert told(one) == told(other)
        assert (False, None) == (one.allowed, one.retry_after)
    assert 1 == pair.remembering.calls


def test_the_penalty_box_when_its_rule_is_over_is_open(valkey: Any) -> None:
    """Nobody is boxed for a rule that has ended."""
    clock = Clock()
    process = Process(clock, new_keys(), penalties=PenaltyBox(100, Terms(2, 10.0, 300.0)))
    limited = rule(rate="1/h", ends_us=clock.now_us + 5 * SECOND)
    assert [True, False, False] == [process.ask("user:1", limited).allowed for _ in range(3)]
    clock.us += 6 * SECOND
    assert process.ask("user:1", limited).allowed


def test_a_look_when_the_denial_is_known_asks_redis(valkey: Any) -> None:
    """Who looks is told what Redis has; and what a look is told is not remembered."""
    process = Process(Clock(), new_keys())
    limited = rule(rate="1/h")
    process.ask("user:1", limited)
    assert not process.ask("user:1", limited, look=True).allowed
    process.ask("user:1", limited)
    calls = process.calls
    assert not process.ask("user:1", limited, look=True).allowed
    assert calls + 1 == process.calls
