"""Leases against Redis itself: several processes with permits of their own, never one too many in any window."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratelimit_app.core.algorithms import ALGORITHMS
from ratelimit_app.core.calls import refund_call
from ratelimit_app.core.decision import Verdict
from ratelimit_app.core.rules import Rule, rule_from_dict
from ratelimit_app.store.gateway import gateway
from tests.integration.driven import Clock, Process, new_keys

if TYPE_CHECKING:
    from ratelimit_app.core.local_answers import Local

SECOND = 1_000_000
LIMIT, LEASE = 40, 4
EXACT = ("sliding_window", "sliding_counter")


def rule(name: str = "sale", **fields: Any) -> Rule:
    """Make a rule for one hot key."""
    row = {"name": name, "key": "global", "rate": f"{LIMIT}/s", "lease": LEASE}
    return rule_from_dict(row | fields)


def give_back(process: Process) -> int:
    """Give back what is void, as the thread beside the requests does."""
    charges = process.local().permits.unused(process.clock())
    return int(gateway().call(refund_call(charges, process.now_us()))) if charges else 0


def fullest(uses: list[int], period_us: int) -> int:
    """Give the most uses of any window `(t - period, t]`."""
    ordered = sorted(uses)
    return max((n + 1 - bisect_right(ordered, at - period_us) for n, at in enumerate(ordered)), default=0)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2), st.sampled_from([0, 1, 900, 10_000, 30_000, 50_000, 400_000]), st.booleans()
    ),
    min_size=40,
    max_size=250,
)


@pytest.mark.parametrize("algorithm", EXACT)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_a_window_when_units_are_leased_never_holds_more_than_the_limit(
    valkey: Any, algorithm: str, steps: list[tuple[int, int, bool]]
) -> None:
    """Strict: counted at the instants of use, whichever process used them, and whatever was given back."""
    clock, keys, sale = Clock(), new_keys(), rule(algorithm=algorithm)
    processes = [Process(clock, keys) for _ in range(3)]
    uses = []
    for number, wait, returns in steps:
        clock.us += wait
        if returns:
            give_back(processes[number])
        if processes[number].ask("global", sale).allowed:
            uses.append(clock.us)
    assert fullest(uses, SECOND) <= LIMIT


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_requests_when_leased_ask_redis_once_for_many(valkey: Any, algorithm: str) -> None:
    """Four requests cost one call; at the tail nobody gets more than the limit, and a meter's drain may go unused."""
    process = Process(Clock(), new_keys())
    assert all(process.ask("global", rule(algorithm=algorithm)).allowed for _ in range(2 * LEASE))
    assert 2 == process.calls
    admitted = sum(process.ask("global", rule(algorithm=algorithm)).allowed for _ in range(LIMIT))
    unused = 0 if algorithm.startswith(("sliding", "fixed")) else LIMIT // 20
    assert LIMIT - 2 * LEASE - unused == admitted
    assert process.ask("global", rule(algorithm=algorithm)).verdict is Verdict.LIMITED


def test_permits_when_their_lease_ends_are_not_used_and_go_back(valkey: Any) -> None:
    """A twentieth of the period: then Redis is asked again, and what was left counts no more."""
    clock, keys = Clock(), new_keys()
    process, other = Process(clock, keys), Process(clock, keys)
    process.ask("global", rule())
    clock.us += SECOND // 20
    assert process.ask("global", rule()).allowed
    assert 2 == process.calls
    assert LEASE - 1 == give_back(process)
    counted = LIMIT - other.ask("global", rule(), look=True).results[0].remaining
    assert 1 + LEASE == counted


def test_a_permit_when_another_rule_denies_is_not_spent(valkey: Any) -> None:
    """All or nothing holds with permits too."""
    process = Process(Clock(), new_keys())
    sale, mine = rule(), rule("mine", rate="1/s", lease=0)
    assert process.ask("global", sale, mine).allowed
    assert [False, False] == [process.ask("global", sale, mine).allowed for _ in range(2)]
    assert all(process.ask("global", sale).allowed for _ in range(LEASE - 1))
    assert process.calls == 2


def test_a_permit_when_refunded_goes_back_by_its_own_stamp(valkey: Any) -> None:
    """`refund` of a decision that used a permit frees exactly one unit."""
    clock, keys = Clock(), new_keys()
    process, other = Process(clock, keys), Process(clock, keys)
    decisions = [process.ask("global", rule()) for _ in range(LEASE)]
    assert [1] * LEASE == [sum(charge.units for charge in one.charges) for one in decisions]
    assert 1 == gateway().call(refund_call(decisions[2].charges, clock.now_us))
    assert LIMIT - LEASE + 1 == other.ask("global", rule(), look=True).results[0].remaining


def test_permits_when_the_rule_changes_are_not_used_under_the_new_one(valkey: Any) -> None:
    """A lower limit holds at once."""
    process = Process(Clock(), new_keys())
    process.ask("global", rule())
    assert not process.ask("global", rule(rate="4/s", lease=0)).allowed
    assert 2 == process.calls


def test_permits_when_the_key_is_reset_are_not_used(valkey: Any) -> None:
    """What was charged in a log that is gone is no permit any more."""
    process = Process(Clock(), new_keys())
    process.ask("global", rule())
    process.local().permits.forget(["global"])
    process.ask("global", rule())
    assert 2 == process.calls


def test_a_request_when_permits_answer_its_rule_is_charged_all_the_same(valkey: Any) -> None:
    """With a mark to look at a call is made without the rule: the decision has its result, its charge and its rule."""
    process = Process(Clock(), new_keys())
    sale = rule(key="user")
    process.ask("user:1", sale)
    decision = process.ask("user:1", sale)
    assert ("sale", 1, 1) == (decision.rule, len(decision.results), len(decision.charges))
    valkey.set(process.keys.mark("user:1"), 0)
    process.local().denials.forget(["user:1"])
    assert process.ask("user:1", sale).verdict is Verdict.BLOCKED


def test_a_denial_when_the_rule_leases_is_remembered_for_a_lease_at_most(valkey: Any) -> None:
    """Permits of others may come back when their lease ends."""
    clock, keys = Clock(), new_keys()
    process, idle = Process(clock, keys), Process(clock, keys)
    hourly = rule(rate=f"{LIMIT}/h")
    idle.ask("global", hourly)
    while process.ask("global", hourly).allowed:
        pass
    clock.us += 180 * SECOND
    assert LEASE - 1 == give_back(idle)
    assert process.ask("global", hourly).allowed


def test_permits_when_asked_for_before_a_reset_are_not_kept_after_it(valkey: Any) -> None:
    """A lease that was on its way when its key was reset is counted nowhere."""
    process = Process(Clock(), new_keys())
    permits = process.local().permits
    local = process.local

    def reset() -> Local:
        """The reset comes while the call is on its way."""
        if process.calls == 1:
            permits.forget(["global"])
        return local()

    process.local = reset  # type: ignore[method-assign]
    process.ask("global", rule())
    process.ask("global", rule())
    assert 2 == process.calls
