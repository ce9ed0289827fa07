"""What a client gets: the answers 429, 403 and 503, and the headers of every answer."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _

from ratelimit_app.conf import conf
from ratelimit_app.core.decision import Decision, Verdict
from ratelimit_app.core.headers import limit_headers, retry_after, seconds

if TYPE_CHECKING:
    from django.http.response import HttpResponseBase

    from ratelimit_app.core.asking import Memory

PROBLEM_JSON = "application/problem+json"
STATUSES = {
    Verdict.LIMITED: HTTPStatus.TOO_MANY_REQUESTS,
    Verdict.BLOCKED: HTTPStatus.FORBIDDEN,
    Verdict.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
}
_QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"


def denial_headers(decision: Decision) -> dict[str, str]:
    """Write the headers that every denial carries."""
    return {"Cache-Control": "no-store"} | retry_after(decision.retry_after)


def detail(decision: Decision) -> str:
    """Say to the client, in one sentence, why it is turned away."""
    if decision.verdict is Verdict.BLOCKED:
        return _("Access is blocked.")
    if decision.verdict is Verdict.UNAVAILABLE:
        return _("The service cannot take this request at the moment. Please try again.")
    if decision.retry_after is None:
        return _("This request is more than the limit allows.")
    wait = seconds(decision.retry_after)
    return _("Too many requests. Please try again in %(seconds)d s.") % {"seconds": wait}


def problem(decision: Decision) -> dict[str, Any]:
    """Write the body of a denial as problem details (RFC 9457)."""
    status = STATUSES[decision.verdict]
    body: dict[str, Any] = {"type": "about:blank", "title": status.phrase, "status": int(status)}
    if decision.verdict is Verdict.LIMITED:
        body |= {"type": _QUOTA_EXCEEDED, "violated-policies": [decision.rule]}
    body["detail"] = detail(decision)
    if decision.retry_after is not None:
        body["retry_after"] = seconds(decision.retry_after)
    return body


def denial(request: HttpRequest, decision: Decision, *, as_json: bool = False) -> HttpResponse:
    """Answer a denied request: problem details where JSON is accepted or asked for, else a small page."""
    response = _answer(request, problem(decision), as_json=as_json)
    for name, value in denial_headers(decision).items():
        response[name] = value
    return response


def too_large_problem() -> dict[str, Any]:
    """Write the body of the answer to a body that cannot be read for a rule."""
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    text = _("The body of this request is too large.")
    return {"type": "about:blank", "title": status.phrase, "status": int(status), "detail": text}


def too_large(request: HttpRequest, *, as_json: bool = False) -> HttpResponse:
    """Answer 413 to a body that is too large to be read for the field that a rule counts by."""
    response = _answer(request, too_large_problem(), as_json=as_json)
    response["Cache-Control"] = "no-store"
    return response


def _answer(request: HttpRequest, body: dict[str, Any], *, as_json: bool) -> HttpResponse:
    if as_json or _prefers_json(request):
        response = HttpResponse(json.dumps(body), content_type=PROBLEM_JSON, status=body["status"])
    else:
        page = render_to_string("ratelimit_app/denied.html", body, request)
        response = HttpResponse(page, status=body["status"])
    patch_vary_headers(response, ["Accept"])
    return response


def _prefers_json(request: HttpRequest) -> bool:
    if "accept" not in request.headers:
        return True
    best = request.get_preferred_type([PROBLEM_JSON, "application/json", "text/html"])
    return best is not None and best != "text/html"


def add_headers(response: HttpResponseBase, memory: Memory) -> None:
    """
    Add what describes the request over all doors so far; headers that the view set itself stay.

    Nothing where a shared cache may keep the response. A denial's Retry-After and no-store come back even where
    an exception handler has dropped them.
    """
    denied, ours = memory.denied, response.__dict__.setdefault("_ratelimit_app", set())
    headers: dict[str, str] = {}
    shared = is_shared(response)
    if shared:
        _take_back(response, ours)
    if denied is not None and response.status_code == STATUSES[denied.verdict]:
        headers |= denial_headers(denied)
    told = conf.headers is not None and not (shared or memory.allowlisted)
    if told and (ruling := memory.ruling) is not None:
        headers |= limit_headers(ruling, conf.headers)
    written = response.headers
    for name, value in headers.items():
        if name in ours or name not in written:
            written[name] = value
            ours.add(name)


def _take_back(response: HttpResponseBase, ours: set[str]) -> None:
    """Remove what an inner door wrote before the response was opened to shared caches."""
    for name in ours:
        del response.headers[name]
    ours.clear()


def is_shared(response: HttpResponseBase) -> bool:
    """Whether a shared cache may keep the response, and would show one client's numbers to another."""
    if "Cache-Control" not in response.headers:
        return "Expires" in response.headers
    control = {
        part.strip().partition("=")[0].lower() for part in response.get("Cache-Control", "").split(",")
    }
    if control & {"public", "s-maxage"}:
        return True
    if control & {"no-store", "private"}:
        return False
    return "max-age" in control or response.has_header("Expires")
