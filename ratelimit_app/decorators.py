"""The decorator: a rate for one view, or the admin's rules of a scope; it answers by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from inspect import currentframe, isawaitable, isclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from asgiref.sync import iscoroutinefunction

from ratelimit_app import engine
from ratelimit_app.conf import conf
from ratelimit_app.doors import pass_door
from ratelimit_app.exceptions import BodyTooLarge, LimitError, Ratelimited
from ratelimit_app.limits import ALL, Limit, RateSource, decorating, group_of, with_methods
from ratelimit_app.requests import RequestFacts, facts_of
from ratelimit_app.responses import add_headers, denial, too_large

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from ratelimit_app.core.asking import Door
    from ratelimit_app.core.decision import Decision
    from ratelimit_app.core.rules import KeyFunction

View = TypeVar("View", bound=Callable[..., Any])


@with_methods
def ratelimit(  # noqa: PLR0913 - django-ratelimit's arguments, and ours by keyword
    group: str | None = None,
    key: str | KeyFunction | None = None,
    rate: RateSource = None,
    method: str | Iterable[str] | None = ALL,
    block: bool = True,
    *,
    cost: int = 1,
    scope: str | None = None,
    algorithm: str = "sliding_window",
    burst: int | None = None,
    on_failure: str | None = None,
) -> Callable[[View], View]:
    """
    Limit a view, sync or async: a function, a method, an action, or a class's `dispatch` by `method_decorator`.

    Args:
        group: what is counted together; by default the view itself.
        key: who is counted: a source such as `ip` or `user+ip`, a callable (group, request) or its dotted path.
        rate: such as `5/m`, a callable (group, request), or None for no limit.
        method: HTTP methods; by default all but OPTIONS.
        block: answer 429, 403, 503, or 413; False: only set `request.limited`.
        cost: units that one request takes.
        scope: apply the admin's rules of this scope instead of a key and a rate.
        algorithm, burst, on_failure: as on the admin's rules.

    Raises LimitError (an ImproperlyConfigured and a ValueError) when the view is decorated.
    """
    limit = Limit(
        group=group,
        key=key,
        rate=rate,
        method=method,
        cost=cost,
        scope=scope,
        algorithm=algorithm,
        burst=burst,
        on_failure=on_failure,
    )
    decorating[limit] = _place(currentframe())

    def decorate(view: View) -> View:
        if isclass(view):
            msg = f"ratelimit cannot decorate the class {view.__name__}: use method_decorator on a method."
            raise LimitError(msg)
        others = getattr(view, "ratelimit_limits", ())
        limit.stand_beside(others)
        decorated = _decorated(view, limit, block)
        decorated.__dict__["ratelimit_limits"] = (*others, limit)
        return cast("View", decorated)

    return decorate


def _place(frame: FrameType | None) -> str:
    """Say where a function of ours was called, for people who look for the line."""
    caller = frame and frame.f_back
    return f"{caller.f_code.co_filename}:{caller.f_lineno}" if caller else "an unknown place"


def _decorated(view: Callable[..., Any], limit: Limit, block: bool) -> Callable[..., Any]:
    @wraps(view)
    async def acall(*args: Any, **kwargs: Any) -> Any:
        request, facts, door = _opening(view, limit, args)
        try:
            decision = await engine.arun(pass_door(facts, door), facts) if door else None
            answer = _answer(request, facts, decision, block)
        except BodyTooLarge:
            answer = _refusal(request, facts, block)
        if answer is None:
            answer = view(*args, **kwargs)
            answer = await answer if isawaitable(answer) else answer
        return _headed(facts, _refused(request, facts, block) or answer)

    @wraps(view)
    def call(*args: Any, **kwargs: Any) -> Any:
        if getattr(_owner(view, args), "view_is_async", False):
            return acall(*args, **kwargs)
        request, facts, door = _opening(view, limit, args)
        try:
            decision = engine.run(pass_door(facts, door), facts) if door else None
            answer = _answer(request, facts, decision, block)
        except BodyTooLarge:
            answer = _refusal(request, facts, block)
        answer = view(*args, **kwargs) if answer is None else answer
        return _headed(facts, _refused(request, facts, block) or answer)

    called = getattr(view, "__call__", None)  # noqa: B004 - an instance may have an async __call__
    return acall if iscoroutinefunction(view) or iscoroutinefunction(called) else call


def _owner(view: Any, args: tuple[Any, ...]) -> Any:
    """Give the instance that a method belongs to: its first argument, or what it is bound to."""
    if args and not hasattr(args[0], "META"):
        return args[0]
    while isinstance(view, partial):
        view = view.func
    return getattr(view, "__self__", None)


def _opening(view: Any, limit: Limit, args: tuple[Any, ...]) -> tuple[Any, RequestFacts, Door | None]:
    request = next((arg for arg in args[:2] if hasattr(arg, "META")), None)
    if request is None:
        msg = f"ratelimit: {view!r} was called without a request: decorate views and their methods only."
        raise LimitError(msg)
    facts = facts_of(request)
    facts.request.limited = getattr(facts.request, "limited", False)
    group = limit.group or group_of(view, _owner(view, args))
    return request, facts, limit.door(facts.request, group, view)


def _answer(request: Any, facts: RequestFacts, decision: Decision | None, block: bool) -> Any:
    if decision is None or decision.allowed:
        return None
    facts.request.limited = True
    if not block:
        return None
    if conf.raise_:
        facts.raised = decision
        raise Ratelimited(decision)
    return denial(facts.request, decision, as_json=_wants_json(request, facts))


def _refusal(request: Any, facts: RequestFacts, block: bool) -> Any:
    """A body that hides what is counted is over the limit, whoever answers."""
    facts.request.limited = True
    return too_large(facts.request, as_json=_wants_json(request, facts)) if block else None


def _refused(request: Any, facts: RequestFacts, block: bool) -> Any:
    """Give the answer to a try to authenticate that was turned away: to the view it looks like a wrong password."""
    if facts.refused is None or not block:
        return None
    return denial(facts.request, facts.refused, as_json=_wants_json(request, facts))


def _wants_json(request: Any, facts: RequestFacts) -> bool:
    """Whether the view is DRF's: it was called with DRF's request, or is routed as one."""
    return request is not facts.request or facts.route.is_drf


def _headed(facts: RequestFacts, response: Any) -> Any:
    if hasattr(response, "headers"):
        add_headers(response, facts.memory)
    return response
