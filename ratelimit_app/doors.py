"""Doors: what each of them decides, and the one flow from a request to a decision that is kept."""

from __future__ import annotations

import atexit
import time
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from ratelimit_app import engine, local_cache, offences, snapshot_cache
from ratelimit_app.background import Periodic
from ratelimit_app.conf import conf
from ratelimit_app.core.asking import Ask, Door, Memory, Need
from ratelimit_app.core.calls import NO_RULE, StoreUnavailable, refund_call
from ratelimit_app.core.decision import Decision, Reason, Verdict
from ratelimit_app.core.evaluation import (
    ALLOWLISTED,
    DISABLED,
    RETRY_UNAVAILABLE,
    Flow,
    evaluate,
    offences_of,
    recalled,
)
from ratelimit_app.core.matching import known_method
from ratelimit_app.core.plans import Plan
from ratelimit_app.core.snapshot import EMPTY, Snapshot
from ratelimit_app.signals import request_denied
from ratelimit_app.store.gateway import gateway

if TYPE_CHECKING:
    from collections.abc import Generator

MAX_PLANS = 2_000
RETURN_INTERVAL = 0.2
NO_SNAPSHOT = Decision(
    False, Verdict.UNAVAILABLE, Reason.STORE_UNAVAILABLE, retry_after=RETRY_UNAVAILABLE, degraded=True
)


class _World:
    """What this process knows beside its snapshot."""

    local = staticmethod(local_cache.local)
    clock = staticmethod(snapshot_cache.clock)
    now_us = staticmethod(snapshot_cache.now_us)
    frozen_now = staticmethod(snapshot_cache.frozen_now)

    @property
    def on_failure(self) -> str:
        return conf.on_failure

    @property
    def local_share(self) -> float:
        return conf.local_share


_world = _World()


def give_back(now: float | None = None) -> None:
    """Give back the permits that are void at `now` (seconds on the process's clock), None: by now. Raises nothing."""
    local = local_cache.local()
    charges = local.permits.unused(snapshot_cache.clock() if now is None else now)
    if charges:
        with suppress(StoreUnavailable):  # What cannot be given back leaves its window by itself.
            gateway().call(refund_call(charges, snapshot_cache.frozen_now()))
        for charge in charges:
            local.denials.discard(charge.key)


_returning = Periodic("permits", give_back, lambda: RETURN_INTERVAL)
atexit.register(give_back, inf)


def pass_door(facts: Any, door: Door) -> Flow:
    """Decide what a door decides, and keep it: for later doors, the offences and the signal."""
    if not conf.enabled:
        return DISABLED
    memory: Memory = facts.memory
    snapshot = memory.snapshot or snapshot_cache.known()
    if snapshot is None:
        snapshot = yield from _first_snapshot(memory)
        if snapshot is None and conf.on_failure == "closed" and not _spared(facts, door):
            return (yield from _conclude(facts, door, NO_SNAPSHOT))
    memory.snapshot = snapshot
    plan = door.plan or _plan(facts, door, snapshot or EMPTY)
    decision = yield from evaluate(Ask(facts, door, plan, snapshot or EMPTY, _world))
    if snapshot is None and door.plan is None:
        decision = replace(decision, degraded=True)
    if plan.leased:
        _returning.start()
    if decision.reason is _WITHIN_LIMIT:
        return decision
    return (yield from _conclude(facts, door, decision))


_WITHIN_LIMIT = Reason.WITHIN_LIMIT


def _first_snapshot(memory: Memory) -> Any:
    """Wait for a process's first snapshot, unless this request has already waited for Redis in vain."""
    if memory.store_failed:
        return None
    began = time.monotonic()
    try:
        return (yield Need("snapshot"))
    except StoreUnavailable:
        # A process that knows already that it has none waits for nothing, and may find Redis answering again.
        memory.store_failed = time.monotonic() - began > conf.store_timeout / 2
        return None


def _spared(facts: Any, door: Door) -> bool:
    """Rules in code need no snapshot, and the admin site stays reachable."""
    return door.plan is not None or facts.is_spared


def _plan(facts: Any, door: Door, snapshot: Snapshot) -> Plan:
    """Give what this door comes to for a request of this place and method."""
    keys, plans, matcher = conf.keys, snapshot.plans, snapshot.matcher
    method = known_method(facts.request.method or "GET")
    place = matcher.place(facts.route)
    key = (door, place, method, keys)
    plan: Plan | None = plans.get(key)
    if plan is None:
        rules = matcher.select(place, method, scope=door.scope, scopeless=door.scopeless)
        if door.users != "all":
            rules = [rule for rule in rules if rule.needs_user == (door.users == "only")]
        plan = Plan((*rules, *door.beside), keys)
        if len(plans) >= MAX_PLANS:
            plans.clear()
        if not door.beside:
            plans[key] = plan
    return plan


def _conclude(facts: Any, door: Door, decision: Decision) -> Flow:
    memory: Memory = facts.memory
    if decision is ALLOWLISTED:
        memory.allowlisted = True
    if decision.allowed or door.look:
        return recalled(memory) if decision is NO_RULE and memory.decisions else decision
    yield from turn_away(facts, door, decision)
    return decision


def turn_away(facts: Any, door: Door, decision: Decision) -> Generator[Any, Any, None]:
    """Keep a denial, and tell of a request's first one: to the offences and to who listens."""
    memory: Memory = facts.memory
    first, memory.denied = memory.denied is None, decision
    if first:
        offences.record(offences_of(decision))
        if request_denied.has_listeners(door.sender):
            arguments = {"request": getattr(facts, "request", None), "decision": decision}
            yield engine.Announce(request_denied, door.sender, arguments)
