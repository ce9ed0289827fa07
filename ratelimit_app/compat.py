"""
The two functions of django-ratelimit, over this app's limits.

What differs from django-ratelimit: the window slides; a denied request is not counted, so that `count` never
passes `limit`; a call that only looks says whether the next request would be denied.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any, TypedDict

from ratelimit_app import engine
from ratelimit_app.conf import conf
from ratelimit_app.core.decision import Decision, Verdict
from ratelimit_app.doors import pass_door
from ratelimit_app.exceptions import LimitError
from ratelimit_app.limits import ALL, Limit, RateSource, group_of, with_methods
from ratelimit_app.requests import RequestFacts, facts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ratelimit_app.core.asking import Door
    from ratelimit_app.core.rules import KeyFunction

NEVER = -1


class Usage(TypedDict):
    """
    How much of a limit is used.

    `time_left`: whole seconds: until a denied request could pass, -1 when it never can; else until nothing is
    counted any more. `limit` is 0 where no limit decided: a blacklisted client, or Redis away under `closed`.
    """

    count: int
    limit: int
    should_limit: bool
    time_left: int


@with_methods
def is_ratelimited(  # noqa: PLR0913, PLR0917 - django-ratelimit's own signature
    request: Any,
    group: str | None = None,
    fn: Callable[..., Any] | None = None,
    key: str | KeyFunction | None = None,
    rate: RateSource = None,
    method: str | Iterable[str] | None = ALL,
    increment: bool = False,
) -> bool:
    """Tell whether a request is over its limit. Arguments and errors are those of get_usage."""
    usage = get_usage(request, group, fn, key, rate, method, increment)
    return usage is not None and usage["should_limit"]


@with_methods
def get_usage(  # noqa: PLR0913, PLR0917 - django-ratelimit's own signature
    request: Any,
    group: str | None = None,
    fn: Callable[..., Any] | None = None,
    key: str | KeyFunction | None = None,
    rate: RateSource = None,
    method: str | Iterable[str] | None = ALL,
    increment: bool = False,
) -> Usage | None:
    """
    Tell how much of a limit is used; None where there is none for this request, or Redis is away under `open`.

    `group`: what is counted together, or `fn`: the view to name it by. `key`, `rate`, `method`: as the
    decorator's. `increment`: count the request if it is within the limit, at each call; else only look.
    Raises LimitError (an ImproperlyConfigured and a ValueError).
    """
    if group is None and fn is None:
        msg = "is_ratelimited and get_usage need a group, such as group='login', or the view as fn."
        raise LimitError(msg)
    if not conf.enabled or rate is None:
        return None
    facts = facts_of(request)
    door = _door(facts, group or group_of(fn, None), key, rate, method)
    if door is None or door.plan is None or not door.plan.rules:
        return None
    return _usage(_decide(facts, door, increment))


def _door(facts: RequestFacts, group: str, key: Any, rate: RateSource, method: Any) -> Door | None:
    limit = Limit(
        group=group,
        key=key,
        rate=rate,
        method=method,
        cost=1,
        scope=None,
        algorithm="sliding_window",
        burst=None,
        on_failure=None,
    )
    try:
        return limit.door(facts.request, group, get_usage)
    except LimitError:
        raise
    except ValueError as error:
        msg = f"ratelimit: {error}"
        raise LimitError(msg) from error


def _decide(facts: RequestFacts, door: Door, increment: bool) -> Decision:
    """Each call counts, as the caller says so, even where another one has charged this request."""
    memory = facts.memory
    before, memory.decisions = memory.decisions, ()
    try:
        return engine.run(pass_door(facts, replace(door, look=not increment)), facts)
    finally:
        memory.decisions = before + memory.decisions


def _usage(decision: Decision) -> Usage | None:
    if decision.verdict in (Verdict.BLOCKED, Verdict.UNAVAILABLE):
        wait = NEVER if decision.verdict is Verdict.UNAVAILABLE else _seconds(decision.retry_after)
        return Usage(count=0, limit=0, should_limit=True, time_left=wait)
    result = decision.ruling
    if result is None:
        return None
    return Usage(
        count=result.limit - result.remaining,
        limit=result.limit,
        should_limit=not decision.allowed,
        time_left=_seconds(result.reset_after if decision.allowed else result.retry_after),
    )


def _seconds(duration: float | None) -> int:
    return NEVER if duration is None else ceil(duration)
