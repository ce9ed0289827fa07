"""DRF's throttles under their own names: rates in code or in `DEFAULT_THROTTLE_RATES`, over exact limits."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rest_framework import throttling
from rest_framework.settings import api_settings

from ratelimit_app.core.decision import Decision, RuleResult, Verdict, ruling
from ratelimit_app.core.identity import Source
from ratelimit_app.core.rates import Rate, RateError, parse_rates
from ratelimit_app.core.rules import Rule
from ratelimit_app.exceptions import LimitError
from ratelimit_app.limits import rate_of
from ratelimit_app.requests import facts_of
from ratelimit_app.throttling.denials import denial_of
from ratelimit_app.throttling.together import Claim, Member, decide

if TYPE_CHECKING:
    from ratelimit_app.requests import RequestFacts

_IP, _TEXT = Source("ip"), Source("view")


class LiveRates:
    """`DEFAULT_THROTTLE_RATES` as it is now, not as it was when the class was made."""

    def __get__(self, instance: object, owner: type) -> Any:
        return api_settings.DEFAULT_THROTTLE_RATES


class OwnKey(str):
    """A cache key that names nobody but whom its source gives; any other text is an identity of its own."""

    __slots__ = ("source",)
    source: Source


class SimpleRateThrottle(Member, throttling.SimpleRateThrottle):
    """
    Limit by a rate of its own: `rate`, or that of its `scope` in `DEFAULT_THROTTLE_RATES`.

    `get_cache_key` says who is counted, None: nobody. Classes that share the class which sets `scope` or `rate`
    share their counts; others only by a common `group`. `cache`, `timer` and `cache_format` are kept for
    subclasses that touch them: limits live in this app's Redis, by its clock.
    """

    THROTTLE_RATES = LiveRates()
    group: str | None = None
    key: str | None = None
    num_requests: int | None = None
    duration: float | None = None
    decision: Decision | None = None
    result: RuleResult | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a rate that cannot be read when the class is made. Raises LimitError."""
        super().__init_subclass__(**kwargs)
        rate = cls.__dict__.get("rate")
        if isinstance(rate, str) and cls.parse_rate is SimpleRateThrottle.parse_rate:
            _read(rate, cls.__name__)

    def parse_rate(self, rate: str | None) -> tuple[Any, Any]:
        """Give the limit and the period in seconds, of the longest period where there are several."""
        return (None, None) if rate is None else _pair(_read(rate, type(self).__name__)[0])

    def get_ident(self, request: Any) -> str:
        """Give the client's address or network, as the trusted proxies tell it."""
        return (facts_of(request).part(_IP) or "").removeprefix("ip:")

    def allow_request(self, request: Any, view: Any) -> bool:
        """Tell whether the request is within this throttle's rate. Raises Blocked or Unavailable."""
        self.decision = self.result = None
        if self.rate is None:
            return True
        self.key = self.get_cache_key(request, view)
        rates = () if self.key is None else self._rates()
        if not rates:
            return True
        facts = facts_of(request)
        claim = self._claim(rates)
        decision = decide(self, facts, request, view, claim)
        return True if decision is None else self._answer(decision, facts, claim)

    def throttle_success(self) -> bool:
        """Let the request pass; it is counted already."""
        return True

    def throttle_failure(self) -> bool:
        """Turn the request away; it is not counted."""
        return False

    def wait(self) -> float | None:
        """Give the seconds until the denied request could pass; None where it never can, or was not denied."""
        if self.result is None or self.decision is None or self.result.allowed:
            return None
        return None if self.decision.retry_after is None else self.result.retry_after

    def _rates(self) -> tuple[Rate, ...]:
        """Give the rates as they are at this call; subclasses may have set the limit and the period themselves."""
        given = (self.num_requests, self.duration)
        if self.num_requests is None:
            return ()
        with suppress(RateError):
            rates = parse_rates(self.rate)
            if _pair(rates[0]) == given:
                return rates
        try:
            return (rate_of(*given),)
        except RateError as error:
            msg = f"{type(self).__name__}: {error}"
            raise LimitError(msg) from error

    def _claim(self, rates: tuple[Rate, ...]) -> Claim:
        name = self.group or self.scope or type(self).__name__
        owner = "" if self.group else _owner(type(self))
        periods = ",".join(str(rate.period_us) for rate in rates)
        slot, text = f"@{name}:{owner}:{periods}", str(self.key)
        if isinstance(self.key, OwnKey):
            rule = Rule(name=name, slot=slot, rates=rates, sources=(self.key.source,))
            return Claim(rule=rule, slot=slot, who=self.key.source.kind)
        rule = Rule(name=name, slot=slot, rates=rates, sources=(_TEXT,), key_function=lambda *_: text)
        return Claim(rule=rule, slot=slot, who=f"key:{text}")

    def _answer(self, decision: Decision, facts: RequestFacts, claim: Claim) -> bool:
        if decision.verdict in (Verdict.BLOCKED, Verdict.UNAVAILABLE):
            raise denial_of(decision)
        self.decision, self.result = decision, ruling(_results(decision, facts, claim))
        denied = self.result is not None and not self.result.allowed
        return self.throttle_failure() if denied else self.throttle_success()


class AnonRateThrottle(throttling.AnonRateThrottle, SimpleRateThrottle):
    """Limit requests without a user, by the client's network."""

    def get_cache_key(self, request: Any, view: Any) -> str | None:
        """Give the key of the client, None where there is a user."""
        return _own_key(self, request, super().get_cache_key(request, view))


class UserRateThrottle(throttling.UserRateThrottle, SimpleRateThrottle):
    """Limit by the user, or where there is none by the client's network."""

    def get_cache_key(self, request: Any, view: Any) -> str | None:
        """Give the key of the user or the client."""
        return _own_key(self, request, super().get_cache_key(request, view))


class ScopedRateThrottle(throttling.ScopedRateThrottle, SimpleRateThrottle):
    """Limit by the rate of the view's `throttle_scope`, for each user or client."""

    def allow_request(self, request: Any, view: Any) -> bool:
        """Tell whether the request is within the rate of the view's scope; without a scope it is."""
        self.decision = self.result = None
        return super().allow_request(request, view)

    def get_cache_key(self, request: Any, view: Any) -> str | None:
        """Give the key of the user or the client."""
        return _own_key(self, request, super().get_cache_key(request, view))


def _own_key(throttle: SimpleRateThrottle, request: Any, text: str | None) -> str | None:
    """Mark a key whose identity the app knows itself; a `get_ident` of a subclass's own makes a text of its own."""
    has_user = bool(request.user and request.user.is_authenticated)
    if text is None or not (has_user or type(throttle).get_ident is SimpleRateThrottle.get_ident):
        return text
    key = OwnKey(text)
    key.source = Source("user") if has_user else _IP
    return key


def _owner(kind: type) -> str:
    """Name the class that sets the scope or the rate."""
    owner = next(base for base in kind.__mro__ if "scope" in vars(base) or "rate" in vars(base))
    return f"{owner.__module__}.{owner.__qualname__}"


def _read(rate: str, owner: str) -> tuple[Rate, ...]:
    try:
        return parse_rates(rate)
    except RateError as error:
        msg = f"{owner}: {error}"
        raise LimitError(msg) from error


def _pair(rate: Rate) -> tuple[int, int | float]:
    whole = rate.period_us % 1_000_000 == 0
    return rate.limit, rate.period_us // 1_000_000 if whole else rate.period


def _results(decision: Decision, facts: RequestFacts, claim: Claim) -> list[RuleResult]:
    """Pick what this claim's rule got; nothing where an earlier door has charged it."""
    if claim.rule is None or not decision.results:
        return []
    identity, rates = facts.rule_identity(claim.rule), {(r.limit, r.period) for r in claim.rule.rates}
    return [
        result
        for result in decision.results
        if (result.label, result.identity) == (claim.rule.label, identity)
        and (result.limit, result.period) in rates
    ]
