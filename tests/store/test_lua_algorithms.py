"""Every algorithm of the script against its reference: random timelines, changes in mid-run, all or none."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratelimit_app.core.algorithms import ALGORITHMS, LARGE, Outcome, State, as_log
from ratelimit_app.core.algorithms import refund as reference_refund
from ratelimit_app.core.rates import Rate
from tests.store import asking
from tests.store.asking import (
    ADMITTED,
    LIMITED,
    LOOK,
    MINUTE,
    OVER,
    PASSED,
    SECOND,
    SHADOW,
    START,
    Asked,
    Back,
    decide,
    new_key,
    row_of,
)

NAMES = sorted(ALGORITHMS)
HOUR = 3_600 * SECOND
thorough = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

# Periods of ten seconds and more: keys live on the server's own clock, and a timeline is done long before that.
PERIODS = st.sampled_from([10 * SECOND, 10 * SECOND + 7, MINUTE, HOUR])
STEPS = st.one_of(
    st.sampled_from([0, 0, 1, 2, 10 * SECOND - 1, 10 * SECOND, 10 * SECOND + 1, MINUTE, 2 * HOUR]),
    st.integers(-70 * SECOND, 70 * SECOND),
    st.integers(0, 3 * SECOND),
)


class Try(NamedTuple):
    """One request, and how long after the one before."""

    step: int
    algorithm: str
    rate: Rate
    burst: int | None
    cost: int
    look: bool = False
    lease: int = 0


class Giving(NamedTuple):
    """Units of an earlier charge to give back."""

    step: int
    which: int
    units: int


@st.composite
def timelines(
    draw: st.DrawFn, names: list[str], limits: st.SearchStrategy[int], costs: list[int]
) -> list[Try | Giving]:
    """Draw requests and refunds; now and then another rate, burst or algorithm holds."""
    name, rate, burst = draw(st.sampled_from(names)), Rate(draw(limits), draw(PERIODS)), None
    events: list[Try | Giving] = []
    for _ in range(draw(st.integers(1, 30))):
        change = draw(st.integers(0, 19))
        if change < 2:
            rate = Rate(draw(limits), draw(PERIODS))
        elif change < 4:
            burst = draw(st.none() | limits)
        elif change == 4:
            name = draw(st.sampled_from(names))
        if draw(st.integers(0, 7)) == 0:
            events.append(Giving(draw(STEPS), draw(st.integers(0, 9)), draw(st.integers(1, 9))))
            continue
        kind = draw(st.integers(0, 9))
        cost = draw(st.sampled_from(costs))
        events.append(
            Try(draw(STEPS), name, rate, burst, cost, kind == 0, draw(st.integers(1, 9)) if kind < 3 else 0)
        )
    return events


class Twin:
    """One key that the script and the reference both judge."""

    def __init__(self) -> None:
        self.key, self.now = new_key(), START
        self.state: State | None = None
        self.charges: list[tuple[Try, Outcome]] = []

    def play(self, events: list[Try | Giving]) -> None:
        """Let both judge all of a timeline, and compare every field of every answer."""
        for event in events:
            self.now += event.step
            if isinstance(event, Try):
                self.judge(event)
            elif self.charges:
                self.give_back(event)

    def judge(self, one: Try) -> None:
        """Ask both about one request."""
        after, outcome = judged(self.state, one, self.now)
        flags = LOOK if one.look else 0
        reply = decide(
            self.now,
            Asked(
                self.key,
                one.rate,
                one.cost,
                flags,
                algorithm=one.algorithm,
                burst=one.burst,
                lease=one.lease,
            ),
        )
        assert [row_of(outcome, leased=one.lease > 0)] == reply.rows, one
        assert (ADMITTED if outcome.allowed else LIMITED, self.now) == (reply.verdict, reply.now)
        if not one.look:
            self.state = after
        if outcome.granted:
            self.charges.append((one, outcome))

    def give_back(self, giving: Giving) -> None:
        """Take units of one charge back from both."""
        one, outcome = self.charges[giving.which % len(self.charges)]
        units = min(giving.units, outcome.granted)
        back = Back(self.key, outcome.at_us, units, one.rate, one.algorithm)
        expected = 0
        if kind(self.state) == kind_of(one.algorithm):
            self.state, expected = reference_refund(self.state, one.rate, self.now, outcome.at_us, units)
        assert expected == asking.refund(self.now, back)


def judged(state: State | None, one: Try, now: int) -> tuple[State | None, Outcome]:
    """Ask the reference; a look is judged as the request, and charges nothing."""
    algorithm = ALGORITHMS[one.algorithm]
    after, outcome = algorithm(state, one.rate, now, one.cost, burst=one.burst, lease=one.lease)
    if one.look and outcome.allowed:
        return algorithm(state, one.rate, now, 0, burst=one.burst)
    return after, outcome


def kind(state: State | None) -> str:
    """Name what a state is."""
    return "log" if as_log(state) is not None else type(state).__name__


def kind_of(algorithm: str) -> str:
    """Name what an algorithm keeps."""
    return kind(ALGORITHMS[algorithm](None, Rate(1, SECOND), START)[0])


def logged(valkey: Any, key: bytes) -> list[int]:
    """Read the stamps of a log of either form."""
    if valkey.type(key) == b"list":
        return [int(stamp) for stamp in valkey.lrange(key, 0, -1)]
    return [int(score) for _, score in valkey.zrange(key, 0, -1, withscores=True)]


# --- The references ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@thorough
@given(st.data())
def test_a_timeline_when_judged_by_both_gives_equal_fields(name: str, data: st.DataObject) -> None:
    """Costs, looks, permits ahead, refunds, clock steps, idle gaps, changed rates and bursts: every field is equal."""
    Twin().play(data.draw(timelines([name], st.integers(0, 7), [0, 1, 1, 1, 1, 2, 3, 9])))


@settings(thorough, max_examples=50)
@given(timelines(NAMES, st.integers(0, 7), [0, 1, 1, 1, 1, 2, 3, 9]))
def test_a_timeline_when_the_algorithm_is_switched_gives_equal_fields(
    valkey: Any, events: list[Try | Giving]
) -> None:
    """What one algorithm counted is carried over to the next, for a look as for a request, and no key is immortal."""
    twin = Twin()
    twin.play(events)
    assert valkey.pttl(twin.key) != -1


@settings(thorough, max_examples=50)
@given(timelines(["sliding_window", "gcra"], st.sampled_from([100, 127, 128, 129, 300]), [1, 1, 40, 90, 131]))
def test_a_log_when_its_limit_crosses_the_forms_stays_exact(valkey: Any, events: list[Try | Giving]) -> None:
    """A ZSet up to 128, a list above, turned into the other by who charges: every field and every stamp are equal."""
    twin = Twin()
    twin.play(events)
    last = next((event for event in reversed(events) if isinstance(event, Try)), None)
    log = as_log(twin.state)
    if log is not None and last is not None:
        cut = twin.now - last.rate.period_us
        assert [s for s in log if s > cut] == [s for s in logged(valkey, twin.key) if s > cut]


@thorough
@given(
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.integers(0, 5), PERIODS, st.integers(0, 3), st.booleans()),
        min_size=2,
        max_size=5,
    ),
    st.lists(st.integers(0, 8 * SECOND), min_size=1, max_size=20),
)
def test_several_algorithms_when_one_denies_charge_none(
    rules: list[tuple[str, int, int, int, bool]], steps: list[int]
) -> None:
    """All enforced rules pass and are charged, or none is, whatever their algorithms; shadow rules deny nothing."""
    tries = [Try(0, name, Rate(limit, period), None, cost) for name, limit, period, cost, _ in rules]
    asked = [
        Asked(new_key(), one.rate, one.cost, SHADOW if rule[-1] else 0, algorithm=one.algorithm)
        for one, rule in zip(tries, rules, strict=True)
    ]
    states: list[State | None] = [None] * len(tries)
    now = START
    for step in steps:
        now += step
        answers = [judged(state, one, now) for state, one in zip(states, tries, strict=True)]
        denied = any(not a.allowed and not one.flags for (_, a), one in zip(answers, asked, strict=True))
        if denied:
            answers = [
                judged(state, one._replace(cost=one.cost if not outcome.allowed else 0), now)
                for state, one, (_, outcome) in zip(states, tries, answers, strict=True)
            ]
        reply = decide(now, *asked)
        assert (LIMITED if denied else ADMITTED) == reply.verdict
        assert [row_of(outcome) for _, outcome in answers] == reply.rows
        states = [state for state, _ in answers]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("text_limit", "period"), [(1_000_000, 86_400 * SECOND), (999_983, HOUR), (7, HOUR)])
def test_a_high_limit_when_judged_by_both_is_exact(name: str, text_limit: int, period: int) -> None:
    """A million a day, or a prime number an hour: every field is equal, at the limit and around the wait."""
    rate = Rate(min(text_limit, 10_000 if name == "sliding_window" else text_limit), period)
    twin = Twin()
    whole, odd = Try(1, name, rate, None, rate.limit - 1), Try(period // 13, name, rate, None, 3)
    twin.play([whole, odd, odd._replace(cost=1), odd, odd])
    look = Asked(twin.key, rate, 0, LOOK, algorithm=name)
    more = int(decide(twin.now, look).rows[0].remaining) + 1
    row = decide(twin.now, look._replace(cost=more)).rows[0]
    late = Try(int(row.retry) - 1, name, rate, None, more)
    twin.play([late, late._replace(step=1)])
    assert (OVER, 1) == (row.state, twin.charges[-1][0].step)


# --- Keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "value", [b"", b"x", b"\x01", b"\x01" * 17, b"\xff" * 25, b"\x03" + bytes(24), b"\x02" + bytes(64)]
)
def test_a_text_when_it_is_no_state_counts_as_absent(valkey: Any, name: str, value: bytes) -> None:
    """A key with a content that is none of ours never fails a request, is empty, and is replaced by who charges."""
    key = new_key()
    valkey.set(key, value)
    reply = decide(START, Asked(key, Rate(3, MINUTE), algorithm=name))
    assert (ADMITTED, PASSED, 2) == (reply.verdict, *reply.rows[0][:2])
    assert valkey.pttl(key) > 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["hash", "list", "set", "stream"])
def test_a_key_of_another_type_when_met_counts_as_absent(valkey: Any, name: str, kind: str) -> None:
    """A key of the wrong type is empty to those who look, left alone by them, and replaced by who charges."""
    key = new_key()
    write = {
        "hash": lambda: valkey.hset(key, "a", "b"),
        "list": lambda: valkey.rpush(key, "a"),
        "set": lambda: valkey.sadd(key, "a"),
        "stream": lambda: valkey.xadd(key, {"a": "b"}),
    }
    write[kind]()
    three = Asked(key, Rate(3, MINUTE), algorithm=name)
    assert (PASSED, 3, 0, 0, START) == decide(START, three._replace(flags=LOOK)).rows[0]
    assert kind.encode() == valkey.type(key)
    assert (PASSED, 2) == decide(START, three).rows[0][:2]
    assert kind.encode() != valkey.type(key)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("limit", [3, 300])
def test_a_key_when_written_lives_until_it_is_empty(valkey: Any, name: str, limit: int) -> None:
    """Every write sets a life: as long as anything counts, and not much longer; who denies mends one that has none."""
    key, rate = new_key(), Rate(limit, MINUTE)
    three = Asked(key, rate, limit, algorithm=name)
    reset = decide(START, three).rows[0].reset / 1_000
    assert reset <= valkey.pttl(key) <= reset + 60_001
    valkey.persist(key)
    assert LIMITED == decide(START, three).verdict
    assert 0 < valkey.pttl(key) <= reset + 60_001


@pytest.mark.parametrize("name", NAMES)
def test_a_period_when_widened_keeps_the_state_as_long_as_it_counts(valkey: Any, name: str) -> None:
    """A minute that becomes a day: who is denied by what the key holds meets a key that lives until the wait ends."""
    key, day = new_key(), Rate(3, 86_400 * SECOND)
    decide(START, Asked(key, Rate(3, MINUTE), 3, algorithm=name))
    row = decide(START + SECOND, Asked(key, day, 1, algorithm=name)).rows[0]
    assert OVER == row.state
    assert valkey.pttl(key) + 5_000 >= row.retry / 1_000


@pytest.mark.parametrize("name", [n for n in NAMES if n != "sliding_window"])
def test_a_state_when_full_is_one_small_text(valkey: Any, name: str) -> None:
    """Whatever the limit, a key that is no log takes at most 200 bytes."""
    key = new_key()
    decide(START, Asked(key, Rate(1_000_000, MINUTE), 1_000_000, algorithm=name))
    assert b"string" == valkey.type(key)
    assert valkey.memory_usage(key) <= 200


@pytest.mark.parametrize("old", NAMES)
@pytest.mark.parametrize("new", NAMES)
def test_a_full_client_when_the_algorithm_is_switched_stays_full(valkey: Any, old: str, new: str) -> None:
    """Whoever had used all of it is denied at once by the next algorithm, and the key lives no longer than it must."""
    key, rate = new_key(), Rate(5, HOUR)
    decide(START, Asked(key, rate, 5, algorithm=old))
    reply = decide(START + SECOND, Asked(key, rate, algorithm=new))
    assert (LIMITED, 0) == (reply.verdict, reply.rows[0].remaining)
    assert 0 < valkey.pttl(key) <= 1_000 * 3 * 3_600
    wait = int(reply.rows[0].retry)
    assert LIMITED == decide(START + SECOND + wait - 1, Asked(key, rate, algorithm=new)).verdict
    assert ADMITTED == decide(START + SECOND + wait, Asked(key, rate, algorithm=new)).verdict


# --- Logs of more than 128 --------------------------------------------------------------------------------------------


def test_a_log_when_its_limit_is_high_is_a_list(valkey: Any) -> None:
    """At most 24 bytes for each unit and 200 for the key, from 129 units to 10,000."""
    for units in (1, LARGE + 1, 1_000, 10_000):
        key = new_key()
        decide(START, Asked(key, Rate(max(units, LARGE + 1), HOUR), units))
        assert (b"list", units) == (valkey.type(key), valkey.llen(key))
        assert valkey.memory_usage(key, samples=0) <= 24 * units + 200


def test_a_log_when_its_limit_changes_across_the_forms_is_converted_by_a_charge(valkey: Any) -> None:
    """To a list above 128, back to a ZSet when what is live fits; a denial and a look convert nothing."""
    key, low, high = new_key(), Rate(128, HOUR), Rate(129, HOUR)
    kinds: list[bytes] = []
    for rate, cost, flags in (
        (low, 127, 0),
        (high, 1, LOOK),
        (high, 1, 0),
        (low, 1, 0),
        (high, 1, 0),
        (low, 1, 0),
    ):
        decide(START + len(kinds), Asked(key, rate, cost, flags))
        kinds.append(valkey.type(key))
    assert [b"zset", b"zset", b"list", b"list", b"list", b"list"] == kinds
    assert 129 == valkey.llen(key)
    decide(START + HOUR + 50, Asked(key, low, 1))
    assert b"zset" == valkey.type(key)
    assert list(range(START + 51, START + 127)) == logged(valkey, key)[:76]


def test_a_log_when_all_of_it_expires_is_empty(valkey: Any) -> None:
    """Ten thousand that leave at once are gone with the next request, which is charged."""
    key, rate = new_key(), Rate(10_000, HOUR)
    decide(START, Asked(key, rate, 10_000))
    assert (PASSED, 9_999) == decide(START + HOUR + 10_000, Asked(key, rate)).rows[0][:2]
    assert 1 == valkey.llen(key)


@pytest.mark.parametrize("gone", [0, 1, 2, 3, 500, 998, 999])
def test_a_list_when_some_expire_keeps_the_others(valkey: Any, gone: int) -> None:
    """Whatever the number of the expired, exactly they leave."""
    key, rate = new_key(), Rate(2_000, HOUR)
    decide(START, Asked(key, rate, 1_000))
    row = decide(START + HOUR + gone - 1, Asked(key, rate)).rows[0]
    assert 2_000 - (1_000 - gone) - 1 == row.remaining
    assert 1_001 - gone == valkey.llen(key)


@pytest.mark.parametrize("first", [0, 1, 140, 198, 199])
@pytest.mark.parametrize("units", [1, 60])
def test_a_list_when_a_charge_is_refunded_loses_it_alone(valkey: Any, first: int, units: int) -> None:
    """From the head, the middle or the tail: the stamps of the charge leave, and they once."""
    key, rate = new_key(), Rate(500, HOUR)
    decide(START, Asked(key, rate, 200))
    charge = Back(key, START + first, units, rate)
    there = min(units, 200 - first)
    assert [there, 0] == [asking.refund(START + 1, charge) for _ in range(2)]
    kept = [n for n in range(200) if not first <= n < first + units]
    assert kept == [stamp - START for stamp in logged(valkey, key)]


def test_a_shared_limit_when_its_shares_are_small_keeps_one_form(valkey: Any) -> None:
    """Rules that share a limit over 128 work on one list, whatever each may use of it."""
    key = new_key()
    for share in (100, 200, 100):
        decide(START, Asked(key, Rate(share, HOUR), burst=200))
        assert b"list" == valkey.type(key)


def test_a_state_when_packed_is_what_the_script_says(valkey: Any) -> None:
    """The first byte is the algorithm's code: what other releases and tools may rely on."""
    rate = Rate(10, 10 * SECOND)
    found = []
    for name in ("fixed_window", "token_bucket", "leaky_bucket", "gcra"):
        key = new_key()
        decide(START, Asked(key, rate, 2, algorithm=name))
        form = "<Bdd" if name == "fixed_window" else "<Bddd"
        found.append(struct.unpack(form, valkey.get(key)))
    assert [
        (1, START, 2),
        (3, START, 2 * SECOND, SECOND),
        (4, START, 2 * SECOND, SECOND),
        (5, START, 2 * SECOND, SECOND),
    ] == found
