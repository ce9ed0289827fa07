"""
The flow of a decision, written once for sync and async.

`evaluate` is a generator: it yields what it needs (the user, a script call), gets the answer sent in, or the
failure thrown in. The order off, allowlist, blacklist, rules, verdict stands here and nowhere else, as do the
failure policy, shadow mode and "the longest wait wins".
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ratelimit_app.core.access_lists import latest
from ratelimit_app.core.asking import Ask, Memory, Need, Uncountable
from ratelimit_app.core.calls import (
    NO_RULE,
    ScriptCall,
    StoreUnavailable,
    blocked,
    judged,
    read_reply,
    refund_call,
)
from ratelimit_app.core.decision import Decision, Reason, Verdict
from ratelimit_app.core.leasing import draw
from ratelimit_app.core.local_answers import Asked, learn, recall
from ratelimit_app.core.plans import argument
from ratelimit_app.core.slots import PartlyAnswered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratelimit_app.core.calls import Demand
    from ratelimit_app.core.plans import Part, Plan

RETRY_UNAVAILABLE = 1.0


Flow = Generator[Any, Any, Decision]

DISABLED = Decision(True, Verdict.ALLOWED, Reason.DISABLED)
ALLOWLISTED = Decision(True, Verdict.ALLOWED, Reason.ALLOWLISTED)


def evaluate(ask: Ask) -> Flow:
    """Decide one request at one door, where limits are on. Raises Uncountable."""
    is_late = ask.door.late_user and ask.snapshot.allowed_users
    return _decide_late(ask) if is_late else _decide(ask)


def _decide(ask: Ask) -> Flow:  # noqa: C901, PLR0911 - the whole order on one screen
    """The order of a decision: allowlist, blacklist, rules, verdict."""
    facts, door, plan, snapshot, _ = ask
    memory = facts.memory
    if memory.allowlisted or (snapshot.allowed_networks and _allows_address(ask)):
        return ALLOWLISTED
    for fact in facts.unknown(plan.asked(snapshot, door.with_user)):
        yield Need(fact)
    if snapshot.allowed_users and door.with_user and _allows_user(ask):
        return ALLOWLISTED
    if snapshot.networks and (banned := _banned_network(ask)) is not None:
        return banned
    look = door.look or memory.denied is not None
    asked, call = _question(ask, look)
    if call is None:
        return NO_RULE
    if (known := recall(ask.world.local(), asked, ask.world.now_us)) is not None:
        memory.remember((), known)
        return known
    if plan.leased and not look:
        return (yield from _decide_leased(ask, asked))
    try:
        memory.require_store()
        reply = yield call
        decision = read_reply(reply, asked.marks, asked.demands, look)
    except StoreUnavailable as error:
        return (yield from _fall_back(ask, asked, error))
    learn(ask.world.local(), asked, reply)
    memory.remember(asked.marks, decision)
    return decision


def _fall_back(ask: Ask, asked: Asked, error: StoreUnavailable) -> Flow:
    """Decide without Redis, or without those of its servers that did not answer."""
    ask.facts.memory.store_failed = True
    if isinstance(error, PartlyAnswered):
        return (yield from _decide_partly(ask, asked, error))
    return _unavailable(ask, asked)


def _decide_partly(ask: Ask, asked: Asked, part: PartlyAnswered) -> Flow:
    """Decide what some servers of a cluster have answered, and follow the failure policy for what they have not."""
    memory, count = ask.facts.memory, len(asked.marks)
    rest = (
        [n for n in range(count) if n not in part.marks],
        [n for n in range(len(asked.demands)) if n not in part.rules],
    )
    answered, unanswered = (
        asked._replace(
            marks=[asked.marks[n] for n in marks],
            words=[asked.words[n] for n in marks] + [asked.words[count + n] for n in rules],
            demands=[asked.demands[n] for n in rules],
            definitions={
                name: asked.definitions[name] for n in rules for name in [asked.demands[n].part.name]
            },
        )
        for marks, rules in ((part.marks, part.rules), rest)
    )
    decision = read_reply(part.reply, answered.marks, answered.demands, asked.look)
    learn(ask.world.local(), answered, part.reply)
    memory.remember(answered.marks, decision)
    if not decision.allowed:
        return decision
    policy = _unavailable(ask, unanswered)
    if policy.allowed:
        return replace(recalled(memory) if memory.results else policy, degraded=True)
    if charges := decision.charges:
        # Denied, a request charges nothing. What cannot be given back leaves its window by itself.
        with suppress(StoreUnavailable):
            yield refund_call(charges, ask.world.frozen_now())
        for charge in charges:
            charge.refunded = True
    return policy


def _decide_late(ask: Ask) -> Flow:
    """Before a denial, learn whether the user is on the allowlist: only a denial is worth the session's query."""
    uncountable, decision = None, None
    try:
        decision = yield from _decide(ask)
    except Uncountable as error:
        uncountable = error
    if decision is not None and decision.allowed:
        return decision
    yield Need("user")
    if _allows_user(ask):
        return ALLOWLISTED
    if decision is None:
        raise uncountable or Uncountable
    return decision


def _decide_leased(ask: Ask, asked: Asked) -> Flow:
    """Take from the process's permits what is there; ask Redis for the rest, and for more permits."""
    local, memory = ask.world.local(), ask.facts.memory
    drawn = draw(local.permits, asked)
    asked, reply, decision = drawn.rest, None, None
    try:
        memory.require_store()
        if asked.words:
            reply = yield _call(ask, asked, argument(len(asked.marks), list(_told(asked.demands)), False))
        decision = drawn.judge(reply, ask.world.now_us())
    except StoreUnavailable:
        memory.store_failed = True
        decision = _unavailable(ask, asked)
    finally:
        drawn.settle(
            local.permits, reply if decision is not None and not decision.degraded else None, decision
        )
    if reply is not None and not decision.degraded:
        learn(local, asked, reply)
    if not decision.degraded:
        memory.remember(asked.marks, decision)
    return decision


def _told(demands: Iterable[Demand]) -> Iterable[tuple[Part, int, bool]]:
    return ((demand.part, demand.cost, demand.leased) for demand in demands)


def _allows_address(ask: Ask) -> bool:
    return ask.snapshot.allows_address(ask.facts.address, ask.world.now_us())


def _allows_user(ask: Ask) -> bool:
    return ask.snapshot.allows_user(ask.facts.user_identity(), ask.world.now_us())


def _banned_network(ask: Ask) -> Decision | None:
    address = ask.facts.address
    if address is None:
        return None
    ends = ask.snapshot.networks.ends(address)
    if not ends:
        return None
    now_us = ask.world.now_us()
    expires = latest(ends, now_us)
    return None if expires is None else blocked(f"ip:{address}", expires, now_us)


def _question(ask: Ask, look: bool) -> tuple[Asked, ScriptCall | None]:
    """Give what is to be judged, and the one call that asks for it; None where there is nothing to ask."""
    facts, door, plan, snapshot, world = ask
    memory = facts.memory
    marks, words, demands = facts.question(plan, snapshot, door)
    if memory.marks or memory.decisions:
        marks, words, demands = _left(memory, plan, marks, demands)
        told = argument(len(marks), list(_told(demands)), look)
    else:
        told = plan.argument(len(marks), door.units, look)
    generation = world.local().denials.generation
    asked = Asked(marks, words, demands, plan.definitions, world.clock(), generation, look)
    return asked, _call(ask, asked, told) if words else None


def _call(ask: Ask, asked: Asked, told: bytes) -> ScriptCall:
    frozen = ask.world.frozen_now()
    return ScriptCall("decide", asked.words, [told] if frozen is None else [told, b"%d" % frozen])


def _left(
    memory: Memory, plan: Plan, marks: Sequence[str], demands: list[Demand]
) -> tuple[Sequence[str], list[bytes], list[Demand]]:
    """Leave out the marks that earlier doors have looked at, and what they have charged."""
    charged = memory.charged()
    marks = [identity for identity in marks if identity not in memory.marks]
    left = []
    for demand in demands:
        cost = demand.cost - charged.get(demand.key, 0)
        if cost > 0 or not demand.cost:
            left.append(demand._replace(cost=max(cost, 0)))
    words = [plan.keys.mark(identity) for identity in marks]
    return marks, words + [demand.key for demand in left], left


def _unavailable(ask: Ask, asked: Asked) -> Decision:
    """Follow each rule's failure policy; marks that cannot be read follow the setting."""
    policy = ask.world.on_failure
    enforced = [demand.part.rule for demand in asked.demands if not demand.part.rule.shadow]
    closing = [rule for rule in enforced if (rule.on_failure or policy) == "closed"]
    if closing or (asked.marks and policy == "closed" and not ask.facts.is_spared):
        return Decision(
            False,
            Verdict.UNAVAILABLE,
            Reason.STORE_UNAVAILABLE,
            rule=closing[0].name if closing else None,
            retry_after=RETRY_UNAVAILABLE,
            degraded=True,
        )
    alone = [demand for demand in asked.demands if (demand.part.rule.on_failure or policy) == "local"]
    if alone:
        return _decide_alone(ask, alone, asked.look)
    memory = ask.facts.memory
    # Marks alone are left of the question: what its rules have granted stands.
    return replace(recalled(memory), degraded=True) if memory.decisions and not asked.demands else _OPEN


_OPEN = Decision(True, Verdict.ALLOWED, Reason.STORE_UNAVAILABLE, degraded=True)


def _decide_alone(ask: Ask, demands: list[Demand], look: bool) -> Decision:
    """Decide by what this process has granted itself. It charges no log in Redis, so there is nothing to give back."""
    memory, world = ask.facts.memory, ask.world
    row = world.local().outage.judge(demands, world.now_us(), world.local_share, look=look)
    made = judged(row, demands, look=True)
    results = tuple(replace(result, degraded=True) for result in made.results)
    decision = replace(made, degraded=True, results=results, charges=[])
    memory.remember((), decision)
    if decision.allowed and not look:
        memory.granted = {**(memory.granted or {}), **{demand.key: demand.cost for demand in demands}}
    return decision


def recalled(memory: Memory) -> Decision:
    """Say again what earlier doors found, for a door that has nothing to add; its charges are theirs."""
    chosen = memory.ruling
    results = tuple(memory.results.values())
    if chosen is None:
        return replace(NO_RULE, results=results)
    return Decision(
        True,
        Verdict.ALLOWED,
        Reason.WITHIN_LIMIT,
        rule=chosen.rule,
        limit=chosen.limit,
        remaining=chosen.remaining,
        reset_after=chosen.reset_after,
        degraded=any(result.degraded for result in results),
        results=results,
        charges=memory.charges,
    )


def offences_of(decision: Decision) -> set[tuple[str, str]]:
    """Give (identity, label) of the denying rules, each once; a ban's denial is no offence."""
    if decision.verdict is not Verdict.LIMITED:
        return set()
    denying = [result for result in decision.results if not result.allowed and not result.shadow]
    return {(result.identity, result.label) for result in denying}
