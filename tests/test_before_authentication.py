"""What counts by address acts before anybody is authenticated; what needs the user acts after."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import method_decorator
from rest_framework.authentication import TokenAuthentication
from rest_framework.authtoken.models import Token
from rest_framework.permissions import IsAuthenticated
from rest_framework.response import Response
from rest_framework.views import APIView

from ratelimit_app.conf import conf
from ratelimit_app.core.access_lists import NEVER, NetworkTable
from ratelimit_app.decorators import ratelimit
from ratelimit_app.throttling import RuleThrottle

OURS = "ratelimit_app.middleware.RateLimitMiddleware"
asked: list[str] = []


class Recording(TokenAuthentication):
    """Tells when it was asked."""

    def authenticate(self, request: Any) -> Any:
        """Note it."""
        asked.append("token")
        return super().authenticate(request)


class Api(APIView):
    """An API for those who have a token."""

    authentication_classes = [Recording]
    permission_classes = [IsAuthenticated]
    throttle_classes = [RuleThrottle]

    def get(self, request: Any) -> Response:
        """Answer."""
        return Response("in")


@method_decorator(ratelimit(key="ip", rate="3/m"), name="dispatch")
class Guarded(Api):
    """The same, with a decorator around all of it."""


class Recorder:
    """A user whose loading is noted."""

    def __call__(self, get_response: Any) -> Any:
        """Stand for a middleware of the project that finds the user when asked."""

        def handle(request: HttpRequest) -> Any:
            inner = request.user

            class Lazy:
                def __getattr__(self, name: str) -> Any:
                    asked.append("user")
                    return getattr(inner, name)

            request.user = Lazy()  # type: ignore[assignment]
            return get_response(request)

        return handle


recorder = Recorder()


def page(request: HttpRequest) -> HttpResponse:
    """A page."""
    return HttpResponse("page")


urlpatterns = [
    path("api/", Api.as_view()),
    path("guarded/", Guarded.as_view()),
    path("page/", page),
]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _project(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.test_before_authentication"
    asked.clear()


def get(url: str, token: str = "", colour: str = "sync") -> int:
    """Ask with a token."""
    headers = {"Authorization": f"Token {token}"}
    if colour == "sync":
        return Client().get(url, headers=headers).status_code
    return int(async_to_sync(AsyncClient().get)(url, headers=headers).status_code)


colours = pytest.mark.parametrize("colour", ["sync", "async"])


@colours
def test_a_flood_of_bad_tokens_when_over_the_limit_is_not_authenticated(colour: str, rules: Any) -> None:
    """C84: three guesses of a token are answered 401, the fourth 429, and nobody looks at it."""
    rules({"rate": "3/m", "key": "ip"})
    assert [401, 401, 401, 429, 429] == [get("/api/", f"guess-{n}", colour) for n in range(5)]
    assert ["token"] * 3 == asked


@colours
@pytest.mark.parametrize("how", ["mark", "network"])
def test_an_address_when_banned_is_not_authenticated(colour: str, how: str, rules: Any, valkey: Any) -> None:
    """C84: a ban of an address or its network is 403 before any token is looked at."""
    if how == "mark":
        rules(marked_kinds=frozenset({"ip"}))
        valkey.set(conf.keys.mark("ip:127.0.0.1"), b"0")
    else:
        rules().networks.set("127.0.0.0/8", NEVER)
    assert [403, 403] == [get("/api/", "guess", colour), get("/page/", "guess", colour)]
    assert [] == asked


def test_a_user_when_a_denial_comes_first_is_not_loaded(rules: Any, settings: Any) -> None:
    """Rules by address load no session and no user, whether they pass or deny."""
    at = settings.MIDDLEWARE.index(OURS)
    settings.MIDDLEWARE = [
        *settings.MIDDLEWARE[:at], "tests.test_before_authentication.recorder", *settings.MIDDLEWARE[at:]
    ]  # fmt: skip
    nobody: dict[str, Any] = {"marked_kinds": frozenset()}
    rules({"rate": "1/m", "key": "ip"}, **nobody)
    assert [200, 429] == [get("/page/"), get("/page/")]
    assert [] == asked
    rules(
        {"name": "late", "rate": "9/m", "key": "user"},
        {"name": "first", "rate": "1/h", "key": "ip"},
        **nobody,
    )
    assert [200, 429] == [get("/page/"), get("/page/")]
    assert asked
    loaded = len(asked)
    assert 429 == get("/page/")
    assert loaded == len(asked)


@colours
def test_a_user_when_known_by_a_token_has_a_limit_of_its_own(colour: str, rules: Any) -> None:
    """C93: user rules wait for DRF's user, from whatever address; a bad token uses up nobody's."""
    tokens = [Token.objects.create(user=User.objects.create(username=name)).key for name in ("u", "v")]
    rules({"rate": "2/m", "key": "user"})
    assert [401] * 3 == [get("/api/", "bad", colour) for _ in range(3)]
    assert [200, 200, 429, 200] == [get("/api/", tokens[n], colour) for n in (0, 0, 0, 1)]


def test_the_throttle_when_alone_comes_after_authentication_and_a_decorator_before(
    rules: Any, settings: Any
) -> None:
    """C84: DRF authenticates before throttles: without the middleware (W022 tells) a decorator on dispatch is the way."""
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if name != OURS]
    rules({"rate": "3/m", "key": "ip"})
    assert [401] * 5 == [get("/api/", f"guess-{n}") for n in range(5)]
    asked.clear()
    assert [401, 401, 401, 429, 429] == [get("/guarded/", f"guess-{n}") for n in range(5)]
    assert ["token"] * 3 == asked


def test_an_allowed_network_when_it_floods_is_authenticated_each_time(rules: Any) -> None:
    """The allowlist beats the limit: whoever is on it is asked for the token, as without limits."""
    office = NetworkTable()
    office.set("127.0.0.0/8", NEVER)
    rules({"rate": "1/m", "key": "ip"}, allowed_networks=office)
    assert [401] * 3 == [get("/api/") for _ in range(3)]
