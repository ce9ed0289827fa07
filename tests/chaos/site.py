"""What the site serves: one path for each failure policy, and in a header what the limiter said of the request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import path

from ratelimit_app.requests import facts_of

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER = "X-Told"


def telling(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Put `[degraded, at]` of a request's decision into a header; `at` in microseconds, 0 when Redis said nothing."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        memory = facts_of(request).memory
        said: Any = memory.denied
        results = list(memory.results.values()) if said is None else said.results
        degraded = memory.store_failed if said is None else said.degraded
        degraded = bool(degraded or any(result.degraded for result in results))
        response[HEADER] = json.dumps([degraded, results[0].at if results and not degraded else 0])
        response["Content-Length"] = len(response.content)
        return response

    return middleware


def passed(request: HttpRequest) -> HttpResponse:
    """Answer: the limiter let it pass."""
    return HttpResponse("passed")


urlpatterns = [
    path("open/", passed),
    path("closed/", passed),
    path("local/", passed),
    path("admin/", admin.site.urls),
]
