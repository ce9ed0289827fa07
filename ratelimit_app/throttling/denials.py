"""What a DRF view answers when a throttle turns a request away, and the headers of all its answers."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from rest_framework.exceptions import APIException, ErrorDetail, PermissionDenied, Throttled
from rest_framework.renderers import JSONRenderer

from ratelimit_app.core.decision import Verdict
from ratelimit_app.core.headers import seconds
from ratelimit_app.responses import PROBLEM_JSON, add_headers, problem, too_large_problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimit_app.core.decision import Decision
    from ratelimit_app.requests import RequestFacts


class DenialDetail(ErrorDetail):
    """The text of a denial, by which its response is known. `problem`: the body that stands for it."""

    problem: dict[str, Any]


class Denied(APIException):
    """
    A request that our throttles turn away.

    `decision`: why. `wait`: whole seconds until it could pass, None where waiting never helps.
    """

    def __init__(self, decision: Decision) -> None:
        self.detail = _detail(problem(decision), self.default_code)
        self.decision = decision
        self.wait = None if decision.retry_after is None else seconds(decision.retry_after)


class Limited(Denied, Throttled):
    """Over a rule's limit: 429."""


class Blocked(Denied, PermissionDenied):
    """On the blacklist: 403."""

    default_code = "blocked"


class Unavailable(Denied):
    """Redis cannot answer, and the failure policy is `closed`: 503."""

    status_code = HTTPStatus.SERVICE_UNAVAILABLE
    default_code = "unavailable"


class TooLarge(APIException):
    """A body too large to be read for the field that a rule counts by: 413."""

    status_code = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    default_code = "body_too_large"

    def __init__(self) -> None:
        self.detail = _detail(too_large_problem(), self.default_code)


def _detail(body: dict[str, Any], code: str) -> DenialDetail:
    text = DenialDetail(body["detail"], code)
    text.problem = body
    return text


_DENIALS: dict[Verdict, type[Denied]] = {
    Verdict.LIMITED: Limited,
    Verdict.BLOCKED: Blocked,
    Verdict.UNAVAILABLE: Unavailable,
}


def denial_of(decision: Decision) -> Denied:
    """Give the exception for a denied decision."""
    return _DENIALS[decision.verdict](decision)


def finish_responses(view: Any, facts: RequestFacts) -> None:
    """
    Give the responses of this view their headers, where our middleware is not there to do it.

    The view's `headers` would be simpler, but overwrite what the view has set, and know nothing of shared caches.
    """
    if hasattr(type(view), "finalize_response"):
        view.finalize_response = _finalizing(view.finalize_response, facts)


def _finalizing(finalize: Callable[..., Any], facts: RequestFacts) -> Callable[..., Any]:
    def finalize_response(request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = finalize(request, response, *args, **kwargs)
        _write_problem(response)
        if not facts.has_middleware:
            add_headers(response, facts.memory)
        return response

    return finalize_response


def _write_problem(response: Any) -> None:
    """Write our denials as problem details, unless the project's exception handler has made a body of its own."""
    data = getattr(response, "data", None)
    text = data["detail"] if isinstance(data, dict) and list(data) == ["detail"] else None
    if isinstance(text, DenialDetail):
        response.data = text.problem
        response.headers.setdefault("Cache-Control", "no-store")
        response.accepted_renderer, response.accepted_media_type = JSONRenderer(), JSONRenderer.media_type
        response.content_type = PROBLEM_JSON
