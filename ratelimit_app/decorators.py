"""The decorator: a rate for one view, or the admin's rules of a scope; it answers by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, wraps
from inspect import isawaitable, isclass
from typing import Any, TypeVar, cast

from asgiref.sync import iscoroutinefunction
from django.utils.module_loading import import_string

from ratelimit_app import engine
from ratelimit_app.conf import conf
from ratelimit_app.core.decision import Decision
from ratelimit_app.core.identity import IdentityError, Source, parse_sources
from ratelimit_app.core.rates import Rate, parse_rates
from ratelimit_app.core.rules import FAILURE_POLICIES, KeyFunction, Rule, check_limits, parse_methods
from ratelimit_app.exceptions import LimitError, Ratelimited
from ratelimit_app.limiter import Door, pass_door
from ratelimit_app.requests import RequestFacts, facts_of
from ratelimit_app.responses import add_headers, denial

ALL = None
UNSAFE = ("DELETE", "PATCH", "POST", "PUT")

RateSource = str | Callable[[str, Any], Any] | None
View = TypeVar("View", bound=Callable[..., Any])


class Limit:
    """What one decorator was asked for; checked when it is made. Raises LimitError."""

    def __init__(
        self,
        *,
        group: str | None,
        key: str | KeyFunction | None,
        rate: RateSource,
        method: str | Iterable[str] | None,
        cost: int,
        scope: str | None,
        algorithm: str,
        burst: int | None,
        on_failure: str | None,
    ) -> None:
        self.group, self.scope, self.rate, self.cost = group, scope, rate, cost
        self.algorithm, self.burst, self.on_failure = algorithm, burst, on_failure or ""
        self.unlimited = rate is None and scope is None
        try:
            self._check(key, on_failure)
            self.sources, self.key_function = read_key(key)
            names = [method] if isinstance(method, str) else method
            self.methods = parse_methods(",".join(names)) if names else frozenset()
            if isinstance(rate, str):
                check_limits(parse_rates(rate), algorithm, cost)
        except LimitError:
            raise
        except ValueError as error:
            raise LimitError(f"ratelimit: {error}") from error

    def _check(self, key: Any, on_failure: str | None) -> None:
        if key is None and self.scope is None:
            raise LimitError(
                "ratelimit: key is missing. Give key='ip' or another source, or a scope of admin rules."
            )
        if self.scope is not None and (key is not None or self.rate is not None):
            raise LimitError(
                f"ratelimit: scope={self.scope!r} applies the admin's rules; give it without key and rate, or leave it."
            )
        if on_failure and on_failure not in FAILURE_POLICIES:
            raise LimitError(
                f"ratelimit: on_failure={on_failure!r}: expected one of {', '.join(FAILURE_POLICIES)}."
            )
        if isinstance(self.cost, bool) or not isinstance(self.cost, int) or self.cost < 1:
            raise LimitError(f"ratelimit: cost={self.cost!r}: expected a whole number from 1.")

    def door(self, request: Any, group: str, sender: Any) -> Door | None:
        """Give what this decorator decides of a request; None where it has no limit for it."""
        if self.scope is not None:
            return Door(sender=sender, scope=self.scope, scopeless=False, units=self.cost)
        rates = read_rate(self.rate, self.group or group, request)
        if rates is None:
            return None
        rule = self._rule(self.group or group, rates)
        return Door(sender=sender, rules=[rule] if rule.covers_method(request.method) else [])

    def _rule(self, group: str, rates: tuple[Rate, ...]) -> Rule:
        written = self.rate if isinstance(self.rate, str) else "callable"
        methods = ",".join(sorted(self.methods))
        return Rule(
            name=group,
            slot=f"@{group}:{written}:{methods}" if methods else f"@{group}:{written}",
            rates=rates,
            sources=self.sources,
            methods=self.methods,
            algorithm=self.algorithm,
            burst=self.burst,
            cost=self.cost,
            on_failure=self.on_failure,
            key_function=self.key_function,
        )


def read_key(key: str | KeyFunction | None) -> tuple[tuple[Source, ...], KeyFunction | None]:
    """Read a key: a source, a callable (group, request), or its dotted path. Raises LimitError or IdentityError."""
    if callable(key):
        return (Source("view"),), key
    if key is None:
        return (Source("ip"),), None
    try:
        return parse_sources(key), None
    except IdentityError:
        if not isinstance(key, str) or "." not in key or ":" in key:
            raise
    try:
        function = import_string(key)
    except ImportError as error:
        raise LimitError(
            f"ratelimit: key={key!r} cannot be imported: {error}. Give a dotted path or a source."
        ) from error
    if not callable(function):
        raise LimitError(f"ratelimit: key={key!r} is {function!r}: expected a callable (group, request).")
    return (Source("view"),), function


def read_rate(rate: RateSource, group: str, request: Any) -> tuple[Rate, ...] | None:
    """Give the rates for a request: as written, or what the callable says: text, (limit, seconds) or None."""
    value = rate(group, request) if callable(rate) else rate
    if value is None:
        return None
    if isinstance(value, tuple):
        return (Rate(int(value[0]), round(value[1] * 1_000_000)),)
    return parse_rates(value)


def group_of(view: Any, owner: Any) -> str:
    """Name a view: its module and qualified name; a method's by the class of its instance."""
    while isinstance(view, partial):
        view = view.func
    owner = owner if owner is not None else getattr(view, "__self__", None)
    view_class = getattr(view, "view_class", None) or getattr(view, "cls", None)
    if owner is not None:
        return f"{type(owner).__module__}.{type(owner).__qualname__}.{view.__name__}"
    named = view_class or view
    name = getattr(named, "__qualname__", type(named).__qualname__)
    return f"{named.__module__}.{name}"


def ratelimit(
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
        block: answer 429, 403 or 503; False: only set `request.limited`.
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

    def decorate(view: View) -> View:
        if isclass(view):
            raise LimitError(
                f"ratelimit cannot decorate the class {view.__name__}: use method_decorator on a method."
            )
        return cast("View", _decorated(view, limit, block))

    return decorate


ratelimit.ALL = ALL  # type: ignore[attr-defined]
ratelimit.UNSAFE = UNSAFE  # type: ignore[attr-defined]


def _decorated(view: Callable[..., Any], limit: Limit, block: bool) -> Callable[..., Any]:
    @wraps(view)
    async def acall(*args: Any, **kwargs: Any) -> Any:
        request, facts, door = _opening(view, limit, args)
        decision = await engine.arun(pass_door(facts, door), facts) if door else None
        answer = _answer(request, facts, decision, block)
        if answer is None:
            answer = view(*args, **kwargs)
            answer = await answer if isawaitable(answer) else answer
        return _headed(facts, answer)

    @wraps(view)
    def call(*args: Any, **kwargs: Any) -> Any:
        if getattr(_owner(view, args), "view_is_async", False):
            return acall(*args, **kwargs)
        request, facts, door = _opening(view, limit, args)
        decision = engine.run(pass_door(facts, door), facts) if door else None
        answer = _answer(request, facts, decision, block)
        return _headed(facts, view(*args, **kwargs) if answer is None else answer)

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
        raise LimitError(
            f"ratelimit: {view!r} was called without a request: decorate views and their methods only."
        )
    facts = facts_of(request)
    facts.request.limited = getattr(facts.request, "limited", False)  # type: ignore[attr-defined]
    group = limit.group or group_of(view, _owner(view, args))
    return request, facts, limit.door(facts.request, group, view)


def _answer(request: Any, facts: RequestFacts, decision: Decision | None, block: bool) -> Any:
    if decision is None or decision.allowed:
        return None
    facts.request.limited = True  # type: ignore[attr-defined]
    if not block:
        return None
    if conf.raise_:
        facts.raised = decision
        raise Ratelimited(decision)
    return denial(facts.request, decision, as_json=request is not facts.request or facts.route.is_drf)


def _headed(facts: RequestFacts, response: Any) -> Any:
    if hasattr(response, "headers"):
        add_headers(response, facts.memory)
    return response
