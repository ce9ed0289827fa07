"""The flow of a decision, driven by hand: no Django, no Redis, each answer and each failure given by the test."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_app.core.access_lists import NEVER, NetworkTable
from ratelimit_app.core.asking import Ask, Door, Memory, Need, Question, question
from ratelimit_app.core.calls import ScriptCall, StoreUnavailable, refund_call
from ratelimit_app.core.decision import Charge, Decision, Reason, Verdict
from ratelimit_app.core.deny_cache import DenyCache
from ratelimit_app.core.evaluation import evaluate, offences_of
from ratelimit_app.core.identity import kind_of
from ratelimit_app.core.keys import Keys
from ratelimit_app.core.local_answers import Local
from ratelimit_app.core.outage import OutageLimits
from ratelimit_app.core.permits import Permits
from ratelimit_app.core.plans import Plan
from ratelimit_app.core.rules import Rule, rule_from_dict
from ratelimit_app.core.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ratelimit_app.core.addresses import Address

NOW = 1_000_000_000
KEYS = Keys("rl", b"secret")
IP, USER = "ip:203.0.113.9", "user:42"


@dataclass
class StubFacts:
    """The facts of one request, all known but the user, who is learned when the flow asks."""

    user: str | None = None
    address: Address | None = field(default_factory=lambda: ip_address("203.0.113.9"))
    learned: bool = False
    is_spared: bool = False
    memory: Memory = field(default_factory=Memory)

    def user_identity(self) -> str | None:
        """Nobody before the flow has asked."""
        return self.user if self.learned else None

    def unknown(self, facts: Sequence[str]) -> Sequence[str]:
        """Everything, until the flow has asked."""
        return () if self.learned else facts

    def question(self, plan: Plan, snapshot: Snapshot, door: Door) -> Question:
        """The marks, the keys and the demands of these rules."""
        marks = self.mark_identities(snapshot, door.with_user)
        return question(plan, door.units, marks, self.rule_identity)

    def rule_identity(self, rule: Rule) -> str:
        """The user where the rule needs one, else the address."""
        return self.user_identity() or IP if rule.needs_user else IP

    def mark_identities(self, snapshot: Snapshot, with_user: bool) -> list[str]:
        """The address and the user."""
        users = [self.user] if with_user and self.learned and self.user else []
        return [kind for kind in (IP, *users) if kind_of(kind) in snapshot.marked_kinds]


@dataclass
class StubWorld:
    """A process whose clock stands still."""

    on_failure: str
    frozen: int | None
    memory: Local = field(default_factory=lambda: Local(DenyCache(0), None, Permits(), OutageLimits(0)))
    clock_s: float = 0.0

    def local(self) -> Local:
        """Remember nothing, unless the test says otherwise."""
        return self.memory

    def clock(self) -> float:
        """Now, until the test says otherwise."""
        return self.clock_s

    def now_us(self) -> int:
        """Now, always."""
        return NOW

    @property
    def local_share(self) -> float:
        """All of it."""
        return 1.0

    def frozen_now(self) -> int | None:
        """What the script is told."""
        return self.frozen


def rule(name: str = "grab", **row: Any) -> Rule:
    """Make a rule of 5/s for addresses."""
    return rule_from_dict({"name": name, "rate": "5/s", "key": "ip"} | row)


def ask(*rules: Rule, **fields: Any) -> Ask:
    """Ask at a door without marks, unless the test says otherwise."""
    facts = fields.pop("facts", None) or StubFacts()
    facts.memory = fields.pop("memory", facts.memory)
    snapshot = fields.pop("snapshot", Snapshot(marked_kinds=frozenset()))
    world = StubWorld(fields.pop("on_failure", "open"), fields.pop("frozen_now", None))
    users = "all" if fields.pop("with_user", True) else "none"
    return Ask(facts, Door(sender=None, users=users, **fields), Plan(rules, KEYS), snapshot, world)


def reply(
    *rows: tuple[float, ...], verdict: int = 0, mark: int = 0, now: float = NOW, expires: float = 0
) -> bytes:
    """Pack a reply as the script does; each row is state, remaining, retry, reset, at."""
    head = struct.pack("<BBdd", verdict, mark, now, expires)
    return head + b"".join(struct.pack("<Bdddd", *row) for row in rows)


PASSED = (0, 4, 0, 1_000_000, NOW)
OVER = (1, 0, 400_000, 900_000, NOW)
ASLEEP = (2, 0, 0, 0, NOW)


def decide(asked: Ask, answer: bytes | Exception | object = None) -> tuple[Decision, list[Any]]:
    """Drive a flow: learn what it needs, answer its call; give the decision and all that it yielded."""
    flow, steps = evaluate(asked), []
    try:
        step = next(flow)
        while True:
            steps.append(step)
            if isinstance(step, Need):
                asked.facts.learned = True  # type: ignore[attr-defined]
                step = flow.send(None)
            elif isinstance(answer, Exception):
                step = flow.throw(answer)
            else:
                step = flow.send(answer)
    except StopIteration as end:
        return end.value, steps


def told(call: ScriptCall) -> tuple[Any, ...]:
    """Read what the script is told of the only rule."""
    return struct.unpack("<BBddddddd", call.args[0][1:])


def kinds(steps: list[Any]) -> list[str]:
    """Name what a flow asked for."""
    return [step.fact if isinstance(step, Need) else step.script for step in steps]


def network(text: str, expires: int = NEVER) -> NetworkTable:
    """Give a table of one network."""
    table = NetworkTable()
    table.set(text, expires)
    return table


ALLOWED: dict[str, Any] = {"allowed_networks": network("203.0.113.0/24")}
BANNED: dict[str, Any] = {"networks": network("203.0.113.0/24", NOW + 7_500_000)}
BLOCKED_REPLY = reply(verdict=2, mark=1, expires=NOW + 1_500_000)


@pytest.mark.parametrize(
    ("lists", "expected", "asked_for"),
    [
        (ALLOWED | BANNED, (Verdict.ALLOWED, Reason.ALLOWLISTED), []),
        (BANNED, (Verdict.BLOCKED, Reason.BLACKLISTED), []),
        ({}, (Verdict.BLOCKED, Reason.BLACKLISTED), ["decide"]),
    ],
)
def test_a_decision_when_everything_applies_follows_the_order(
    lists: dict[str, Any], expected: tuple[Verdict, Reason], asked_for: list[str]
) -> None:
    """Allowlist, then blacklist, then rules; what comes first costs nothing that comes later (C102)."""
    snapshot = Snapshot(marked_kinds=frozenset({"ip"}), **lists)
    decision, steps = decide(ask(rule(), snapshot=snapshot), BLOCKED_REPLY)
    assert expected == (decision.verdict, decision.reason)
    assert asked_for == kinds(steps)


def test_a_decision_when_nothing_applies_needs_no_call() -> None:
    """Without a rule or a mark there is nothing to ask Redis."""
    decision, steps = decide(ask())
    assert (True, Reason.NO_RULE, []) == (decision.allowed, decision.reason, steps)


def test_a_request_when_within_its_limit_passes_with_what_is_left() -> None:
    """The reply's numbers become the decision: seconds, units, and the server's time."""
    decision, steps = decide(ask(rule()), reply(PASSED))
    assert (True, Verdict.ALLOWED, Reason.WITHIN_LIMIT) == (
        decision.allowed,
        decision.verdict,
        decision.reason,
    )
    assert ("grab", 5, 4, 0.0, 1.0) == (
        decision.rule,
        decision.limit,
        decision.remaining,
        decision.retry_after,
        decision.reset_after,
    )
    (found,) = decision.results
    assert (NOW, 1.0, IP, "grab") == (found.at, found.period, found.identity, found.label)
    assert [Charge(0, KEYS.log(IP, b"grab"), NOW, 1, 1_000_000, 5)] == decision.charges
    assert ("", False) == (decision.identity, decision.degraded)
    assert [KEYS.log(IP, b"grab")] == steps[0].keys


def test_a_request_when_over_its_limit_is_limited_with_the_wait() -> None:
    """It names rule, identity and wait, and has charged nothing."""
    decision, _ = decide(ask(rule()), reply(OVER, verdict=1))
    assert (False, Verdict.LIMITED, Reason.OVER_LIMIT) == (
        decision.allowed,
        decision.verdict,
        decision.reason,
    )
    assert ("grab", IP, 0.4, 0.9, []) == (
        decision.rule,
        decision.identity,
        decision.retry_after,
        decision.reset_after,
        decision.charges,
    )


@pytest.mark.parametrize(
    ("retries", "expected"),
    [((400_000, 900_000), ("b", 0.9)), ((-1, 900_000), ("a", None)), ((900_000, -1), ("b", None))],
)
def test_a_request_when_two_rules_deny_gets_the_longest_wait(
    retries: tuple[int, int], expected: tuple[str, float | None]
) -> None:
    """Never is the longest (C83)."""
    rows = [(1, 0, retry, 900_000, NOW) for retry in retries]
    decision, _ = decide(ask(rule("a"), rule("b")), reply(*rows, verdict=1))
    assert expected == (decision.rule, decision.retry_after)


def test_a_request_when_one_of_two_rules_denies_charges_neither() -> None:
    """All or nothing: the rule that would have passed is not charged (C46)."""
    decision, _ = decide(ask(rule("a"), rule("b")), reply(PASSED, OVER, verdict=1))
    assert ("b", [], [True, False]) == (
        decision.rule,
        decision.charges,
        [result.allowed for result in decision.results],
    )


def test_one_call_when_a_rule_has_several_rates_takes_all() -> None:
    """Every rate has a log of its own, and all go in one call (C21)."""
    decision, steps = decide(ask(rule(rate="5/s;100/m"), rule("b")), reply(PASSED, PASSED, PASSED))
    assert ["decide"] == kinds(steps)
    assert [KEYS.log(IP, b"grab"), KEYS.log(IP, b"grab#1"), KEYS.log(IP, b"b")] == steps[0].keys
    assert [100, 5, 5] == [result.limit for result in decision.results]


def test_a_call_when_written_is_what_the_script_reads() -> None:
    """Marks first, then logs; the time only where a test sends one; each rule packed as the script's header says."""
    asked = ask(
        rule(cost=2, mode="shadow", starts_us=5, ends_us=9), snapshot=Snapshot(), frozen_now=77, look=True
    )
    _, steps = decide(asked, reply(PASSED))
    assert [KEYS.mark(IP), KEYS.log(IP, b"grab")] == steps[-1].keys
    assert (1, b"77") == (steps[-1].args[0][0], steps[-1].args[1])
    assert (0, 3, 1_000_000, 5, 5, 2, 0, 5, 9) == told(steps[-1])
    _, steps = decide(ask(rule()), reply(PASSED))
    assert (0, 1) == (steps[0].args[0][0], len(steps[0].args))


def test_a_rule_when_asleep_says_nothing() -> None:
    """Before its start and after its end a rule has no result and no charge."""
    decision, _ = decide(ask(rule("a"), rule("b")), reply(ASLEEP, PASSED))
    assert ["b"] == [result.rule for result in decision.results]
    decision, _ = decide(ask(rule("a")), reply(ASLEEP))
    assert (True, Reason.NO_RULE, (), []) == (
        decision.allowed,
        decision.reason,
        decision.results,
        decision.charges,
    )


def test_a_shadow_rule_when_over_reports_and_does_not_deny() -> None:
    """It is in the results, and neither decides nor describes the request."""
    decision, _ = decide(ask(rule("watch", mode="shadow"), rule("b")), reply(OVER, PASSED))
    assert (True, "b") == (decision.allowed, decision.rule)
    assert [(True, False), (False, True)] == [(result.shadow, result.allowed) for result in decision.results]
    decision, _ = decide(ask(rule("watch", mode="shadow")), reply(OVER))
    assert (True, Reason.NO_RULE, 1) == (decision.allowed, decision.reason, len(decision.results))


@pytest.mark.parametrize(
    ("rules", "setting", "expected", "name"),
    [
        ([rule("a")], "open", Verdict.ALLOWED, None),
        ([rule("a")], "closed", Verdict.UNAVAILABLE, "a"),
        ([rule("a", on_failure="closed")], "open", Verdict.UNAVAILABLE, "a"),
        ([rule("a", on_failure="open")], "closed", Verdict.ALLOWED, None),
        ([rule("a", on_failure="open"), rule("b", on_failure="closed")], "open", Verdict.UNAVAILABLE, "b"),
        ([rule("a", on_failure="closed", mode="shadow")], "open", Verdict.ALLOWED, None),
        ([rule("a", mode="shadow")], "closed", Verdict.ALLOWED, None),
    ],
)
@pytest.mark.parametrize("failure", [StoreUnavailable("gone"), b"nonsense"], ids=["unavailable", "malformed"])
def test_a_rule_when_redis_cannot_answer_follows_its_policy(
    rules: list[Rule], setting: str, expected: Verdict, name: str | None, failure: object
) -> None:
    """A rule's own policy beats the setting, closed beats open, shadows never deny (C118, C120, C122)."""
    decision, _ = decide(ask(*rules, on_failure=setting), failure)
    assert (expected, Reason.STORE_UNAVAILABLE, name) == (decision.verdict, decision.reason, decision.rule)
    assert decision.allowed == (expected is Verdict.ALLOWED)
    assert decision.degraded
    assert decision.retry_after == (0.0 if decision.allowed else 1.0)


@pytest.mark.parametrize(
    ("setting", "exempt", "expected"),
    [("open", False, True), ("closed", False, False), ("closed", True, True)],
)
def test_marks_when_they_cannot_be_read_follow_the_setting(
    setting: str, exempt: bool, expected: bool
) -> None:
    """A blacklist that cannot be read is as closed as the setting says; the admin site is spared."""
    decision, _ = decide(
        ask(snapshot=Snapshot(), on_failure=setting, facts=StubFacts(is_spared=exempt)),
        StoreUnavailable("gone"),
    )
    assert expected == decision.allowed
    assert decision.degraded


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "answer",
    [
        None, 0, "text", [], b"", b"x", b"\xff" * 18, b"\xff" * 51, reply(), reply(PASSED, PASSED),
        reply(PASSED) + b"x", reply(PASSED, verdict=3), reply(PASSED, verdict=2, mark=0), reply(PASSED, verdict=2, mark=2),
        reply(PASSED, verdict=1), reply(OVER), reply(ASLEEP, verdict=1), reply((3, 0, 0, 0, NOW)), reply((0, NAN, 0, 0, NOW)),
        reply((0, INF, 0, 0, NOW)), reply((0, 0, NAN, 0, NOW)), reply((0, 0, 0, INF, NOW)), reply((0, 0, 0, 0, NAN)),
        reply(verdict=2, mark=1, expires=NAN), reply(verdict=2, mark=1, expires=INF), reply(PASSED, verdict=255),
    ],
)  # fmt: skip
def test_a_reply_when_malformed_is_a_degraded_decision(answer: object) -> None:
    """Whatever comes back, it is a decision by the failure policy, never an exception and never a made-up verdict."""
    decision, _ = decide(ask(rule(), snapshot=Snapshot()), answer)
    assert (True, True, Reason.STORE_UNAVAILABLE) == (decision.allowed, decision.degraded, decision.reason)


@given(st.binary(max_size=60) | st.binary(min_size=51, max_size=51) | st.binary(min_size=18, max_size=18))
def test_any_bytes_when_they_are_the_reply_make_a_decision(answer: bytes) -> None:
    """No bytes of a broken server become an exception of the request."""
    decision, _ = decide(ask(rule(), snapshot=Snapshot(), on_failure="closed"), answer)
    assert isinstance(decision, Decision)
    assert decision.degraded == (decision.reason is Reason.STORE_UNAVAILABLE)


def test_a_banned_identity_when_marked_is_blocked_until_its_end() -> None:
    """The wait is until the ban's end by the server's clock; rules are not charged and have no results."""
    decision, _ = decide(ask(rule(), snapshot=Snapshot()), BLOCKED_REPLY)
    assert (Verdict.BLOCKED, IP, 1.5, 1.5) == (
        decision.verdict,
        decision.identity,
        decision.retry_after,
        decision.reset_after,
    )
    assert ((), []) == (decision.results, decision.charges)


@pytest.mark.parametrize(
    ("expires", "wait", "reset"), [(NEVER, None, 0.0), (NOW + 2_500_000, 2.5, 2.5), (NOW - 5, 0.0, 0.0)]
)
def test_a_ban_when_told_to_wait_says_how_long(expires: int, wait: float | None, reset: float) -> None:
    """Never has no wait; an end in the past, by a clock that differs, is no negative one."""
    decision, _ = decide(ask(snapshot=Snapshot()), reply(verdict=2, mark=1, expires=expires))
    assert (wait, reset) == (decision.retry_after, decision.reset_after)


def test_a_banned_network_when_it_has_ended_does_not_block() -> None:
    """The process needs no new snapshot to see a ban's end (C112)."""
    gone = Snapshot(networks=network("203.0.113.0/24", NOW), marked_kinds=frozenset())
    assert decide(ask(snapshot=gone))[0].allowed


@pytest.mark.parametrize("facts", [StubFacts(address=None), StubFacts(address=ip_address("198.51.100.1"))])
def test_an_address_when_unknown_or_elsewhere_is_in_no_network(facts: StubFacts) -> None:
    """Lists of networks need an address that lies in them."""
    lists = Snapshot(marked_kinds=frozenset(), **(ALLOWED | BANNED))
    assert decide(ask(facts=facts, snapshot=lists))[0].reason is Reason.NO_RULE


def test_a_user_when_allowlisted_passes_before_any_call() -> None:
    """The user is learned, found on the allowlist, and nothing is charged."""
    lists = Snapshot(allowed_users={USER: NEVER}, **BANNED)
    decision, steps = decide(ask(rule(), facts=StubFacts(USER), snapshot=lists))
    assert (Reason.ALLOWLISTED, ["user"]) == (decision.reason, kinds(steps))
    assert decide(ask(facts=StubFacts("user:43"), snapshot=lists))[0].verdict is Verdict.BLOCKED


def test_a_door_when_it_may_not_know_the_user_does_not_ask() -> None:
    """Address rules come first and cost no session; the user's mark waits for the next door."""
    _, steps = decide(ask(rule(), facts=StubFacts(USER), snapshot=Snapshot(), with_user=False), reply(PASSED))
    assert ["decide"] == kinds(steps)
    assert KEYS.mark(USER) not in steps[0].keys


@pytest.mark.parametrize("denial", [reply(OVER, verdict=1), BLOCKED_REPLY, StoreUnavailable("gone")])
@pytest.mark.parametrize(("user", "expected"), [(USER, True), ("user:43", False), (None, False)])
def test_a_denial_when_the_user_is_late_asks_whether_the_allowlist_has_it(
    denial: object, user: str | None, expected: bool
) -> None:
    """An allowlisted user is not turned away by what is decided before the user is known (C102)."""
    lists = Snapshot(allowed_users={USER: NEVER})
    asked = ask(
        rule(), facts=StubFacts(user), snapshot=lists, with_user=False, late_user=True, on_failure="closed"
    )
    decision, steps = decide(asked, denial)
    assert ["decide", "user"] == kinds(steps)
    assert expected == (decision.reason is Reason.ALLOWLISTED) == decision.allowed


def test_a_request_when_it_passes_never_asks_for_a_late_user() -> None:
    """Only a denial is worth the session's query."""
    lists = Snapshot(allowed_users={USER: NEVER})
    _, steps = decide(
        ask(rule(), facts=StubFacts(USER), snapshot=lists, with_user=False, late_user=True), reply(PASSED)
    )
    assert ["decide"] == kinds(steps)


def later(memory: Memory, *rules: Rule, answer: object = None, **fields: Any) -> tuple[Decision, list[Any]]:
    """Decide at a later door of the same request."""
    return decide(ask(*rules, memory=memory, **fields), answer)


def test_a_rule_when_a_second_door_meets_it_is_not_charged_again() -> None:
    """Charged once for a request, whatever doors it passes: the second door has nothing to ask."""
    memory = Memory()
    later(memory, rule(), answer=reply(PASSED))
    decision, steps = later(memory, rule())
    assert (True, []) == (decision.allowed, steps)


def test_a_rule_when_topped_up_is_charged_the_difference() -> None:
    """`check(request, cost=5)` after a charge of 2 takes 3 more, and then nothing (C154)."""
    memory = Memory()
    later(memory, rule(cost=1), answer=reply(PASSED), units=2)
    _, steps = later(memory, rule(cost=1), answer=reply(PASSED), units=5)
    assert 3 == told(steps[0])[5]
    assert [] == later(memory, rule(cost=1), units=5)[1]
    assert {5} == set(memory.charged().values())


def test_a_look_when_it_costs_nothing_asks_all_the_same() -> None:
    """Cost 0 is a question, also after a charge, and is no charge."""
    memory = Memory()
    later(memory, rule(), answer=reply(PASSED))
    decision, steps = later(memory, rule(), answer=reply(PASSED), units=0)
    assert (["decide"], []) == (kinds(steps), decision.charges)


def test_a_later_door_when_one_has_denied_only_looks() -> None:
    """After a denial nothing more is charged."""
    memory = Memory()
    memory.denied, _ = later(memory, rule(), answer=reply(OVER, verdict=1))
    decision, steps = later(memory, rule("b"), answer=reply(PASSED))
    assert 2 == told(steps[0])[1]
    assert [] == decision.charges


def test_a_mark_when_read_by_one_door_is_not_read_by_the_next() -> None:
    """A mark costs one look for each request; the user's, unknown until now, is read when known."""
    memory = Memory()
    facts = StubFacts(USER)
    later(memory, rule(), answer=reply(PASSED), facts=facts, snapshot=Snapshot(), with_user=False)
    _, steps = later(memory, rule("b", key="user"), answer=reply(PASSED), facts=facts, snapshot=Snapshot())
    assert [KEYS.mark(USER), KEYS.log(USER, b"b")] == steps[-1].keys


def test_a_mark_when_it_was_found_blocks_at_every_later_door() -> None:
    """A blocked request that goes on, by `block=False`, is not let through by the next door."""
    memory = Memory()
    memory.denied, _ = later(memory, rule(), answer=BLOCKED_REPLY, snapshot=Snapshot())
    decision, steps = later(memory, rule("b"), answer=BLOCKED_REPLY, snapshot=Snapshot())
    assert KEYS.mark(IP) == steps[-1].keys[0]
    assert decision.verdict is Verdict.BLOCKED


def test_an_allowlisted_request_when_it_meets_later_doors_stays_so() -> None:
    """Who was found on the allowlist is not asked again."""
    memory = Memory()
    memory.allowlisted = True
    decision, steps = later(memory, rule(), snapshot=Snapshot(**BANNED))
    assert (Reason.ALLOWLISTED, []) == (decision.reason, steps)


@given(
    asked_at=st.floats(1, 1e7),
    now_us=st.integers(1_700_000_000_000_000, 2_500_000_000_000_000),
    wait_us=st.integers(10, 60_000_000),
)
def test_a_denial_when_told_again_to_the_last_is_of_an_instant_before_its_end(
    asked_at: float, now_us: int, wait_us: int
) -> None:
    """C50: floats of this size are a quarter of a microsecond apart: an answer must not be told of the very end."""
    world = StubWorld("open", None, Local(DenyCache(10), None, Permits(), OutageLimits(0)), asked_at)

    def answered(answer: object = None) -> tuple[Decision, list[Any]]:
        return decide(ask(rule())._replace(world=world), answer)

    answered(reply((1, 0, wait_us, wait_us, now_us), verdict=1, now=now_us))
    known, unknown = asked_at, asked_at + wait_us / 1_000_000
    while known < (between := (known + unknown) / 2) < unknown:
        world.clock_s = between
        known, unknown = (known, between) if answered()[0].degraded else (between, unknown)
    world.clock_s = known
    again, steps = answered()
    assert [] == steps
    assert again.results[0].at < now_us + wait_us


def test_the_ruling_when_several_doors_spoke_is_over_all_of_them() -> None:
    """Headers describe the rule nearest its limit, whichever door met it; a second answer replaces the first."""
    memory = Memory()
    later(memory, rule("near"), answer=reply((0, 1, 0, 1, NOW)))
    later(memory, rule("far"), answer=reply(PASSED))
    assert ["near"] == [result.rule for result in [memory.ruling] if result]
    later(memory, rule("near"), answer=reply((0, 5, 0, 1, NOW)), units=2)
    assert ["far"] == [result.rule for result in [memory.ruling] if result]


def test_a_failure_when_it_was_open_leaves_nothing_charged() -> None:
    """What Redis did not confirm is not remembered as charged (C56)."""
    memory = Memory()
    later(memory, rule(), answer=StoreUnavailable("gone"))
    assert ({}, ()) == (memory.charged(), memory.marks)


def blocked() -> Decision:
    """Give a ban's denial."""
    return decide(ask(rule(), snapshot=Snapshot()), BLOCKED_REPLY)[0]


def limited(*rules: Rule, rows: tuple[tuple[float, ...], ...]) -> Decision:
    """Give a denial by rules."""
    return decide(ask(*rules, facts=StubFacts(USER)), reply(*rows, verdict=1))[0]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: limited(rule(), rows=(OVER,)), {(IP, "grab")}),
        (lambda: limited(rule("a"), rule("b"), rows=(PASSED, OVER)), {(IP, "b")}),
        (lambda: limited(rule("a", mode="shadow"), rule("b"), rows=(OVER, OVER)), {(IP, "b")}),
        (lambda: limited(rule("a"), rule("b", key="user"), rows=(OVER, OVER)), {(IP, "a"), (USER, "b")}),
        (lambda: limited(Rule(name="g", slot="@g:1/s", rates=rule().rates), rows=(OVER,)), {(IP, "@g")}),
        (lambda: decide(ask(rule()), reply(PASSED))[0], set()),
        (lambda: decide(ask(rule(), on_failure="closed"), StoreUnavailable())[0], set()),
        (blocked, set()),
    ],
)
def test_offences_when_a_request_is_denied_are_of_the_rules_that_denied(
    make: Callable[[], Decision], expected: set[tuple[str, str]]
) -> None:
    """Only limited requests are offences: not bans, not outages, not shadows; rules in code count by their group."""
    assert expected == offences_of(make())


def test_offences_when_an_identity_is_joined_are_of_the_whole() -> None:
    """`user+ip` is one offence; the buffer counts it for the user and for the address."""

    class Joined(StubFacts):
        def rule_identity(self, rule: Rule) -> str:
            """Both."""
            return f"{USER}+{IP}"

    decision, _ = decide(ask(rule(), facts=Joined()), reply(OVER, verdict=1))
    assert {(f"{USER}+{IP}", "grab")} == offences_of(decision)


def test_a_refund_when_written_names_each_charge() -> None:
    """First stamp, units and period of each log, and a time only in tests."""
    call = refund_call([Charge(3, b"key", NOW, 2, 60, 5)], None)
    assert ScriptCall("refund", [b"key"], [b"", struct.pack("<Bdddd", 3, NOW, 2, 60, 5)]) == call
    assert b"77" == refund_call([], 77).args[0]
