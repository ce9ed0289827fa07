"""Every source of identities, alone and joined, through real requests at every door."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_from_bytes

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.module_loading import import_string
from rest_framework.authentication import SessionAuthentication
from rest_framework.response import Response
from rest_framework.views import APIView

from ratelimit_app.decorators import ratelimit
from ratelimit_app.throttling import RuleThrottle
from tests.cases import HOSTILE_TEXTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.contrib.sessions.backends.base import SessionBase

HERE, THERE = "203.0.113.9", "198.51.100.7"


def ruled(request: HttpRequest) -> HttpResponse:
    """A page behind the middleware."""
    return HttpResponse("ok")


class Api(APIView):
    """An API, throttled."""

    authentication_classes = [SessionAuthentication]
    throttle_classes = [RuleThrottle]
    throttle_scope = "api"

    def get(self, request: Any) -> Response:
        """Answer."""
        return Response("ok")

    post = get


def decorated(request: HttpRequest) -> HttpResponse:
    """A page with the decorator whose key the test has chosen."""
    answer: HttpResponse = _decorated[-1](request)
    return answer


async def adecorated(request: HttpRequest) -> HttpResponse:
    """An async page with the decorator whose key the test has chosen."""
    answer = _decorated[-1](request)
    return answer if isinstance(answer, HttpResponse) else await answer


_decorated: list[Callable[[HttpRequest], Any]] = []
urlpatterns = [
    path("ruled/", ruled, name="ruled"),
    path("api/", Api.as_view(), name="api"),
    path("decorated/", decorated),
    path("adecorated/", adecorated),
]


@pytest.fixture(autouse=True)
def _project(settings: Any) -> Iterator[None]:
    settings.ROOT_URLCONF = "tests.test_sources"
    settings.RATELIMIT_APP = {"STORE_TIMEOUT": 2.0, "TRUSTED_PROXIES": ["127.0.0.1"]}
    yield
    _decorated.clear()


async def _page(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


def send(url: str, colour: str, asked: dict[str, Any]) -> int:
    """Send what a client sends; `user`, `session`: who is signed in; `ip`: where from."""
    made: Any = Client() if colour == "sync" else AsyncClient()
    if "user" in asked:
        user, _ = User.objects.get_or_create(username=asked["user"])
        made.force_login(user)
    for name, value in asked.get("cookies", {}).items():
        made.cookies[name] = value
    headers = {"X-Forwarded-For": asked.get("ip", HERE)} | asked.get("headers", {})
    more = {"headers": headers, "query_params": asked.get("query")}
    if "json" in asked:
        more |= {"data": asked["json"], "content_type": "application/json"}
    if "form" in asked:
        more |= {"data": asked["form"]}
    call = made.post if "data" in more else made.get
    answer = (call if colour == "sync" else async_to_sync(call))(url, **more)
    return int(answer.status_code)


DOORS = {
    "middleware": ("/ruled/", "sync"),
    "middleware, async": ("/ruled/", "async"),
    "decorator": ("/decorated/", "sync"),
    "decorator, async": ("/adecorated/", "async"),
    "throttle": ("/api/", "sync"),
}
doors = pytest.mark.parametrize("door", DOORS)


def sender(door: str, key: Any, rules: Any, rate: str = "2/m") -> Callable[[dict[str, Any]], int]:
    """Limit a door by a key, and give the function that sends to it."""
    url, colour = DOORS[door]
    if door.startswith("decorator"):
        view = _page if colour == "async" else ruled
        if isinstance(key, str):  # beside one by address, so that no check complains of it
            view = ratelimit(key="ip", rate="1000/m")(view)
        _decorated.append(ratelimit(key=key, rate=rate)(view))
    else:
        rules({"name": "r", "rate": rate, "key": key, "scope": "api" if door == "throttle" else ""})
    return lambda asked: send(url, colour, asked)


def _device(value: str) -> dict[str, Any]:
    return {"headers": {"X-Device-Id": value}}


# A key, two requests of one identity, one of another (None: there is no other), one without (None: all have it).
SOURCES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any] | None, dict[str, Any] | None]] = [
    ("ip", {}, {"headers": {"X-Any": "1"}}, {"ip": THERE}, None),
    ("ip", {"ip": "2001:db8:1:2::3"}, {"ip": "2001:DB8:1:2:9::"}, {"ip": "2001:db8:1:3::3"}, None),
    ("user", {"user": "u"}, {"user": "u", "ip": THERE}, {"user": "v"}, {}),
    ("user_or_ip", {"user": "u"}, {"user": "u", "ip": THERE}, {"user": "v"}, {}),
    ("device", _device("a"), _device("a") | {"ip": THERE}, _device("b"), {}),
    ("global", {}, {"ip": THERE, "user": "u"}, None, None),
    ("view", {}, {"ip": THERE}, None, None),
    ("header:x-api-key", {"headers": {"X-Api-Key": "a"}}, {"headers": {"x-api-KEY": "a"}, "ip": THERE},
     {"headers": {"X-Api-Key": "A"}}, {"headers": {"X-Api-Key": ""}}),
    ("header:X_API_KEY", {"headers": {"X-Api-Key": "a"}}, {"headers": {"X-Api-Key": "a"}, "ip": THERE},
     {"headers": {"X-Api-Key": "b"}}, {}),
    ("cookie:cart", {"cookies": {"cart": "a"}}, {"cookies": {"cart": "a"}, "ip": THERE}, {"cookies": {"cart": "b"}},
     {"cookies": {"other": "a"}}),
    ("param:q", {"query": {"q": "a"}}, {"query": {"q": ["b", "a"]}, "ip": THERE}, {"query": {"q": "b"}},
     {"query": {"p": "a"}}),
    ("get:q", {"query": {"q": "a"}}, {"query": {"q": "a"}, "ip": THERE}, {"query": {"q": "A"}}, {}),
    ("field:email", {"form": {"email": "a@x"}}, {"json": {"email": "A@x "}, "ip": THERE}, {"json": {"email": "b@x"}},
     {"json": {"mail": "a@x"}}),
    ("post:email", {"json": {"email": "a@x"}}, {"form": {"email": ["b", "a@x"]}, "ip": THERE}, {"form": {"email": "b"}},
     {"form": {"other": "a"}}),
    ("user+ip", {"user": "u"}, {"user": "u"}, {"user": "u", "ip": THERE}, {}),
    ("ip+field:email", {"json": {"email": "a"}}, {"form": {"email": "A"}}, {"form": {"email": "a"}, "ip": THERE}, {}),
    ("ip+user_or_ip", {"user": "u"}, {"user": "u"}, {"user": "v"}, None),
    ("view+device", _device("a"), _device("a") | {"ip": THERE}, _device("b"), {}),
    ("user+header:x-a+cookie:b+param:c+field:d",
     {"user": "u", "headers": {"X-A": "1"}, "cookies": {"b": "1"}, "query": {"c": "1"}, "json": {"d": "1"}},
     {"user": "u", "headers": {"X-A": "1"}, "cookies": {"b": "1"}, "query": {"c": "1"}, "form": {"d": "1"}, "ip": THERE},
     {"user": "u", "headers": {"X-A": "1"}, "cookies": {"b": "1"}, "query": {"c": "2"}, "json": {"d": "1"}},
     {"user": "u", "headers": {"X-A": "1"}, "cookies": {"b": "1"}, "query": {"c": "1"}, "json": {"e": "1"}}),
]  # fmt: skip


@pytest.mark.django_db(transaction=True)
@doors
@pytest.mark.parametrize(("key", "one", "same", "other", "missing"), SOURCES)
def test_a_source_when_asked_of_requests_tells_clients_apart(
    door: str, key: str, one: Any, same: Any, other: Any, missing: Any, rules: Any
) -> None:
    """One identity has one limit wherever it comes from; another has its own; whoever has none is the address (C27, C152)."""
    ask = sender(door, key, rules)
    assert [200, 200, 429, 429] == [ask(one), ask(same), ask(one), ask(same)]
    assert (429 if other is None else 200) == ask(other or {"ip": THERE})
    if missing is not None:
        assert [200, 200, 429] == [ask(missing) for _ in range(3)]
        assert 200 == ask({**missing, "ip": "192.0.2.77"})


@pytest.mark.parametrize("door", ["decorator", "decorator, async"])
@pytest.mark.parametrize(
    "value",
    [None, "", 0, 42, "user:42", "a b", "\x00\r\n", "\ud800", "{x}", "x" * 10_000, "é+%", ("a", 1), True],
    ids=repr,
)
def test_a_callable_when_it_is_the_key_may_give_anything(
    door: str, value: Any, rules: Any, valkey: Any
) -> None:
    """C25: what it gives is one identity with a short key; None and blank text are the address."""
    ask = sender(door, lambda group, request: value, rules)
    assert [200, 200, 429] == [ask({}) for _ in range(3)]
    (log,) = valkey.keys("rl:1:{*}:*")
    assert len(log) < 200
    assert log.startswith(b"rl:1:{ip:203.0.113.9}" if value in {None, ""} and value != 0 else b"rl:1:{key:")


RAW: dict[str, Callable[[bytes], dict[str, Any]]] = {
    "header:x-raw": lambda raw: {"HTTP_X_RAW": raw.decode("latin-1")},
    "device": lambda raw: {"HTTP_X_DEVICE_ID": raw.decode("latin-1")},
    "cookie:raw": lambda raw: {"HTTP_COOKIE": b"raw=" + raw},
    "param:raw": lambda raw: {"QUERY_STRING": "raw=" + quote_from_bytes(raw)},
    "field:raw": lambda raw: {"form": b"raw=" + quote_from_bytes(raw).encode()},
    "field:raw[]": lambda raw: {"form": b"raw[]=" + raw.replace(b"&", b"")},
    "field:json": lambda raw: {"json": json.dumps({"json": raw.decode("utf-8", "surrogateescape")}).encode()},
}
BYTES = [text.encode("utf-8", "surrogatepass") for text in HOSTILE_TEXTS] + [
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"%00",
    b"'\"",
]


@pytest.mark.parametrize("key", RAW)
@pytest.mark.parametrize("raw", BYTES, ids=lambda raw: repr(raw[:20]))
def test_a_value_of_any_bytes_when_sent_is_counted(key: str, raw: bytes, rules: Any, valkey: Any) -> None:
    """C25: three pass, the fourth is 429, none is an error, no key is long, none has a brace or a line too many."""
    rules({"name": "r", "rate": "3/m", "key": key}, {"name": "joined", "rate": "3/m", "key": f"ip+{key}"})
    extra = RAW[key](raw)
    if "HTTP_COOKIE" in extra:
        extra["HTTP_COOKIE"] = extra["HTTP_COOKIE"].decode("latin-1")
    body = extra.pop("form", None) or extra.pop("json", None)
    kind = "application/json" if key == "field:json" else "application/x-www-form-urlencoded"
    sent = {"data": body, "content_type": kind} if body is not None else {}
    client = Client(raise_request_exception=False)
    method = client.post if body is not None else client.get
    assert [200, 200, 200, 429] == [method("/ruled/", **sent, **extra).status_code for _ in range(4)]
    logs = valkey.keys("rl:1:{*}:*")
    assert 1 <= len(logs) <= 2
    for log in logs:
        assert len(log) < 200
        assert (1, 1) == (log.count(b"{"), log.count(b"}"))
        assert log.decode().isprintable()


ENGINES = ["db", "cache", "cached_db", "file", "signed_cookies"]


def new_session(engine: str, **values: Any) -> SessionBase:
    """Make a session as the project's engine keeps it."""
    made: SessionBase = import_string(f"django.contrib.sessions.backends.{engine}.SessionStore")()
    made.update({"x": 1, **values})
    made.save()
    return made


@pytest.mark.django_db(transaction=True)
@doors
@pytest.mark.parametrize("engine", ENGINES)
def test_a_session_when_it_exists_is_counted_and_a_made_up_one_is_the_address(
    door: str, engine: str, rules: Any, settings: Any, tmp_path: Any
) -> None:
    """C152: a session goes with its owner to another address; cookies made up for each request are one client."""
    settings.SESSION_ENGINE = f"django.contrib.sessions.backends.{engine}"
    settings.SESSION_FILE_PATH = str(tmp_path)
    ask = sender(door, "session", rules)
    name = django_settings.SESSION_COOKIE_NAME
    session = {"cookies": {name: new_session(engine).session_key}}
    assert [200, 200, 429] == [ask(session), ask({**session, "ip": THERE}), ask(session)]
    made_up = ["a" * 32, "", "../../etc/passwd", "x" * 5_000, "made:up:signature", "\xe9"]
    assert [200, 200, 429, 429, 429, 429] == [ask({"cookies": {name: key}}) for key in made_up]
    assert 200 == ask({"ip": THERE})


@pytest.mark.django_db(transaction=True)
@doors
@pytest.mark.parametrize("engine", ["db", "cached_db"])
def test_a_session_when_it_has_ended_is_none(door: str, engine: str, rules: Any, settings: Any) -> None:
    """An old cookie, or one whose session was flushed, is no session: its owner is the address."""
    settings.SESSION_ENGINE = f"django.contrib.sessions.backends.{engine}"
    ended, flushed = new_session(engine), new_session(engine)
    ended.set_expiry(-1)
    ended.save()
    key = flushed.session_key
    flushed.flush()
    ask = sender(door, "session", rules)
    name = django_settings.SESSION_COOKIE_NAME
    keys = [ended.session_key, key, ended.session_key]
    assert [200, 200, 429] == [ask({"cookies": {name: key}}) for key in keys]


@pytest.mark.django_db(transaction=True)
def test_a_session_when_asked_for_is_not_begun(rules: Any) -> None:
    """A rule that counts by session makes no session, and sets no cookie."""
    rules({"rate": "9/m", "key": "session"})
    answer = Client().get("/ruled/")
    assert (200, {}) == (answer.status_code, dict(answer.cookies))
    assert not Session.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_user_when_the_session_is_forged_is_the_address(rules: Any) -> None:
    """C152: four bearer strings and four made-up sessions are four logins of one address."""
    rules({"rate": "3/m", "key": "user_or_ip"})
    found = [
        send(
            "/ruled/",
            "sync",
            {"headers": {"Authorization": f"Bearer {n}"}, "cookies": {"sessionid": f"made-up-{n}" * 3}},
        )
        for n in range(4)
    ]
    assert [200, 200, 200, 429] == found
