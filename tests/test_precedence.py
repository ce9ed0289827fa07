"""The order off, allowlist, blacklist, rules: the same at every door, whatever else is known of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from rest_framework.authentication import SessionAuthentication
from rest_framework.decorators import api_view, authentication_classes
from rest_framework.response import Response
from rest_framework.views import APIView

from ratelimit_app import acheck, acquire, check, local_cache, peek, snapshot_cache
from ratelimit_app.conf import conf
from ratelimit_app.core.access_lists import NetworkTable
from ratelimit_app.core.decision import Reason
from ratelimit_app.decorators import ratelimit
from ratelimit_app.throttling import RuleThrottle, UserRateThrottle

if TYPE_CHECKING:
    from rest_framework.request import Request

pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]
OURS = "ratelimit_app.middleware.RateLimitMiddleware"
CLIENT = "203.0.113.9"
MINUTE_US = 60_000_000


def plain(request: HttpRequest) -> HttpResponse:
    """A page."""
    return HttpResponse("passed")


async def aplain(request: HttpRequest) -> HttpResponse:
    """An async page."""
    return HttpResponse("passed")


@ratelimit(key="ip", rate="0/s")
def decorated(request: HttpRequest) -> HttpResponse:
    """A page with a limit of its own, which lets nobody pass."""
    return HttpResponse("passed")


@ratelimit(key="ip", rate="0/s")
async def adecorated(request: HttpRequest) -> HttpResponse:
    """The same, async."""
    return HttpResponse("passed")


def checked(request: HttpRequest) -> HttpResponse:
    """A page that asks by itself."""
    return HttpResponse(status=200 if check(request).allowed else 429)


async def achecked(request: HttpRequest) -> HttpResponse:
    """The same, async."""
    await request.auser()
    return HttpResponse(status=200 if (await acheck(request)).allowed else 429)


class Api(APIView):
    """An API of the admin's rules."""

    authentication_classes = [SessionAuthentication]
    throttle_classes = [RuleThrottle]

    def get(self, request: Request) -> Response:
        """Answer."""
        return Response({})


class Nobody(Api):
    """An API that does not know Django's user: what the middleware has found holds here too."""

    authentication_classes = []


class NoneAtAll(UserRateThrottle):
    """A throttle of DRF's name that lets nobody pass."""

    rate = "0/s"


class Named(Api):
    """An API with a throttle of code beside the rules."""

    throttle_classes = [RuleThrottle, NoneAtAll]


@api_view(["GET"])
@authentication_classes([SessionAuthentication])
@ratelimit(key="ip", rate="0/s")
def function_api(request: Request) -> Response:
    """An API by function."""
    return Response({})


urlpatterns = [
    path("plain/", plain),
    path("aplain/", aplain),
    path("decorated/", decorated),
    path("adecorated/", adecorated),
    path("checked/", checked),
    path("achecked/", achecked),
    path("api/", Api.as_view()),
    path("nobody/", Nobody.as_view()),
    path("named/", Named.as_view()),
    path("function-api/", function_api),
]
# Whether the door needs the middleware.
DOORS = {
    "/plain/": True, "/aplain/": True, "/nobody/": True, "/decorated/": False, "/adecorated/": False, "/checked/": False,
    "/achecked/": False, "/api/": False, "/named/": False, "/function-api/": False,
}  # fmt: skip
WAYS = [(url, with_) for url, needs in DOORS.items() for with_ in ((True,) if needs else (True, False))]


@pytest.fixture
def ann() -> Any:
    """A user."""
    return get_user_model().objects.create_user("ann")


@pytest.fixture
def status(ann: Any, settings: Any) -> Any:
    """Give the status of ann's request: status(url, middleware=…, colour=…)."""

    # The async test client has no other address to come from.
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "TRUSTED_PROXIES": ["127.0.0.1"]}
    sent = {"X-Forwarded-For": CLIENT}

    def status_(url: str, *, middleware: bool = True, colour: str = "sync") -> int:
        settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if name != OURS or middleware]
        if colour == "sync":
            client = Client()
            client.force_login(ann)
            return int(client.get(url, headers=sent).status_code)
        aclient = AsyncClient()
        aclient.force_login(ann)

        async def ask() -> Any:
            return await aclient.get(url, headers=sent)

        return int(async_to_sync(ask)().status_code)

    return status_


def table(*networks: str, end: int = 0) -> NetworkTable:
    """A list of networks."""
    made = NetworkTable()
    for network in networks:
        made.set(network, end)
    return made


def ban(valkey: Any, user: Any = None) -> None:
    """Ban the client's address, and the user where there is one, for good."""
    valkey.set(conf.keys.mark(f"ip:{CLIENT}"), 0)
    if user is not None:
        valkey.set(conf.keys.mark(f"user:{user.pk}"), 0)


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize(("url", "middleware"), WAYS)
@pytest.mark.parametrize("allowed", ["address", "network", "user"])
def test_an_allowlist_when_everything_else_denies_wins_at_every_door(
    rules: Any, valkey: Any, ann: Any, status: Any, allowed: str, url: str, middleware: bool, colour: str
) -> None:
    """C102: a banned address in a banned network, a banned user, and a rule of nothing: the allowlist beats them all."""
    ban(valkey, ann)
    lists: dict[str, dict[str, Any]] = {
        "address": {"allowed_networks": table(CLIENT)},
        "network": {"allowed_networks": table("203.0.112.0/23")},
        "user": {"allowed_users": {f"user:{ann.pk}": 0}},
    }
    denying = rules({"rate": "0/s"}, {"rate": "0/s", "key": "user", "name": "user"})
    denying.networks.set("203.0.113.0/24", 0)
    assert status(url, middleware=middleware, colour=colour) in (403, 429)
    made = rules({"rate": "0/s"}, {"rate": "0/s", "key": "user", "name": "user"}, **lists[allowed])
    made.networks.set("203.0.113.0/24", 0)
    assert 200 == status(url, middleware=middleware, colour=colour)


def test_an_allowlist_when_a_function_asks_for_an_identity_wins(rules: Any, valkey: Any) -> None:
    """C102: `acquire` and `peek` follow the same order, also with what the process has already been told."""
    ban(valkey)
    valkey.set(conf.keys.mark("user:7"), 0)
    for identity in (f"ip:{CLIENT}", "user:7", f"user:7+ip:{CLIENT}"):
        rules()
        assert Reason.BLACKLISTED is acquire(identity, "9/m", group="g").reason
        rules(allowed_networks=table(CLIENT), allowed_users={"user:7": 0})
        for ask in (acquire, peek):
            assert Reason.ALLOWLISTED is ask(identity, "0/s", group="g").reason


def test_an_allowlist_entry_when_it_has_ended_allows_nobody(
    rules: Any, status: Any, ann: Any, travel: Any
) -> None:
    """C102: it ends by its own time, by the clock of Redis, however long it stands in the snapshot."""
    end = snapshot_cache.now_us() + MINUTE_US
    rules({"rate": "0/s"}, allowed_networks=table(CLIENT, end=end))
    assert 200 == status("/plain/")
    travel(61)
    assert 429 == status("/plain/")
    rules({"rate": "0/s"}, allowed_users={f"user:{ann.pk}": end + MINUTE_US})
    assert 200 == status("/plain/")
    travel(60)
    assert 429 == status("/plain/")


@pytest.mark.parametrize("url", ["/plain/", "/api/", "/decorated/"])
def test_a_blacklist_when_a_rule_denies_too_is_told_first(
    rules: Any, valkey: Any, status: Any, url: str
) -> None:
    """A ban comes before the rules: 403, not 429, and nothing is charged."""
    rules({"rate": "0/s"})
    ban(valkey)
    assert 403 == status(url)


@pytest.mark.parametrize("kind", ["mark", "network"])
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_ban_when_its_end_has_passed_bans_nobody_though_it_lingers(
    rules: Any, valkey: Any, status: Any, travel: Any, kind: str, colour: str
) -> None:
    """C112: a key without a life of its own, and a network still in the table: the stored end counts alone."""
    end = snapshot_cache.now_us() + 9 * MINUTE_US
    made = rules({"rate": "9/m"})
    if kind == "mark":
        valkey.set(conf.keys.mark(f"ip:{CLIENT}"), end)
    else:
        made.networks.set("203.0.113.0/24", end)
    # Twice: as Redis says it, and as the process remembers it.
    assert [403, 403] == [status("/plain/", colour=colour) for _ in range(2)]
    travel(400)
    assert 403 == status("/plain/", colour=colour)
    travel(141)
    assert [200, 200] == [status("/plain/", colour=colour) for _ in range(2)]
    local_cache.forget(None)
    assert 200 == status("/plain/", colour=colour)
    assert -1 == valkey.ttl(conf.keys.mark(f"ip:{CLIENT}")) or kind == "network"


@pytest.mark.parametrize("text", ["", "soon", "1", "-5", "nan"])
def test_a_mark_when_it_is_in_the_past_or_no_time_bans_nobody(
    rules: Any, valkey: Any, status: Any, text: str
) -> None:
    """C112: what is no end, or one long past, is no ban; a request never fails for it."""
    rules({"rate": "9/m"})
    valkey.set(conf.keys.mark(f"ip:{CLIENT}"), text)
    assert 200 == status("/plain/")


def test_a_ban_of_a_network_when_a_narrower_one_ends_first_goes_on(
    rules: Any, status: Any, travel: Any
) -> None:
    """Overlapping bans: the longest that holds the client counts, in whatever order they were made."""
    now = snapshot_cache.now_us()
    made = rules({"rate": "9/m"})
    for network, minutes in (("203.0.113.0/28", 1), ("203.0.113.0/24", 3), ("203.0.112.0/23", 2)):
        made.networks.set(network, now + minutes * MINUTE_US)
    for seconds, expected in ((0, 403), (61, 403), (60, 403), (60, 200)):
        travel(seconds)
        assert expected == status("/plain/")


def test_a_switch_when_off_comes_before_all_lists(
    rules: Any, valkey: Any, status: Any, settings: Any
) -> None:
    """Off: not even a ban acts."""
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "ENABLED": False}
    rules({"rate": "0/s"}).networks.set("203.0.113.0/24", 0)
    ban(valkey)
    assert 200 == status("/plain/")
