"""A limit as code asks for it: key, rate, methods and group, checked when it is made."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from django.utils.module_loading import import_string

from ratelimit_app.conf import conf
from ratelimit_app.core.asking import Door
from ratelimit_app.core.identity import IdentityError, Source, are_client_chosen, hold_client, parse_sources
from ratelimit_app.core.plans import Plan
from ratelimit_app.core.rates import MAX_PERIOD_US, Rate, RateError, parse_rates
from ratelimit_app.core.rules import FAILURE_POLICIES, METHODS, KeyFunction, Rule, check_limits, parse_methods
from ratelimit_app.exceptions import LimitError

ALL = None
UNSAFE = ("DELETE", "PATCH", "POST", "PUT")

RateSource = str | tuple[int, float] | Callable[[str, Any], Any] | None
P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
_DOTTED_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


class WithMethods(Protocol[P, R_co]):
    """A function with django-ratelimit's names for sets of methods."""

    ALL: None
    UNSAFE: tuple[str, ...]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


def with_methods(function: Callable[P, R_co]) -> WithMethods[P, R_co]:
    """Give a function the names ALL and UNSAFE, for type checkers too."""
    named = cast("WithMethods[P, R_co]", function)
    named.ALL, named.UNSAFE = ALL, UNSAFE
    return named


class Limit:
    """What one decorator or call was asked for; checked when it is made. Raises LimitError."""

    def __init__(  # noqa: PLR0913 - what a decorator takes
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
        self.group, self.scope, self.cost = group, scope, cost
        self.written = rate if isinstance(rate, str) else "callable"
        self.algorithm, self.burst, self.on_failure = algorithm, burst, on_failure or ""
        self.is_backed = False
        self._scope_door: Door | None = None
        self._door: tuple[Any, Door] | None = None
        try:
            self.rate = _imported(rate, "rate")
            self._check(key, on_failure)
            self._check_types()
            self.sources, self.key_function = read_key(key)
            names = [method] if isinstance(method, str) else method
            self.methods = parse_methods(",".join(names)) if names else frozenset()
            if isinstance(self.rate, str):
                check_limits(parse_rates(self.rate), algorithm, cost)
        except LimitError:
            raise
        except ValueError as error:
            msg = f"ratelimit: {error}"
            raise LimitError(msg) from error

    def _check_types(self) -> None:
        if isinstance(self.rate, tuple):
            self.rate = (
                str(rate_of(*self.rate)) if len(self.rate) == len(("limit", "seconds")) else str(self.rate)
            )
        if not (self.rate is None or isinstance(self.rate, str) or callable(self.rate)):
            msg = f"ratelimit: rate={self.rate!r}: expected text such as '5/m', (limit, seconds), a callable or None."
            raise LimitError(msg)
        if self.group is not None and (type(self.group) is not str or not self.group):
            msg = f"ratelimit: group={self.group!r}: expected a name, or None for the view itself."
            raise LimitError(msg)
        if self.burst is not None and (type(self.burst) is not int or self.burst < 1):
            msg = f"ratelimit: burst={self.burst!r}: expected a whole number from 1, or None."
            raise LimitError(msg)

    @property
    def is_escaped(self) -> bool:
        """Whether whoever changes what the client writes escapes it, and no limit of the same view holds on."""
        is_read = self.scope is None and self.key_function is None
        return is_read and are_client_chosen(self.sources) and not self.is_backed

    def stand_beside(self, others: Iterable[Limit]) -> None:
        """Take note of the other limits of a view."""
        for other in others:
            self.is_backed |= other.backs(self)
            other.is_backed |= self.backs(other)

    def backs(self, other: Limit) -> bool:
        """Whether it holds whoever escapes another limit of the same view; a callable key may well do."""
        covers = not self.methods or self.methods >= (other.methods or METHODS)
        holds = self.key_function is not None or hold_client(self.sources)
        return self.scope is None and holds and covers

    def _check(self, key: Any, on_failure: str | None) -> None:
        if key is None and self.scope is None:
            msg = "ratelimit: key is missing. Give key='ip' or another source, or a scope of admin rules."
            raise LimitError(msg)
        if self.scope is not None and (key is not None or self.rate is not None):
            msg = f"ratelimit: scope={self.scope!r} applies the admin's rules; give it without key and rate, or leave it."
            raise LimitError(msg)
        if on_failure and on_failure not in FAILURE_POLICIES:
            msg = f"ratelimit: on_failure={on_failure!r}: expected one of {', '.join(FAILURE_POLICIES)}."
            raise LimitError(msg)
        if type(self.cost) is not int or self.cost < 1:
            msg = f"ratelimit: cost={self.cost!r}: expected a whole number from 1."
            raise LimitError(msg)

    def door(self, request: Any, group: str, sender: Any) -> Door | None:
        """Give what this decorator decides of a request; None where it has no limit for it."""
        if self.scope is not None:
            if self._scope_door is None or self._scope_door.sender is not sender:
                self._scope_door = Door(sender=sender, scope=self.scope, scopeless=False, units=self.cost)
            return self._scope_door
        rates = read_rate(self.rate, self.group or group, request)
        if rates is None:
            return None
        made_of = (sender, group, rates, conf.keys)
        if self._door is None or self._door[0] != made_of:
            plan = Plan([self._rule(self.group or group, rates)], conf.keys)
            self._door = (made_of, Door(sender=sender, plan=plan))
        door = self._door[1]
        covers = door.plan is None or door.plan.rules[0].covers_method(request.method)
        return door if covers else Door(sender=sender, plan=Plan([], conf.keys))

    def _rule(self, group: str, rates: tuple[Rate, ...]) -> Rule:
        methods, written = ",".join(sorted(self.methods)), self.written
        if not isinstance(
            self.rate, str
        ):  # Rates that change keep a log for each period: none cuts another short.
            written = "callable:" + ",".join(str(rate.period_us) for rate in rates)
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


# The limits of the project's decorators and where each was written, for the system checks.
decorating: WeakKeyDictionary[Limit, str] = WeakKeyDictionary()


def read_key(key: str | KeyFunction | None) -> tuple[tuple[Source, ...], KeyFunction | None]:
    """Read a key: a source, a callable (group, request), or its dotted path. Raises LimitError or IdentityError."""
    if callable(key):
        return (Source("view"),), key
    if key is None:
        return (Source("ip"),), None
    try:
        return parse_sources(key), None
    except IdentityError:
        function = _imported(key, "key")
        if not callable(function):
            raise
    return (Source("view"),), function


def _imported(value: Any, name: str) -> Any:
    """Give what a dotted path names, which must be callable; everything else as it is. Raises LimitError."""
    if not isinstance(value, str) or not _DOTTED_PATH.fullmatch(value):
        return value
    try:
        function = import_string(value)
    except ImportError as error:
        msg = f"ratelimit: {name}={value!r} cannot be imported: {error}. Give a dotted path that can."
        raise LimitError(msg) from error
    if not callable(function):
        msg = f"ratelimit: {name}={value!r} is {function!r}: expected a callable (group, request)."
        raise LimitError(msg)
    return function


def read_rate(rate: RateSource, group: str, request: Any) -> tuple[Rate, ...] | None:
    """Give the rates for a request: as written, or what the callable says: text, (limit, seconds) or None."""
    value = rate(group, request) if callable(rate) else rate
    if value is None:
        return None
    return (rate_of(*value),) if isinstance(value, tuple) else parse_rates(value)


def rate_of(limit: Any, seconds: Any) -> Rate:
    """Make a rate of a limit and a period in seconds, fractions too. Raises RateError."""
    try:
        rate = Rate(int(limit), round(float(seconds) * 1_000_000))
    except (TypeError, ValueError, OverflowError) as error:
        raise RateError((limit, seconds), "a limit and a number of seconds are expected") from error
    if rate.limit < 0 or not 0 < rate.period_us <= MAX_PERIOD_US:
        raise RateError((limit, seconds), "the limit may not be negative, the period not 0 or over ten years")
    return rate


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
