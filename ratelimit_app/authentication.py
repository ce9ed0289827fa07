"""Tries to authenticate: what is known of one, and what is decided of it, whoever asks for it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.contrib.auth import get_user_model
from django.http import HttpRequest

from ratelimit_app.doors import pass_door, turn_away
from ratelimit_app.requests import RequestFacts, facts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratelimit_app.core.addresses import Client
    from ratelimit_app.core.asking import Door
    from ratelimit_app.core.decision import Decision
    from ratelimit_app.core.evaluation import Flow
    from ratelimit_app.core.matching import Route

BACKEND = "ratelimit_app.backends.RateLimitBackend"
EVERY_TRY, FAILURES = "authenticate", "login_failed"  # the scopes of the admin's rules
_MASK = "*" * 20  # what Django writes over a secret credential before it tells of a failure

_serving: ContextVar[Any] = ContextVar("ratelimit_app.serving", default=None)
_last: ContextVar[Attempt | None] = ContextVar("ratelimit_app.attempt", default=None)


class Attempt(RequestFacts):
    """
    The facts of one try: those of its request, with the credentials as fields of the body.

    `request`: Django's or DRF's; None: the one that is being answered, or an empty one where there is none. Each
    try is counted for itself, so that many tries in one request are many. Nobody is signed in yet: `user` is
    missing, and who asks for it would begin to authenticate again.
    """

    is_refused = False

    def __init__(self, request: Any, credentials: Mapping[str, Any]) -> None:
        holder = request if _is_request(request) else _serving.get()
        around = facts_of(_nowhere() if holder is None else holder)
        super().__init__(around.request)
        self.around = around
        self.memory.store_failed = around.memory.store_failed
        self._fields = _fields(credentials)
        self._seen = {name: hash(str(value)) for name, value in credentials.items()}

    @property
    def client(self) -> Client | None:
        """Who sends the request."""
        return self.around.client

    @property
    def route(self) -> Route:
        """Where the request goes; the admin's login page is a login page as any other."""
        return replace(self.around.route, admin_root="")

    @property
    def is_spared(self) -> bool:
        """Whether an outage spares the request."""
        return self.around.is_spared

    def field(self, name: str) -> str | None:
        """Give a credential, else a field of the body: what is checked counts, not what is sent beside it."""
        value = self._fields.get(name)
        return self.around.field(name) if value is None else value

    def _find(self, fact: str) -> str | None:
        return None if fact == "user" else super()._find(fact)

    async def _afind(self, fact: str) -> str | None:
        return None if fact == "user" else await super()._afind(fact)

    def is_of(self, credentials: Mapping[str, Any]) -> bool:
        """Whether these are its credentials, some of them masked."""
        hashed = {name: hash(str(value)) for name, value in credentials.items() if value != _MASK}
        return credentials.keys() == self._seen.keys() and hashed.items() <= self._seen.items()

    def settle(self, decision: Decision) -> None:
        """
        Keep what was decided, for the answer to the request and for the news that the try has failed.

        Its charges stay with the try: what a view gives back of its request are not the passwords it has tried.
        """
        self._fields = {}
        memory, refused = self.around.memory, self.around.refused
        memory.store_failed |= self.memory.store_failed
        for decided in self.memory.decisions:
            memory.remember((), replace(decided, charges=[]))
        if memory.denied is refused:
            memory.denied = None if decision.allowed else decision
        self.is_refused = not decision.allowed
        self.around.refused = None if decision.allowed else decision
        if self.is_refused:
            self.request.limited = True
        _last.set(self)


def decide(attempt: Attempt, failures: Door, every_try: Door) -> Flow:
    """First whether failures are used up, which charges nothing; then the try itself."""
    decision = yield from pass_door(attempt, failures)
    if decision.allowed:
        decision = yield from pass_door(attempt, every_try)
    else:
        yield from turn_away(attempt, failures, decision)
    attempt.settle(decision)
    return decision


def last(request: Any, credentials: Mapping[str, Any]) -> Attempt:
    """Give the try that has just failed, once: the one that was decided, else a new one of what is told of it."""
    attempt = _last.get()
    _last.set(None)
    if attempt is not None and attempt.is_of(credentials):
        return attempt
    return Attempt(request, {name: value for name, value in credentials.items() if value != _MASK})


def is_installed() -> bool:
    """Whether tries to authenticate are decided here."""
    return BACKEND in getattr(settings, "AUTHENTICATION_BACKENDS", ())


def serving(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Let code that authenticates without naming its request find the one that is being answered."""
    if not is_installed():
        return get_response

    async def acall(request: HttpRequest) -> Any:
        token = _serving.set(request)
        try:
            return await get_response(request)
        finally:
            _serving.reset(token)
            _last.set(None)

    def call(request: HttpRequest) -> Any:
        token = _serving.set(request)
        try:
            return get_response(request)
        finally:
            _serving.reset(token)
            _last.set(None)

    return acall if iscoroutinefunction(get_response) else call


def _is_request(request: Any) -> bool:
    return hasattr(getattr(request, "_request", request), "META")


def _nowhere() -> HttpRequest:
    """Make the request of a try that comes without one; rules for POST, as logins are, count it."""
    request = HttpRequest()
    request.method = "POST"
    return request


def _fields(credentials: Mapping[str, Any]) -> dict[str, str]:
    """Name the credentials as rules do; a login name is known by Django's word for it and by the user model's."""
    fields = {name: str(value) for name, value in credentials.items() if value is not None}
    own = get_user_model().USERNAME_FIELD
    for name, other in ((own, "username"), ("username", own)):
        if name in fields:
            fields.setdefault(other, fields[name])
    return fields
