"""The decorator on everything that a Django project calls a view."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction, sync_to_async
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, AsyncRequestFactory, Client, RequestFactory
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import cache_control
from rest_framework.decorators import action, api_view
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from ratelimit_app import Ratelimited
from ratelimit_app.decorators import ratelimit


def passed(request: HttpRequest) -> HttpResponse:
    """Answer, without a limit."""
    return HttpResponse("passed")


@ratelimit(key="ip", rate="3/m")
def limited(request: HttpRequest) -> HttpResponse:
    """A page with a limit of its own."""
    return HttpResponse("passed")


@ratelimit(key="ip", rate="3/m")
async def alimited(request: HttpRequest) -> HttpResponse:
    """An async page with a limit of its own."""
    return HttpResponse("passed")


@ratelimit(key="ip", rate="1/m", block=False)
def watched(request: HttpRequest) -> HttpResponse:
    """A page that decides for itself."""
    return HttpResponse(str(request.limited))  # type: ignore[attr-defined]


@ratelimit(scope="checkout")
def scoped(request: HttpRequest) -> HttpResponse:
    """A page with the admin's rules of a scope."""
    return HttpResponse("passed")


@ratelimit(key="ip", rate="10/h")
@ratelimit(key="ip", rate="3/m")
def stacked(request: HttpRequest) -> HttpResponse:
    """A page with two limits."""
    return HttpResponse("passed")


@method_decorator(ratelimit(key="ip", rate="3/m"), name="dispatch")
class First(View):
    """A class with a limit on its dispatch."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """Answer."""
        return HttpResponse("first")


class Second(First):
    """A subclass, a view of its own."""


@method_decorator(ratelimit(key="ip", rate="3/m"), name="dispatch")
class Async(View):
    """An async class."""

    async def get(self, request: HttpRequest) -> HttpResponse:
        """Answer."""
        return HttpResponse("async")


class OnMethod(View):
    """A class with a limit on one method."""

    @method_decorator(ratelimit(key="ip", rate="3/m"))
    def get(self, request: HttpRequest) -> HttpResponse:
        """Answer."""
        return HttpResponse("get")


@api_view(["GET"])
@ratelimit(key="ip", rate="3/m")
def api_inside(request: Any) -> Response:
    """An API function, decorated inside."""
    return Response({"passed": True})


@ratelimit(key="ip", rate="3/m")
@api_view(["GET"])
def api_outside(request: Any) -> Response:
    """An API function, decorated outside."""
    return Response({"passed": True})


class ApiMethod(APIView):
    """An API class with a limit on one method, decorated as it stands."""

    @ratelimit(key="ip", rate="3/m")
    def get(self, request: Any) -> Response:
        """Answer."""
        return Response({"passed": True})


class Things(ViewSet):
    """A view set with a limited action."""

    @action(detail=False)
    @ratelimit(key="ip", rate="3/m")
    def inner(self, request: Any) -> Response:
        """Answer."""
        return Response({"passed": True})

    @method_decorator(ratelimit(key="ip", rate="3/m"))
    @action(detail=False)
    def outer(self, request: Any) -> Response:
        """Answer."""
        return Response({"passed": True})


class CustomErrors(APIView):
    """An API whose exception handler drops headers."""

    def get_exception_handler(self) -> Any:
        """Answer errors without headers."""
        return lambda exc, context: Response({"error": str(exc)}, status=getattr(exc, "status_code", 403))

    @ratelimit(key="ip", rate="3/m")
    def get(self, request: Any) -> Response:
        """Answer."""
        return Response({"passed": True})


router = SimpleRouter()
router.register("things", Things, basename="things")
urlpatterns = [
    path("function/", limited),
    path("afunction/", alimited),
    path("partial/", partial(limited)),
    path("watched/", watched),
    path("scoped/", scoped),
    path("stacked/", stacked),
    path("class/", First.as_view()),
    path("subclass/", Second.as_view()),
    path("aclass/", Async.as_view()),
    path("as-view/", ratelimit(key="ip", rate="3/m")(OnMethod.as_view())),
    path("method/", OnMethod.as_view()),
    path("api-inside/", api_inside),
    path("api-outside/", api_outside),
    path("api-method/", ApiMethod.as_view()),
    path("custom-errors/", CustomErrors.as_view()),
    path("", include(router.urls)),
]
pytestmark = pytest.mark.urls(__name__)

SYNC_PATHS = [
    "/function/", "/partial/", "/class/", "/subclass/", "/as-view/", "/method/", "/api-inside/", "/api-outside/",
    "/api-method/", "/custom-errors/", "/things/inner/", "/things/outer/",
]  # fmt: skip
WITH, WITHOUT = "with the middleware", "without"


@pytest.fixture(params=[WITH, WITHOUT])
def middleware(request: pytest.FixtureRequest, settings: Any, rules: Any) -> str:
    """Both ways to install the app; no admin rules."""
    rules()
    if request.param == WITHOUT:
        settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if "ratelimit_app" not in name]
    return str(request.param)


@pytest.mark.parametrize("url", [*SYNC_PATHS, "/afunction/", "/aclass/"])
def test_decorated_view_answers_429_by_itself(middleware: str, url: str) -> None:
    """C71: on everything that is a view, with and without the middleware, 429 and its headers, never 403 or 500."""
    answers = [Client().get(url) for _ in range(4)]
    assert [200, 200, 200, 429] == [answer.status_code for answer in answers]
    assert re.fullmatch(r"[1-9]\d*", answers[3]["Retry-After"])
    assert answers[3]["Cache-Control"] == "no-store"
    assert ["2", "1", "0", "0"] == [answer["X-RateLimit-Remaining"] for answer in answers]


@pytest.mark.parametrize("url", [*SYNC_PATHS, "/afunction/", "/aclass/"])
async def test_decorated_view_under_asgi(middleware: str, url: str) -> None:
    """C76: the same under ASGI."""
    answers = [await AsyncClient().get(url) for _ in range(4)]
    assert [200, 200, 200, 429] == [answer.status_code for answer in answers]


@pytest.mark.parametrize("url", ["/api-inside/", "/api-outside/", "/api-method/", "/things/inner/"])
def test_api_gets_problem_details(middleware: str, url: str) -> None:
    """A denial of a DRF view is problem details, whatever is accepted."""
    answer = [Client().get(url, headers={"accept": "text/html"}) for _ in range(4)][3]
    assert answer["Content-Type"] == "application/problem+json"


def test_classes_do_not_share_a_group(middleware: str) -> None:
    """C90: two classes under method_decorator count apart, a subclass apart from its parent."""
    for url in ("/class/", "/subclass/"):
        assert [200, 200, 200, 429] == [Client().get(url).status_code for _ in range(4)]


def test_stacked_limits_have_logs_of_their_own(middleware: str, valkey: Any) -> None:
    """C21: one request is one entry in each log; the tighter one denies."""
    assert [200, 200, 200, 429] == [Client().get("/stacked/").status_code for _ in range(4)]
    sizes = sorted(valkey.zcard(key) for key in valkey.keys("rl:1:{ip:127.0.0.1}:*"))
    assert [3, 4] == sizes


def test_block_false_tells_the_view(middleware: str) -> None:
    """`request.limited` is False, then True; the view answers."""
    assert [b"False", b"True"] == [Client().get("/watched/").content for _ in range(2)]


def test_scope_applies_the_rules_of_the_admin(middleware: str, rules: Any) -> None:
    """Rules of the scope count; rules without one are the middleware's business."""
    rules({"rate": "2/m", "scope": "checkout", "name": "checkout"}, {"rate": "1/m", "scope": "other"})
    assert [200, 200, 429] == [Client().get("/scoped/").status_code for _ in range(3)]


def test_middleware_and_decorator_both_count(rules: Any, valkey: Any) -> None:
    """C94: a decorator's own counter moves though the middleware has counted."""
    rules({"rate": "600/m", "name": "site"})
    assert [200, 200, 200, 429] == [Client().get("/function/").status_code for _ in range(4)]
    assert valkey.llen("rl:1:{ip:127.0.0.1}:site") == 4


def test_headers_describe_the_rule_nearest_its_limit(rules: Any) -> None:
    """Over all doors: the smallest part of its limit left."""
    rules({"rate": "600/m", "name": "site"})
    assert Client().get("/function/")["X-RateLimit-Limit"] == "3"
    rules({"rate": "2/m", "name": "site"})
    answers = [Client().get("/stacked/") for _ in range(2)]
    assert ["2", "2"] == [answer["X-RateLimit-Limit"] for answer in answers]


def test_blacklisted_is_403_without_the_middleware(middleware: str, valkey: Any) -> None:
    """The decorator turns the blacklisted away by itself."""
    valkey.set("rl:1:{ip:127.0.0.1}!mark", 0)
    assert Client().get("/function/").status_code == 403


@pytest.mark.parametrize("url", ["/function/", "/afunction/", "/class/", "/api-inside/", "/api-method/"])
def test_raise_ends_as_429_through_the_middleware(rules: Any, settings: Any, url: str) -> None:
    """C71, C89: raised, in a plain view or inside an APIView, the middleware makes it 429."""
    rules()
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "RAISE": True}
    answers = [Client().get(url) for _ in range(4)]
    assert [200, 200, 200, 429] == [answer.status_code for answer in answers]
    assert answers[3].has_header("Retry-After")


def _request(**extra: Any) -> Any:
    request = RequestFactory().get("/", **extra)
    request.user = AnonymousUser()
    return request


def test_raised_exception_carries_the_decision(rules: Any, settings: Any) -> None:
    """`Ratelimited` is a PermissionDenied with the decision."""
    rules()
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "RAISE": True}
    for _ in range(3):
        limited(_request())
    with pytest.raises(Ratelimited) as caught:
        limited(_request())
    assert caught.value.decision is not None
    assert caught.value.decision.verdict == "limited"


async def test_async_view_stays_a_coroutine_function(rules: Any) -> None:
    """C76: also through partial and sync_to_async; what it returns is awaited."""
    rules()
    for view in (alimited, partial(alimited), sync_to_async(passed)):
        decorated = ratelimit(key="ip", rate="3/m", group=str(view))(view)
        assert iscoroutinefunction(decorated)
        request = AsyncRequestFactory().get("/")
        assert (await decorated(request)).status_code == 200


def test_callables_and_dotted_paths(rules: Any) -> None:
    """C139: a key and a rate may be callables of (group, request), by path too; None means no limit."""
    rules()
    seen: list[tuple[str, str]] = []

    def rate(group: str, request: HttpRequest) -> str | None:
        seen.append((group, request.path))
        return None if request.GET.get("free") else "1/m"

    view = ratelimit(group="callables", key=f"{__name__}.key_of", rate=rate)(passed)
    answers = [
        view(_request(QUERY_STRING=query)).status_code for query in ("a=1", "a=1", "a=2", "free=1&a=1")
    ]
    assert [200, 429, 200, 200] == answers
    assert ("callables", "/") == seen[0]


def key_of(group: str, request: HttpRequest) -> str:
    """Count by a query parameter."""
    return request.GET["a"]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"key": "usr", "rate": "5/m"}, "user_or_ip"),
        ({"key": "ip", "rate": "5/x"}, "no unit of time"),
        ({"key": "ip", "rate": "10/month"}, "10/month"),
        ({"key": "no.such.path", "rate": "5/m"}, "cannot be imported"),
        ({"rate": "5/m"}, "key is missing"),
        ({"key": "ip", "rate": "5/m", "scope": "x"}, "scope"),
        ({"key": "ip", "rate": "5/m", "method": "FETCH"}, "no HTTP method"),
        ({"key": "ip", "rate": "5/m", "cost": 6}, "more than the limit"),
        ({"key": "ip", "rate": "5/m", "cost": 0}, "whole number"),
        ({"key": "ip", "rate": "5/m", "algorithm": "magic"}, "sliding_window"),
        ({"key": "ip", "rate": "5/m", "on_failure": "maybe"}, "open"),
        ({"key": "ip", "rate": "20000/m"}, "10,000"),
        ({"key": "ip", "rate": 5}, "rate=5"),
        ({"key": "ip", "rate": (5, 0)}, "not a rate"),
        ({"key": "ip", "rate": "5/m", "burst": "x"}, "burst='x'"),
        ({"key": "ip", "rate": "5/m", "burst": 0}, "burst=0"),
        ({"key": "ip", "rate": "5/m", "group": 5}, "group=5"),
    ],
)
def test_bad_argument_is_refused_when_the_view_is_decorated(arguments: dict[str, Any], wanted: str) -> None:
    """C28, C135: the message names what was given and what is expected; it is both kinds of error."""
    with pytest.raises(ImproperlyConfigured, match=re.escape(wanted)) as caught:
        ratelimit(**arguments)
    assert isinstance(caught.value, ValueError)


def test_class_is_refused_with_the_remedy() -> None:
    """A class is no view function."""
    with pytest.raises(ImproperlyConfigured, match="method_decorator"):
        ratelimit(key="ip", rate="5/m")(First)


def test_methods_constants() -> None:
    """ALL and UNSAFE stand where django-ratelimit has them."""
    assert ratelimit.ALL is None
    assert set(ratelimit.UNSAFE) == {"DELETE", "PATCH", "POST", "PUT"}


def test_unsafe_methods_only(rules: Any) -> None:
    """A decorator for UNSAFE leaves GET alone."""
    rules()
    view = ratelimit(group="u", key="ip", rate="1/m", method=ratelimit.UNSAFE)(passed)
    posts = [RequestFactory().post("/") for _ in range(2)]
    assert [200, 429] == [view(request).status_code for request in posts]
    assert view(_request()).status_code == 200


def test_no_rate_means_no_redis_call(rules: Any, valkey: Any) -> None:
    """C47: `rate=None` is no limit, and nobody is asked."""
    rules()
    view = ratelimit(key="ip", rate=None)(passed)
    before = valkey.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    assert view(_request()).status_code == 200
    assert valkey.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0) == before


@ratelimit(key="ip+field:email", rate="3/m")
def by_field(request: HttpRequest) -> HttpResponse:
    """Answer; counted by a field of the body."""
    return HttpResponse("passed")


@cache_control(public=True)
@ratelimit(key="ip", rate="3/m")
def public(request: HttpRequest) -> HttpResponse:
    """Answer for shared caches, which keep it after the limit has been written."""
    return HttpResponse("passed")


@ratelimit(key="ip+field:email", rate="3/m")
async def aby_field(request: HttpRequest) -> HttpResponse:
    """Answer; counted by a field of the body."""
    return HttpResponse("passed")


@ratelimit(key="ip+field:email", rate="3/m", block=False)
def watched_field(request: HttpRequest) -> HttpResponse:
    """Decide for itself, counted by a field of the body."""
    return HttpResponse(str(request.limited))  # type: ignore[attr-defined]


urlpatterns += [path("by-field/", by_field), path("aby-field/", aby_field)]
urlpatterns += [path("watched-field/", watched_field), path("public/", public)]
LARGE: dict[str, Any] = {
    "data": b"email=a%40example.org&x=" + b"x" * (1024 * 1024),
    "content_type": "application/x-www-form-urlencoded",
}


@pytest.mark.parametrize("url", ["/by-field/", "/aby-field/"])
def test_body_too_large_to_read_is_413_by_the_decorator(middleware: str, valkey: Any, url: str) -> None:
    """The decorator answers 413 by itself, for sync and async views, and charges nothing."""
    answer = Client().post(url, **LARGE)
    assert (413, "no-store") == (answer.status_code, answer["Cache-Control"])
    assert answer.json()["detail"] == "The body of this request is too large."
    assert not valkey.keys("rl:1:{*}:*")


def test_body_too_large_to_read_is_over_the_limit_for_a_view_that_decides(middleware: str) -> None:
    """`block=False` still calls the view, and tells it that the request is limited."""
    answer = Client().post("/watched-field/", **LARGE)
    assert (200, b"True") == (answer.status_code, answer.content)


def test_response_that_becomes_public_loses_the_numbers(rules: Any) -> None:
    """C74: what an inner door wrote is taken back when an outer one opens the response to shared caches."""
    rules({"rate": "600/m"})
    answer = Client().get("/public/")
    assert not [name for name in answer.headers if "ratelimit" in name.lower()]


def test_callable_rates_of_one_group_keep_their_windows(rules: Any) -> None:
    """A callable rate of a short period neither hides nor cuts short that of a long one."""
    rules()
    fast = ratelimit(key="ip", rate=lambda group, request: "100/s", group="shared")
    slow = ratelimit(key="ip", rate=lambda group, request: "2/h", group="shared")
    view, other = fast(slow(passed)), fast(passed)
    assert [200, 200, 429] == [view(_request()).status_code for _ in range(3)]
    assert other(_request()).status_code == 200
    assert slow(passed)(_request()).status_code == 429
