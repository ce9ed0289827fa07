"""The functions of the app: check, acquire, peek, refund and reset, each with an async twin."""

from __future__ import annotations

import asyncio
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from ratelimit_app import engine, local_cache, snapshot_cache
from ratelimit_app.conf import conf
from ratelimit_app.core.asking import Door
from ratelimit_app.core.calls import NO_RULE, StoreUnavailable, refund_call
from ratelimit_app.core.decision import Decision
from ratelimit_app.core.plans import Plan
from ratelimit_app.core.rates import MAX_LIMIT, parse_rates
from ratelimit_app.core.rules import Rule, check_limits
from ratelimit_app.doors import pass_door
from ratelimit_app.identities import IdentityFacts, canonical, named, resolved
from ratelimit_app.repeats import denied_again
from ratelimit_app.requests import facts_of
from ratelimit_app.store.connection import client, unavailable

if TYPE_CHECKING:
    from ratelimit_app.core.evaluation import Flow
    from ratelimit_app.core.keys import Keys


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


@lru_cache(maxsize=1_024, typed=True)
def _check_door(scope: str | None, cost: int) -> Door:
    return Door(sender=check, scope=scope or "", units=_whole(cost), look=cost == 0)


def _whole(cost: int) -> int:
    if type(cost) is not int or not 0 <= cost <= MAX_LIMIT:
        msg = f"cost={cost!r} is not a cost: expected a whole number from 0 to {MAX_LIMIT:,}. 0 looks without charging."
        raise ValueError(msg)
    return cost


@lru_cache(maxsize=4_096, typed=True)
def _door(  # noqa: PLR0913, PLR0917 - what the four functions take
    sender: Any, rate: str, group: str, algorithm: str, cost: int, burst: int | None, keys: Keys
) -> Door:
    """Make the door of a call in code. Raises ValueError (RateError, RuleError)."""
    if type(group) is not str or not group:
        msg = f"group={group!r}: expected a name for what is limited, such as 'login'."
        raise ValueError(msg)
    if burst is not None and (type(burst) is not int or not 1 <= burst <= MAX_LIMIT):
        msg = f"burst={burst!r}: expected a whole number from 1 to {MAX_LIMIT:,}, or None for the rate's own limit."
        raise ValueError(msg)
    _whole(cost)
    rates = parse_rates(rate)
    check_limits(rates, algorithm, 1)
    rule = Rule(name=group, slot=f"@{group}", rates=rates, algorithm=algorithm, burst=burst)
    look = sender is peek or cost == 0
    return Door(sender=sender, plan=Plan([rule], keys), units=cost, look=look)


def _ask(  # noqa: PLR0913, PLR0917 - what the four functions take
    sender: Any, identity: str, rate: str | None, group: str, algorithm: str, cost: int, burst: int | None
) -> Decision | Flow:
    """Decide a rate for an identity that code names, at once where that can be, else by the flow to be run."""
    if rate is None:
        canonical(identity)
        return NO_RULE
    try:
        door = _door(sender, rate, group, algorithm, cost, burst, conf.keys)
    except TypeError as error:
        msg = f"rate={rate!r}, group={group!r}, cost={cost!r}: expected text, text and a whole number ({error})."
        raise ValueError(msg) from error
    who = named(identity)
    return denied_again(door, who) or pass_door(IdentityFacts(who), door)


async def _aresolved(identity: str) -> str:
    """A project's normaliser may ask its database."""
    return await sync_to_async(resolved)(identity) if conf.normalizers else identity


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
    asked = _ask(acquire, identity, rate, group, algorithm, cost, burst)
    return asked if isinstance(asked, Decision) else engine.run(asked)


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
    asked = _ask(acquire, await _aresolved(identity), rate, group, algorithm, cost, burst)
    return asked if isinstance(asked, Decision) else await engine.arun(asked)


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
    asked = _ask(peek, identity, rate, group, algorithm, cost, burst)
    return asked if isinstance(asked, Decision) else engine.run(asked)


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
    asked = _ask(peek, await _aresolved(identity), rate, group, algorithm, cost, burst)
    return asked if isinstance(asked, Decision) else await engine.arun(asked)


def refund(decision: Decision) -> int:
    """
    Give back what a decision charged: each charge once, and nothing after its window.

    Returns the units given back: 0 for a denied or refunded decision, and when Redis cannot answer.
    """
    return int(engine.run(_refund(decision)))


async def arefund(decision: Decision) -> int:
    """Like refund, for async code."""
    return int(await engine.arun(_refund(decision)))


_refunding = threading.Lock()


def _refund(decision: Decision) -> Any:
    with _refunding:
        charges = [charge for charge in decision.charges if not charge.refunded]
        for charge in charges:
            charge.refunded = True
    if not charges:
        return 0
    try:
        return (yield refund_call(charges, snapshot_cache.frozen_now()))
    except StoreUnavailable:
        return 0
    finally:
        # Afterwards: a denial that was on its way meanwhile does not know of the room.
        for charge in charges:
            local_cache.local().denials.discard(charge.key)


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
