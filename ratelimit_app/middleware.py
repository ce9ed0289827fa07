"""The middleware: the lists and the rules without a scope, before the view is called; the headers afterwards."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction

from ratelimit_app import engine, sightings
from ratelimit_app.authentication import serving
from ratelimit_app.conf import conf
from ratelimit_app.core.asking import Door
from ratelimit_app.core.identity import Source, identity_of
from ratelimit_app.doors import pass_door
from ratelimit_app.exceptions import BodyTooLarge, Ratelimited
from ratelimit_app.requests import RequestFacts, facts_of
from ratelimit_app.responses import add_headers, denial, too_large
from ratelimit_app.visitors import known_user_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from django.http import HttpRequest
    from django.http.response import HttpResponseBase

    from ratelimit_app.core.decision import Decision
    from ratelimit_app.core.evaluation import Flow

_USER = Source("user")


class RateLimitMiddleware:
    """
    Decide each request by the lists and the rules without a scope; put it after AuthenticationMiddleware.

    Rules and marks that need the user come second, when all others have let the request pass; those of a DRF view
    are left to its `RuleThrottle`. A request that later middleware sends elsewhere, by another method, path, URLs or
    language, meets the rules of that place too, before its view is called.
    """

    sync_capable = True
    async_capable = True
    process_view: Callable[..., Any]

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = serving(get_response)
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)
        self.process_view = self._asee_view if self.is_async else self._see_view
        sender = type(self)
        self.door = Door(sender=sender, users="none", late_user=True)
        self.user_door = Door(sender=sender, users="only")

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self.is_async:
            return self.__acall__(request)
        facts = _facts(request)
        try:
            decision = engine.run(self._flow(facts), facts)
        except BodyTooLarge:
            return too_large(request, as_json=facts.route.is_drf)
        response = self.get_response(request) if decision.allowed else _denial(facts, decision)
        return _finished(facts, response)

    async def __acall__(self, request: HttpRequest) -> HttpResponseBase:
        facts = _facts(request)
        try:
            decision = await engine.arun(self._flow(facts), facts)
        except BodyTooLarge:
            return too_large(request, as_json=facts.route.is_drf)
        response = await self.get_response(request) if decision.allowed else _denial(facts, decision)
        return _finished(facts, response)

    def _flow(self, facts: RequestFacts) -> Flow:
        """First what needs no user; then, unless the view is DRF's, what does."""
        is_drf = facts.route.is_drf
        decision = yield from pass_door(facts, self.door)
        if decision.allowed and not is_drf and not facts.memory.allowlisted:
            later = yield from pass_door(facts, self.user_door)
            decision = later if later.rule or not later.allowed else decision
        return decision

    def _see_view(self, request: HttpRequest, *_: Any) -> HttpResponseBase | None:
        facts = facts_of(request)
        if not facts.reroute():
            return None
        try:
            decision = engine.run(self._flow(facts), facts)
        except BodyTooLarge:
            return too_large(request, as_json=facts.route.is_drf)
        return None if decision.allowed else _denial(facts, decision)

    async def _asee_view(self, request: HttpRequest, *_: Any) -> HttpResponseBase | None:
        facts = facts_of(request)
        if not facts.reroute():
            return None
        try:
            decision = await engine.arun(self._flow(facts), facts)
        except BodyTooLarge:
            return too_large(request, as_json=facts.route.is_drf)
        return None if decision.allowed else _denial(facts, decision)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponseBase | None:
        """Answer what a door or `check` raised in the view, whatever handler403 and handler400 would say."""
        if isinstance(exception, BodyTooLarge):
            return too_large(request, as_json=facts_of(request).route.is_drf)
        if isinstance(exception, Ratelimited) and exception.decision is not None:
            return denial(request, exception.decision, as_json=facts_of(request).route.is_drf)
        return None


def _facts(request: HttpRequest) -> RequestFacts:
    if not hasattr(request, "limited"):
        request.limited = False  # type: ignore[attr-defined]
    facts = facts_of(request)
    facts.has_middleware = True
    return facts


def _denial(facts: RequestFacts, decision: Decision) -> HttpResponseBase:
    return denial(facts.request, decision, as_json=facts.route.is_drf)


def _finished(facts: RequestFacts, response: HttpResponseBase) -> HttpResponseBase:
    """
    A `Ratelimited` that somebody turned into a plain 403 on its way becomes the answer that it stands for.

    So does a refused try to authenticate, which looks like a wrong password to the view.
    """
    raised = facts.raised if response.status_code == HTTPStatus.FORBIDDEN else None
    if (refused := raised or facts.refused) is not None:
        response = _denial(facts, refused)
    add_headers(response, facts.memory)
    _note(facts)
    return response


def _note(facts: RequestFacts) -> None:
    """Note who was there, where that is known, for the guards of promotion."""
    client = facts.client
    if client is not None and conf.enabled:
        user = known_user_of(facts.request)
        sightings.note(client.network, None if user is None else identity_of(_USER, user, conf.key_secret))
