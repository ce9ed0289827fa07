"""Several slots, one answer: the protocol driven by hand, with servers that count, so that every race can be had."""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_app.core.calls import ScriptCall, StoreTimeout, StoreUnavailable
from ratelimit_app.core.slots import PartlyAnswered, TryAgain, only_slot, slot_of, spread

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = 1_000_000.0
HEAD, ROW, RULE, REFUND = "<BBdd", "<Bdddd", "<BBddddddd", "<Bdddd"
SHADOW, LOOK, LEASE = 1, 2, 4


class Servers:
    """What all servers hold: units by key, and bans by the key of their mark."""

    def __init__(self, **held: int) -> None:
        self.held = Counter({name.encode(): units for name, units in held.items()})
        self.bans: dict[bytes, float] = {}
        self.calls: list[ScriptCall] = []

    def answer(self, call: ScriptCall) -> Any:
        """Do what the scripts do, for windows of which nothing expires."""
        assert only_slot(call.keys) is not None, "a server sees the keys of one slot"
        self.calls.append(call)
        return self._refund(call) if call.script == "refund" else self._decide(call)

    def _refund(self, call: ScriptCall) -> int:
        units = 0
        for key, told in zip(call.keys, call.args[1:], strict=True):
            back = int(struct.unpack(REFUND, told)[2])
            self.held[key] -= back
            units += back
        return units

    def _decide(self, call: ScriptCall) -> bytes:
        told, marks = call.args[0], call.args[0][0]
        bans = [
            (self.bans[key] or float("inf"), n) for n, key in enumerate(call.keys[:marks]) if key in self.bans
        ]
        if bans:
            end, n = max(bans)
            return struct.pack(HEAD, 2, n + 1, NOW, 0 if end == float("inf") else end)
        rules = list(struct.iter_unpack(RULE, told[1:]))
        keys = call.keys[marks:]
        over = [
            cost > 0 and cost > limit - self.held[key]
            for key, (_, _, _, limit, _, cost, *_) in zip(keys, rules, strict=True)
        ]
        denied = any(late and not rule[1] & SHADOW for late, rule in zip(over, rules, strict=True))
        rows = b""
        for key, late, (_, flags, period, limit, _, cost, lease, *_) in zip(keys, over, rules, strict=True):
            units = 0
            if not late and not denied and not flags & LOOK:
                units = int(min(max(cost, lease if flags & LEASE else 0), limit - self.held[key]))
            self.held[key] += units
            left = max(limit - self.held[key], 0)
            retry = period if late else units if flags & LEASE else 0
            rows += struct.pack(ROW, late, left, retry, period if self.held[key] else 0, NOW)
        return struct.pack(HEAD, denied, 0, NOW, 0) + rows


def rule(limit: int, *, cost: int = 1, flags: int = 0, lease: int = 0) -> bytes:
    """Write a rule as the script is told."""
    return struct.pack(RULE, 0, flags, 60e6, limit, limit, cost, lease, 0, 0)


def decide(marks: list[bytes], rules: list[tuple[bytes, bytes]]) -> ScriptCall:
    """Write a question."""
    keys = marks + [key for key, _ in rules]
    return ScriptCall("decide", keys, [bytes([len(marks)]) + b"".join(told for _, told in rules)])


def drive(
    call: ScriptCall, answer: Callable[[ScriptCall], Any], between: Callable[[int], object] | None = None
) -> Any:
    """Drive the protocol; `between` is called with the number of each round before it."""
    flow, number = spread(call), 0
    try:
        calls = next(flow)
        while True:
            if between:
                between(number)
            number += 1
            calls = flow.send([answer(one) for one in calls])
    except StopIteration as end:
        return end.value


def read(reply: bytes) -> tuple[int, list[tuple[float, ...]]]:
    """Give the verdict and the rows of a reply."""
    return reply[0], list(struct.iter_unpack(ROW, reply[struct.calcsize(HEAD) :]))


A, B, C = b"{a}:r", b"{b}:r", b"{c}:r"


@given(st.binary(max_size=40))
def test_a_slot_when_computed_is_that_of_the_servers(key: bytes) -> None:
    """redis-py's own function is the judge."""
    from redis.crc import key_slot

    assert slot_of(key) == key_slot(key)


@given(
    rules=st.lists(
        st.tuples(
            st.sampled_from([A, B, C, b"{a}:s", b"{b}:s"]),
            st.integers(0, 3),
            st.integers(0, 2),
            st.booleans(),
        ),
        min_size=1,
        max_size=5,
        unique_by=lambda one: one[0],
    ),
    times=st.integers(1, 6),
    banned=st.booleans(),
)
def test_questions_when_spread_are_answered_as_by_one_server(
    rules: list[tuple[bytes, int, int, bool]], times: int, banned: bool
) -> None:
    """Verdict, rows and what is held afterwards are those of one server that sees all keys."""
    spread_out, alone = Servers(), Servers()
    asked = [
        (key, rule(limit, cost=cost, flags=(SHADOW if shadow else 0) | (0 if cost else LOOK)))
        for key, limit, cost, shadow in rules
    ]
    marks = [b"{a}!mark", b"{d}!mark"]
    for number in range(times):
        if banned and number == times - 1:
            spread_out.bans = alone.bans = {b"{d}!mark": 7e6}
        call = decide(marks, asked)
        found = drive(call, spread_out.answer) if only_slot(call.keys) is None else None
        expected = alone._decide(call)
        assert found is not None
        assert found.reply == expected
        assert +spread_out.held == +alone.held


def test_a_request_when_denied_by_one_server_is_not_charged_by_others_even_for_a_moment() -> None:
    """Two servers would charge: both are asked first, and none is charged for what the other denies."""
    servers = Servers(**{"{b}:r": 1})
    found = drive(
        decide([], [(A, rule(1)), (B, rule(1))]), servers.answer, lambda _: _require(servers.held[A] == 0)
    )
    assert read(found.reply)[0] == 1
    assert (servers.held[A], servers.held[B], found.returned) == (0, 1, [])
    assert len(servers.calls) == 2


def _require(holds: bool) -> None:
    assert holds


def test_a_server_when_it_fills_up_in_between_has_the_others_charge_given_back() -> None:
    """Denied as by one server: rows as before the charge, and others are told of what was given back."""
    servers = Servers()
    call = decide([], [(A, rule(2)), (B, rule(1)), (C, rule(5, lease=3, flags=LEASE))])
    found = drive(call, servers.answer, lambda number: servers.held.update({B: 1}) if number == 1 else None)
    verdict, rows = read(found.reply)
    assert verdict == 1
    assert [(row[0], row[1]) for row in rows] == [(0, 2), (1, 0), (0, 5)]
    assert (+servers.held, sorted(found.returned)) == (Counter({B: 1}), [A, C])


def test_a_ban_when_found_beside_a_charge_has_it_given_back() -> None:
    """One server charges while another one bans; the ban that ends last is told, with its own clock."""
    servers = Servers()
    servers.bans = {b"{b}!mark": 5e6, b"{c}!mark": 9e6}
    found = drive(decide([b"{b}!mark", b"{c}!mark"], [(A, rule(3))]), servers.answer)
    assert struct.unpack(HEAD, found.reply) == (2, 2, NOW, 9e6)
    assert (+servers.held, found.returned) == (Counter(), [A])
    servers.bans[b"{b}!mark"] = 0
    found = drive(decide([b"{b}!mark", b"{c}!mark"], [(A, rule(3))]), servers.answer)
    assert struct.unpack(HEAD, found.reply) == (2, 1, NOW, 0)


@pytest.mark.parametrize("error", [StoreUnavailable("refused"), StoreTimeout("late"), b"", b"short", None, 7])
def test_a_server_when_it_does_not_answer_leaves_the_others_answer(error: Any) -> None:
    """What is known is told, with the places that it is for; the rest is nobody's."""
    servers = Servers()
    call = decide([b"{a}!mark", b"{b}!mark"], [(A, rule(3)), (B, rule(3)), (C, rule(3))])
    with pytest.raises(PartlyAnswered) as caught:
        drive(
            call,
            lambda one: error if any(key.startswith(b"{b}") for key in one.keys) else servers.answer(one),
        )
    found = caught.value
    assert (found.marks, found.rules) == ([0], [0, 2])
    assert read(found.reply) == (0, [(0, 2, 0, 60e6, NOW), (0, 2, 0, 60e6, NOW)])
    assert +servers.held == Counter({A: 1, C: 1})


def test_servers_when_none_answers_are_unavailable() -> None:
    """The first error is the answer."""
    with pytest.raises(StoreTimeout, match="late"):
        drive(decide([], [(A, rule(1)), (B, rule(1))]), lambda _: StoreTimeout("late"))


def test_a_slot_when_being_moved_is_asked_for_one_key_at_a_time() -> None:
    """Several of its keys are answered by neither server; what another part has charged meanwhile goes back."""
    servers = Servers(**{"{a}:r": 1})

    def answer(call: ScriptCall) -> Any:
        moving = sum(key.startswith(b"{a}") for key in call.keys) > 1
        return TryAgain("TRYAGAIN") if moving else servers.answer(call)

    call = decide([b"{a}!mark", b"{b}!mark"], [(A, rule(3)), (b"{a}:s", rule(2)), (B, rule(3))])
    found = drive(call, answer)
    assert [(row[0], row[1]) for row in read(found.reply)[1]] == [(0, 1), (0, 1), (0, 2)]
    assert +servers.held == Counter({A: 2, b"{a}:s": 1, B: 1})
    back = [struct.pack(REFUND, 0, NOW, 1, 60e6, 3)] * 3
    assert drive(ScriptCall("refund", [A, b"{a}:s", B], [b"", *back]), answer).reply == 3
    assert +servers.held == Counter({A: 1})


def test_a_refund_when_spread_gives_back_at_each_server() -> None:
    """The sum is told; a server that does not answer is an error."""
    servers = Servers(**{"{a}:r": 2, "{b}:r": 5})
    args = [b"", struct.pack(REFUND, 0, NOW, 1, 60e6, 3), struct.pack(REFUND, 0, NOW, 4, 60e6, 9)]
    assert drive(ScriptCall("refund", [A, B], args), servers.answer).reply == 5
    assert +servers.held == Counter({A: 1, B: 1})
    with pytest.raises(StoreUnavailable):
        drive(ScriptCall("refund", [A, B], args), lambda _: StoreUnavailable("refused"))


def test_another_script_when_its_keys_are_in_several_slots_is_refused() -> None:
    """A mistake in the code, told as one."""
    with pytest.raises(StoreUnavailable, match="several slots"):
        drive(ScriptCall("publish_snapshot", [A, B], []), lambda _: 1)
