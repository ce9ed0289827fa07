"""The functions of the app, and what all its doors share: one flow from a request to a decision that is kept."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ratelimit_app import engine, offences, snapshot_cache
from ratelimit_app.conf import conf
from ratelimit_app.core.calls import StoreUnavailable, refund_call
from ratelimit_app.core.decision import Decision, Reason, Verdict
from ratelimit_app.core.evaluation import (
    ALLOWLISTED,
    DISABLED,
    NO_RULE,
    RETRY_UNAVAILABLE,
    Ask,
    Flow,
    Memory,
    Need,
    evaluate,
    offences_of,
    recalled,
)
from ratelimit_app.core.matching import select
from ratelimit_app.core.rates import parse_rates
from ratelimit_app.core.rules import Rule, check_limits
from ratelimit_app.core.snapshot import EMPTY, Snapshot
from ratelimit_app.identities import IdentityFacts, canonical
from ratelimit_app.requests import facts_of
from ratelimit_app.signals import request_denied
from ratelimit_app.store.connection import client, unavailable

NO_SNAPSHOT = Decision(
    False, Verdict.UNAVAILABLE, Reason.STORE_UNAVAILABLE, retry_after=RETRY_UNAVAILABLE, degraded=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """
    What one door decides.

    `rules`: its own; None: the snapshot's of `scope`, and those without a scope when `scopeless`. `beside`: rules
    in code that are decided together with these.
    `users`: which rules and marks: `all` at once, `none` of those that need the user, or `only` those.
    `late_user`: whether a denial may still ask whether the user is on the allowlist.
    """

    sender: Any
    rules: list[Rule] | None = None
    beside: tuple[Rule, ...] = ()
    scope: str = ""
    scopeless: bool = True
    users: str = "all"
    late_user: bool = False
    units: int = 1
    look: bool = False


def pass_door(facts: Any, door: Door) -> Flow:
    """Decide what a door decides, and keep it: for later doors, the offences and the signal."""
    if not conf.enabled:
        return DISABLED
    memory: Memory = facts.memory
    began = time.monotonic()
    try:
        memory.snapshot = memory.snapshot or (yield from _snapshot(memory))
    except StoreUnavailable:
        # A process that knows already that it has none waits for nothing, and may find Redis answering again.
        memory.store_failed |= time.monotonic() - began > conf.store_timeout / 2
        if conf.on_failure == "closed" and not _spared(facts, door):
            return (yield from _conclude(facts, door, NO_SNAPSHOT))
    decision = yield from evaluate(_ask(facts, door, memory.snapshot or EMPTY))
    if memory.snapshot is None and door.rules is None:
        decision = replace(decision, degraded=True)
    return (yield from _conclude(facts, door, decision))


def _snapshot(memory: Memory) -> Any:
    """Ask for the snapshot, unless this request has already waited for Redis in vain."""
    if memory.store_failed:
        msg = "Redis did not answer this request before"
        raise StoreUnavailable(msg)
    return (yield Need("snapshot"))


def _spared(facts: Any, door: Door) -> bool:
    """Rules in code need no snapshot, and the admin site stays reachable."""
    return door.rules is not None or facts.is_spared


def _ask(facts: Any, door: Door, snapshot: Snapshot) -> Ask:
    rules = door.rules
    if rules is None:
        method = facts.request.method or "GET"
        rules = select(snapshot, facts.route, method, scope=door.scope, scopeless=door.scopeless)
    if door.users != "all":
        rules = [rule for rule in rules if rule.needs_user == (door.users == "only")]
    return Ask(
        rules=[*rules, *door.beside],
        facts=facts,
        snapshot=snapshot,
        keys=conf.keys,
        now_us=snapshot_cache.now_us(),
        with_user=door.users != "none",
        late_user=door.late_user,
        units=door.units,
        look=door.look,
        on_failure=conf.on_failure,
        frozen_now=snapshot_cache.frozen_now(),
        memory=facts.memory,
    )


def _conclude(facts: Any, door: Door, decision: Decision) -> Flow:
    memory: Memory = facts.memory
    if decision is ALLOWLISTED:
        memory.allowlisted = True
    if decision.allowed or door.look:
        return recalled(memory) if decision is NO_RULE and memory.results else decision
    first, memory.denied = memory.denied is None, decision
    if first:
        offences.record(offences_of(decision))
        if request_denied.has_listeners(door.sender):
            arguments = {"request": getattr(facts, "request", None), "decision": decision}
            yield engine.Announce(request_denied, door.sender, arguments)
    return decision


def check(request: Any, *, scope: str | None = None, cost: int = 1) -> Decision:
    """
    Decide a request by the lists and the rules of `scope` and those without one, charging them once.

    `cost`: units that the request is worth in all; what earlier doors have charged counts towards it.
    """
    facts = facts_of(request)
    return engine.run(pass_door(facts, _check_door(scope, cost)), facts)


async def acheck(request: Any, *, scope: str | None = None, cost: int = 1) -> Decision:
    """Like check, for async code."""
    facts = facts_of(request)
    return await engine.arun(pass_door(facts, _check_door(scope, cost)), facts)


def _check_door(scope: str | None, cost: int) -> Door:
    return Door(sender=check, scope=scope or "", units=_whole(cost))


def _whole(cost: int) -> int:
    if type(cost) is not int or cost < 0:
        msg = f"cost={cost!r} is not a cost: expected a whole number from 0. 0 looks without charging."
        raise ValueError(msg)
    return cost


@lru_cache(maxsize=4_096)
def code_rule(group: str, rate: str, algorithm: str, burst: int | None, slot: str) -> Rule:
    """Make the rule of a call in code. Raises RateError or RuleError."""
    rates = parse_rates(rate)
    check_limits(rates, algorithm, 1)
    return Rule(name=group, slot=slot, rates=rates, algorithm=algorithm, burst=burst)


def _acquire(  # noqa: PLR0913 - what the four functions take
    sender: Any,
    identity: str,
    rate: str | None,
    *,
    group: str,
    algorithm: str,
    cost: int,
    burst: int | None,
) -> Flow:
    """Decide a rate for an identity that code names; all four functions are this flow."""
    if rate is None:
        return NO_RULE
    if type(group) is not str or not group:
        msg = f"group={group!r}: expected a name for what is limited, such as 'login'."
        raise ValueError(msg)
    rule = code_rule(group, rate, algorithm, burst, f"@{group}")
    door = Door(sender=sender, rules=[rule], units=_whole(cost), look=sender is peek or cost == 0)
    return (yield from pass_door(IdentityFacts(identity), door))


def acquire(
    identity: str,
    rate: str | None,
    *,
    group: str,
    algorithm: str = "sliding_window",
    cost: int = 1,
    burst: int | None = None,
) -> Decision:
    """
    Take `cost` units of a rate for an identity, if they are there; decided by Redis in one trip.

    `identity`: text such as `user:42` or `ip:203.0.113.9`. `rate`: such as `5/s`; None: no limit.
    `group`: what is limited; identities are counted for each group on its own.
    Raises ValueError for a bad identity, rate, group or cost.
    """
    return engine.run(
        _acquire(acquire, identity, rate, group=group, algorithm=algorithm, cost=cost, burst=burst)
    )


async def aacquire(
    identity: str,
    rate: str | None,
    *,
    group: str,
    algorithm: str = "sliding_window",
    cost: int = 1,
    burst: int | None = None,
) -> Decision:
    """Like acquire, for async code."""
    return await engine.arun(
        _acquire(acquire, identity, rate, group=group, algorithm=algorithm, cost=cost, burst=burst)
    )


def peek(
    identity: str,
    rate: str | None,
    *,
    group: str,
    algorithm: str = "sliding_window",
    cost: int = 1,
    burst: int | None = None,
) -> Decision:
    """Tell what acquire would answer, charging nothing. Arguments and errors are those of acquire."""
    return engine.run(
        _acquire(peek, identity, rate, group=group, algorithm=algorithm, cost=cost, burst=burst)
    )


async def apeek(
    identity: str,
    rate: str | None,
    *,
    group: str,
    algorithm: str = "sliding_window",
    cost: int = 1,
    burst: int | None = None,
) -> Decision:
    """Like peek, for async code."""
    return await engine.arun(
        _acquire(peek, identity, rate, group=group, algorithm=algorithm, cost=cost, burst=burst)
    )


def refund(decision: Decision) -> int:
    """
    Give back what a decision charged: each charge once, and nothing after its window.

    Returns the units given back: 0 for a denied or refunded decision, and when Redis cannot answer.
    """
    return int(engine.run(_refund(decision)))


async def arefund(decision: Decision) -> int:
    """Like refund, for async code."""
    return int(await engine.arun(_refund(decision)))


def _refund(decision: Decision) -> Any:
    charges, decision.charges[:] = list(decision.charges), []
    if not charges:
        return 0
    try:
        return (yield refund_call(charges, snapshot_cache.frozen_now()))
    except StoreUnavailable:
        return 0


def reset(identity: str) -> int:
    """
    Forget all that is counted for an identity, under every rule and group. Returns the number of logs deleted.

    Walks the keyspace with SCAN: meant for people and tests, not for requests. Raises StoreUnavailable.
    """
    written = canonical(identity)
    pattern = conf.keys.logs_pattern(written)
    deleted = 0
    with unavailable():
        redis = client()
        for key in redis.scan_iter(match=pattern, count=1_000):
            deleted += int(redis.unlink(key))
    snapshot_cache.have_forgotten([written])
    return deleted


async def areset(identity: str) -> int:
    """Like reset, for async code."""
    return await asyncio.to_thread(reset, identity)
