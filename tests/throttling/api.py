"""Views of DRF with throttles, and what the tests of the throttles share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.test import Client
from django.urls import path
from django.views.decorators.cache import cache_control
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory, force_authenticate
from rest_framework.views import APIView, exception_handler

from ratelimit_app.throttling import AnonRateThrottle, RuleThrottle, ScopedRateThrottle, UserRateThrottle

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from rest_framework.request import Request


class Answering(APIView):
    """An API that answers."""

    def get(self, request: Request) -> Response:
        """Answer."""
        return Response({"passed": True})


class Ruled(Answering):
    """The admin's rules, with a scope."""

    throttle_classes = [RuleThrottle]
    throttle_scope = "grab"


class DroppingErrors(Ruled):
    """An API whose exception handler writes a body of its own, and drops headers."""

    def get_exception_handler(self) -> Any:
        """Answer errors without headers."""
        return lambda exc, context: Response({"error": exc.get_codes()}, status=exc.status_code)


class AddingErrors(Ruled):
    """An API whose exception handler adds to DRF's own answer."""

    def get_exception_handler(self) -> Any:
        """Add a field."""

        def handle(exc: Exception, context: Any) -> Any:
            response: Any = exception_handler(exc, context)
            response.data["shop"] = "ours"
            return response

        return handle


class Shared(Ruled):
    """An API whose answers shared caches may keep."""

    def get(self, request: Request) -> Response:
        """Answer in public."""
        return Response({}, headers={"Cache-Control": "public, max-age=60"})


class OwnHeader(Ruled):
    """An API that sets a header of this name itself."""

    def get(self, request: Request) -> Response:
        """Answer."""
        return Response({}, headers={"X-RateLimit-Limit": "mine"})


class Anonymous(Answering):
    """DRF's name, with the rate of the settings."""

    throttle_classes = [AnonRateThrottle]


class Burst(UserRateThrottle):
    """Few in a short time."""

    scope, rate = "burst", "2/10s"


class Sustained(UserRateThrottle):
    """Some in a long time."""

    scope, rate = "sustained", "3/m"


class BurstFirst(Answering):
    """Two rates together."""

    throttle_classes = [Burst, Sustained]


class SustainedFirst(Answering):
    """The same in the other order."""

    throttle_classes = [Sustained, Burst]


class Mixed(Answering):
    """The admin's rules beside a rate in code."""

    throttle_classes = [Sustained, RuleThrottle]


class Grabs(Answering):
    """A scope for DRF's own ScopedRateThrottle."""

    throttle_classes = [ScopedRateThrottle]
    throttle_scope = "grabs"


class MoreGrabs(Grabs):
    """Another view of the scope."""


class Sales(Grabs):
    """A view of another scope."""

    throttle_scope = "sales"


urlpatterns = [path(f"{view.__name__.lower()}/", view.as_view()) for view in (
    Ruled, DroppingErrors, AddingErrors, Shared, OwnHeader, Anonymous, BurstFirst, SustainedFirst, Mixed, Grabs,
    MoreGrabs, Sales,
)]  # fmt: skip
urlpatterns.append(path("cached/", cache_control(public=True, max_age=60)(Ruled.as_view())))


def get(url: str, times: int = 1, **extra: Any) -> list[Any]:
    """Ask for a URL, as often as needed, each time as a new client."""
    return [Client().get(url, **extra) for _ in range(times)]


def codes(answers: list[Any]) -> list[int]:
    """Give the statuses."""
    return [answer.status_code for answer in answers]


def evals(valkey: Any) -> int:
    """Count the script calls that the server has seen."""
    stats = valkey.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))


def logs(valkey: Any) -> dict[str, int]:
    """Give the number of entries of each log, by its name."""
    keys = valkey.keys("rl:1:{*}:*")
    return {key.decode().split("}:")[1]: valkey.zcard(key) for key in keys}


def request_for(user: User | None = None, **extra: Any) -> Request:
    """Make a request of DRF's."""
    request = APIRequestFactory().get("/", **extra)
    if user is not None:
        force_authenticate(request, user)
    return APIView().initialize_request(request)


def call(view: type[APIView], user: User | None = None, **extra: Any) -> Any:
    """Call a view by itself, without any middleware."""
    request = APIRequestFactory().get("/", **extra)
    if user is not None:
        force_authenticate(request, user)
    return view.as_view()(request)
