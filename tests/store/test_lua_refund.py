"""refund.lua: each charge is given back once, while it counts, and nobody else's with it."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratelimit_app import acquire, arefund, peek, refund, testing
from ratelimit_app.core.rates import Rate
from tests.store import asking
from tests.store.asking import ADMITTED, MINUTE, SECOND, START, Asked, Back, decide, new_key


def charged(key: bytes, now: int, cost: int, limit: int = 10) -> Back:
    """Charge a log, and give what its refund needs."""
    reply = decide(now, Asked(key, Rate(limit, MINUTE), cost))
    assert reply.verdict == ADMITTED
    return Back(key, int(reply.rows[0].at), cost, Rate(limit, MINUTE))


def test_a_charge_when_refunded_is_free_again(valkey: Any) -> None:
    """All units of a charge come back, and the entries of others stay."""
    key = new_key()
    charged(key, START, 2)
    mine = charged(key, START, 3)
    charged(key, START + 1, 1)
    assert (6, 3, 3) == (valkey.zcard(key), asking.refund(START + SECOND, mine), valkey.zcard(key))


def test_a_charge_when_refunded_twice_comes_back_once(valkey: Any) -> None:
    """The second refund of one charge finds nothing to give back."""
    key = new_key()
    charged(key, START, 1)
    mine = charged(key, START, 2)
    assert [2, 0] == [asking.refund(START, mine) for _ in range(2)]
    assert valkey.zcard(key) == 1


def test_a_charge_when_its_window_is_over_does_not_come_back(valkey: Any) -> None:
    """What has left the window counts no more, so there is nothing to give back; a microsecond before, there is."""
    early, late = new_key(), new_key()
    charges = charged(early, START, 1), charged(late, START, 1)
    assert asking.refund(START + MINUTE - 1, charges[0]) == 1
    assert asking.refund(START + MINUTE, charges[1]) == 0


def test_charges_of_several_rules_when_refunded_come_back_together(valkey: Any) -> None:
    """One call gives back what one decision charged, whatever of it is still there."""
    keys = [new_key() for _ in range(3)]
    charges = [charged(key, START, cost) for cost, key in enumerate(keys, 1)]
    valkey.delete(keys[0])
    assert asking.refund(START, *charges) == 5
    assert [0, 0, 0] == [valkey.zcard(key) for key in keys]


def test_a_log_of_another_type_when_refunded_counts_as_absent(valkey: Any) -> None:
    """A key that is no log gives nothing back and is left alone."""
    key, other = new_key(), new_key()
    valkey.set(key, "x")
    assert asking.refund(START, Back(key, START, 1, Rate(10, MINUTE)), charged(other, START, 1)) == 1
    assert valkey.get(key) == b"x"


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 2 * SECOND), st.integers(1, 3)), min_size=1, max_size=12),
    st.data(),
)
def test_random_charges_when_some_are_refunded_leave_the_rest(
    valkey: Any, steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    """After any refunds the log holds the units of the other charges, at the times that it gave them."""
    key, now, charges = new_key(), START, []
    for step, cost in steps:
        now += step
        charges.append(charged(key, now, cost, limit=100))
    back = data.draw(st.lists(st.sampled_from(range(len(charges))), unique=True))
    for n in back:
        assert charges[n].units == asking.refund(now, charges[n])
    kept = [
        first + unit
        for n, (_, first, units, *_) in enumerate(charges)
        if n not in back
        for unit in range(units)
    ]
    assert sorted(kept) == [int(score) for _, score in valkey.zrange(key, 0, -1, withscores=True)]


def test_a_decision_when_refunded_lets_another_pass() -> None:
    """refund() frees what acquire() took: once, and nothing for a denial."""
    taken = acquire("user:refund", "2/m", group="refund", cost=2)
    denied = acquire("user:refund", "2/m", group="refund")
    assert (True, False) == (taken.allowed, denied.allowed)
    assert [0, 2, 0] == [refund(denied), refund(taken), refund(taken)]
    assert peek("user:refund", "2/m", group="refund").remaining == 2


async def test_a_decision_when_refunded_by_a_task_comes_back_once() -> None:
    """arefund() is refund(), for tasks; each charge comes back once, whichever is asked."""
    taken = acquire("user:arefund", "2/m", group="refund")
    assert [1, 0] == [await arefund(taken), await arefund(taken)]
    assert refund(taken) == 0


def test_a_decision_when_its_window_is_over_gives_nothing_back() -> None:
    """refund() after the window changes nothing."""
    taken = acquire("user:late", "2/m", group="refund")
    with testing.travel(61):
        assert refund(taken) == 0
