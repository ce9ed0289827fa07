"""The authentication backend that counts tries, and stops those over a limit before any password is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from django.contrib.auth.signals import user_login_failed
from django.views.decorators.debug import sensitive_variables

from ratelimit_app import engine
from ratelimit_app.authentication import EVERY_TRY, FAILURES, Attempt, decide, last
from ratelimit_app.core.asking import Door
from ratelimit_app.doors import pass_door
from ratelimit_app.exceptions import BodyTooLarge, Ratelimited


class RateLimitBackend:
    """
    Decide each try to authenticate by the admin's rules of the scopes `authenticate` and `login_failed`.

    Put it first in `AUTHENTICATION_BACKENDS`. Rules of `authenticate` count every try; those of `login_failed` are
    looked at before it and charged when it has failed. It signs nobody in, and has no users: without `get_user`,
    Django's test client passes it over.
    """

    @sensitive_variables("credentials")
    def authenticate(self, request: Any, **credentials: Any) -> None:
        """Let the other backends try, or raise Ratelimited (a PermissionDenied), so that none of them does."""
        attempt = Attempt(request, credentials)
        decision = engine.run(decide(attempt, _FAILURES_LEFT, _EVERY_TRY), attempt)
        if not decision.allowed:
            raise Ratelimited(decision)

    @sensitive_variables("credentials")
    async def aauthenticate(self, request: Any, **credentials: Any) -> None:
        """Like authenticate, for async code."""
        attempt = Attempt(request, credentials)
        decision = await engine.arun(decide(attempt, _FAILURES_LEFT, _EVERY_TRY), attempt)
        if not decision.allowed:
            raise Ratelimited(decision)


_EVERY_TRY = Door(sender=RateLimitBackend, scope=EVERY_TRY, scopeless=False)
_FAILURES_LEFT = Door(sender=RateLimitBackend, scope=FAILURES, scopeless=False, look=True)
_FAILURE = Door(sender=RateLimitBackend, scope=FAILURES, scopeless=False)


@sensitive_variables("credentials")
def count_failure(*, credentials: Any = None, request: Any = None, **_: Any) -> None:
    """Charge a try that has failed; one that we refused is none. A project may send the signal in any form."""
    attempt = last(request, credentials if isinstance(credentials, Mapping) else {})
    if not attempt.is_refused:
        with suppress(BodyTooLarge):
            engine.run(pass_door(attempt, _FAILURE), attempt)


def connect() -> None:
    """Hear of the tries that fail."""
    user_login_failed.connect(count_failure, dispatch_uid="ratelimit_app.login_failed")
