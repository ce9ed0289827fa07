"""What the throttles of one view decide together: the first one asked asks the others what they limit."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction
from rest_framework.throttling import BaseThrottle

from ratelimit_app import engine
from ratelimit_app.conf import conf
from ratelimit_app.core.asking import Door
from ratelimit_app.core.plans import Plan
from ratelimit_app.doors import pass_door
from ratelimit_app.exceptions import BodyTooLarge
from ratelimit_app.throttling.denials import TooLarge, finish_responses

if TYPE_CHECKING:
    from ratelimit_app.core.decision import Decision
    from ratelimit_app.core.rules import Rule
    from ratelimit_app.requests import RequestFacts


class Member(BaseThrottle):
    """A throttle that decides together with the others of its view."""


@dataclass(frozen=True, slots=True)
class Claim:
    """
    What one throttle wants decided: the admin's rules of a scope, or a rule of its own.

    `who`: whom its rule counts, as far as that is known before the user is.
    """

    scope: str | None = None
    rule: Rule | None = field(default=None, compare=False)
    slot: str = ""
    who: str = ""


@dataclass(slots=True)
class Together:
    """The claims of one view's throttles on one request, and the decision on all of them."""

    view: Any
    claims: dict[Claim, Claim] = field(default_factory=dict)
    decision: Decision | None = None

    def add(self, claim: Claim) -> None:
        """Take a claim; of two limits for the same log the lower one counts."""
        known = self.claims.get(claim)
        if known is None or (
            claim.rule and known.rule and claim.rule.rates[0].limit < known.rule.rates[0].limit
        ):
            self.claims[claim] = claim

    def door(self, sender: Any) -> Door:
        """Give what is to be decided."""
        rules = [claim.rule for claim in self.claims.values() if claim.rule]
        scope = next((claim.scope for claim in self.claims if claim.scope is not None), None)
        if scope is None:
            return Door(sender=sender, plan=Plan(rules, conf.keys))
        return Door(sender=sender, scope=scope, beside=tuple(rules)) if rules else _scope_door(sender, scope)


@lru_cache(maxsize=1_024)
def _scope_door(sender: Any, scope: str) -> Door:
    return Door(sender=sender, scope=scope)


def decide(throttle: Member, facts: RequestFacts, request: Any, view: Any, claim: Claim) -> Decision | None:
    """
    Give the decision on a claim and those beside it; None while another throttle of the view is asking.

    Raises TooLarge.
    """
    try:
        return _decide(throttle, facts, request, view, claim)
    except BodyTooLarge as error:
        finish_responses(view, facts)
        raise TooLarge from error


def _decide(throttle: Member, facts: RequestFacts, request: Any, view: Any, claim: Claim) -> Decision | None:
    shared: Together | None = facts.throttling
    if shared is None or shared.view is not view:
        return _decide_all(throttle, facts, request, view, claim)
    if shared.decision is None:
        shared.add(claim)
    elif claim not in shared.claims:
        alone = Together(view, {claim: claim})
        return engine.run(pass_door(facts, alone.door(type(throttle))), facts)
    return shared.decision


def _throttles(view: Any) -> Any:
    """Give the throttles of a view; of one that has a single throttle, which is asking already, none."""
    get_throttles = getattr(type(view), "get_throttles", None)
    # By name: DRF's views import the project's throttles, and so us.
    is_usual = getattr(get_throttles, "__module__", "") == "rest_framework.views"
    if get_throttles is None or (is_usual and len(view.throttle_classes) == 1):
        return ()
    return view.get_throttles()


def _decide_all(throttle: Member, facts: RequestFacts, request: Any, view: Any, claim: Claim) -> Decision:
    shared = facts.throttling = Together(view)
    try:
        shared.add(claim)
        for other in _throttles(view):
            if isinstance(other, Member) and not iscoroutinefunction(other.allow_request):
                other.allow_request(request, view)
        shared.decision = engine.run(pass_door(facts, shared.door(type(throttle))), facts)
    finally:
        if shared.decision is None:
            facts.throttling = None
    finish_responses(view, facts)
    return shared.decision
