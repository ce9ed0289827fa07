"""A site of one view, served by a real server: it asks for a decision and answers with its fields."""

from __future__ import annotations

import os
from typing import Any

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
settings.ROOT_URLCONF, settings.MIDDLEWARE = __name__, []
application: Any = get_wsgi_application()


def answer(request: HttpRequest) -> JsonResponse:
    """Decide this request."""
    from ratelimit_app import check

    decision = check(request)
    at = decision.results[0].at if decision.results else 0
    response = JsonResponse({"allowed": decision.allowed, "at": at, "degraded": decision.degraded})
    response["Content-Length"] = len(response.content)  # the client reads no chunks
    return response


urlpatterns = [path("", answer)]


def decide_by(rate: str) -> None:
    """Decide by one rule, without the database."""
    from ratelimit_app import snapshot_cache
    from ratelimit_app.core.rules import rule_from_dict
    from ratelimit_app.core.snapshot import Snapshot

    rule = rule_from_dict({"name": "exact", "key": "ip", "rate": rate})
    snapshot_cache.override(Snapshot(version="test:1", rules=(rule,)))


decide_by(os.environ.get("EXACT_RATE", "200/s"))
