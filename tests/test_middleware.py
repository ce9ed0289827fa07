"""The middleware, sync and async, over Django's test clients and a real Valkey."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path

from ratelimit_app import acheck, check, local_cache, snapshot_cache
from ratelimit_app.middleware import RateLimitMiddleware
from ratelimit_app.signals import request_denied


@pytest.fixture(params=["sync", "async"])
def get(request: pytest.FixtureRequest) -> Any:
    """Send a request in either colour: await get(path, **headers)."""

    async def sync_get(path: str, method: str = "get", **extra: Any) -> Any:
        from asgiref.sync import sync_to_async

        return await sync_to_async(getattr(Client(), method))(path, headers=extra)

    async def async_get(path: str, method: str = "get", **extra: Any) -> Any:
        return await getattr(AsyncClient(), method)(path, headers=extra)

    return sync_get if request.param == "sync" else async_get


async def test_rule_denies_the_fourth_of_three(get: Any, rules: Any) -> None:
    """C35, C69, C71: 2, 1, 0, then 429 with a whole Retry-After, in both colours, without any wiring."""
    rules({"rate": "3/m", "name": "page"})
    answers = [await get("/plain/") for _ in range(5)]
    assert [200, 200, 200, 429, 429] == [answer.status_code for answer in answers]
    assert ["2", "1", "0", "0", "0"] == [answer["X-RateLimit-Remaining"] for answer in answers]
    assert re.fullmatch(r"[1-9]\d*", answers[3]["Retry-After"])
    assert int(answers[3]["Retry-After"]) <= 60
    assert answers[3]["Cache-Control"] == "no-store"
    assert answers[0]["RateLimit-Policy"] == '"page";q=3;w=60'
    assert answers[0]["RateLimit"] == '"page";r=2;t=60'
    assert "Retry-After" not in answers[0]


async def test_async_view_is_limited(get: Any, rules: Any) -> None:
    """C76, C78: an async view behind the middleware is limited like any other."""
    rules({"rate": "1/m"})
    assert [200, 429] == [(await get("/aplain/")).status_code for _ in range(2)]


async def test_denied_by_one_rule_charges_none(get: Any, rules: Any, valkey: Any) -> None:
    """C46, C21: only allowed requests are charged, each once, to each rule."""
    rules({"rate": "2/m", "name": "a"}, {"rate": "30/h", "name": "b"})
    for _ in range(6):
        await get("/plain/")
    assert valkey.zcard("rl:1:{ip:127.0.0.1}:a") == 2
    assert valkey.zcard("rl:1:{ip:127.0.0.1}:b") == 2


async def test_one_request_is_one_command(get: Any, rules: Any, valkey: Any) -> None:
    """Three rules on a request are one EVALSHA, counted by the server."""
    rules({"rate": "9/m", "name": "a"}, {"rate": "30/h", "name": "b"}, {"rate": "5/s", "key": "device"})
    await get("/plain/", **{"X-Device-Id": "d1"})
    before = _calls(valkey)
    await get("/plain/", **{"X-Device-Id": "d1"})
    after = _calls(valkey)
    assert {"evalsha": 1} == {
        name: after[name] - before.get(name, 0)
        for name in ("evalsha", "eval")
        if after.get(name, 0) > before.get(name, 0)
    }


def _calls(valkey: Any) -> dict[str, int]:
    stats = valkey.info("commandstats")
    return {name.removeprefix("cmdstat_"): int(row["calls"]) for name, row in stats.items()}


@pytest.mark.django_db(databases=["default", "other"])
def test_request_path_costs_no_query(rules: Any, django_assert_num_queries: Any) -> None:
    """The decision never reads the database, allowed or denied."""
    rules({"rate": "1/m"})
    client = Client()
    with django_assert_num_queries(0):
        assert [200, 429] == [client.get("/plain/").status_code for _ in range(2)]


def test_shadow_rule_never_denies(rules: Any) -> None:
    """A shadow rule is counted and reported, and denies nobody; the headers do not speak of it."""
    rules({"rate": "1/m", "mode": "shadow"})
    answers = [Client().get("/plain/") for _ in range(3)]
    assert [200] * 3 == [answer.status_code for answer in answers]
    assert not answers[2].has_header("RateLimit")


def test_zero_limit_denies_at_once_without_retry_after(rules: Any) -> None:
    """C47: a limit of nothing denies the first request, and waiting never helps."""
    rules({"rate": "0/s"})
    answer = Client().get("/plain/")
    assert answer.status_code == 429
    assert not answer.has_header("Retry-After")


def test_options_is_neither_charged_nor_denied(rules: Any) -> None:
    """C72: a preflight passes; a rule that lists OPTIONS limits it."""
    rules({"rate": "3/m"})
    client = Client()
    for _ in range(3):
        assert client.options("/plain/").status_code == 200
        assert client.post("/plain/").status_code == 200
    assert client.post("/plain/").status_code == 429
    assert client.options("/plain/").status_code == 200
    rules({"rate": "1/m", "name": "o", "methods": "OPTIONS"})
    assert [200, 429] == [client.options("/plain/").status_code for _ in range(2)]


@pytest.mark.parametrize("method", ["post", "POST", " Post "])
def test_methods_are_compared_without_case(rules: Any, method: str) -> None:
    """C137: a rule for `post` limits POST and leaves GET alone."""
    rules({"rate": "1/m", "methods": method})
    client = Client()
    assert [200, 429] == [client.post("/plain/").status_code for _ in range(2)]
    assert client.get("/plain/").status_code == 200


def test_get_rule_includes_head(rules: Any) -> None:
    """HEAD is no way round a rule for GET."""
    rules({"rate": "1/m", "methods": "GET"})
    assert [200, 429] == [Client().get("/plain/").status_code, Client().head("/plain/").status_code]


def test_view_name_covers_all_spellings(rules: Any) -> None:
    """C23, C144, C145, C147: what the router resolves is limited, however it is spelled."""
    rules({"rate": "4/m", "route": "login"})
    client = Client()
    paths = ["/login", "/login/", "/login/?x=1", "/%6Cogin"]
    assert [200] * 4 == [client.get(path).status_code for path in paths]
    assert client.get("/login").status_code == 429
    assert client.get("/plain/").status_code == 200


def test_path_parameters_do_not_multiply_the_limit(rules: Any) -> None:
    """C23: one route is one log, whatever its parameters."""
    rules({"rate": "3/m", "route": "coupons:one"})
    assert [200] * 3 + [429] == [Client().get(f"/coupons/{n}/").status_code for n in range(4)]


def test_prefix_and_blank_routes_match_what_leads_nowhere(rules: Any) -> None:
    """A scan of paths that do not exist is limited too."""
    rules({"rate": "1/m", "route": "/nowhere"}, {"rate": "3/m", "name": "all"})
    assert [404, 429] == [Client().get(path).status_code for path in ("/nowhere/1", "/nowhere/2")]
    assert [404, 404, 429] == [Client().get(f"/elsewhere/{n}").status_code for n in range(3)]


@pytest.mark.django_db
def test_admin_is_exempt_unless_named(rules: Any) -> None:
    """The admin site meets only the rules that name it."""
    rules({"rate": "1/m", "name": "all"}, {"rate": "1/m", "name": "root", "route": "/"})
    assert [200] * 3 == [Client().get("/admin/login/").status_code for _ in range(3)]
    rules({"rate": "1/m", "name": "admin", "route": "/admin/"})
    assert [200, 429] == [Client().get("/admin/login/").status_code for _ in range(2)]


def test_public_response_carries_no_numbers_and_denial_is_not_stored(rules: Any) -> None:
    """C74: a shared cache keeps nobody's numbers, and no denial."""
    rules({"rate": "1/m"})
    answers = [Client().get("/public/") for _ in range(2)]
    assert not answers[0].has_header("RateLimit")
    assert not answers[0].has_header("X-RateLimit-Limit")
    assert (429, "no-store") == (answers[1].status_code, answers[1]["Cache-Control"])


def test_body_follows_what_the_client_accepts(rules: Any) -> None:
    """Problem details for programs, a page for browsers."""
    rules({"rate": "0/s"})
    browser = Client().get("/plain/", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    program = Client().get("/plain/", headers={"accept": "application/json"})
    assert browser["Content-Type"].startswith("text/html")
    assert program["Content-Type"] == "application/problem+json"
    assert program.json()["status"] == 429


def test_blacklisted_address_is_forbidden(rules: Any, valkey: Any) -> None:
    """A mark of Redis turns an address away with 403; the ban's end is its Retry-After."""
    rules({"rate": "9/m"})
    end = snapshot_cache.now_us() + 90_000_000
    valkey.set("rl:1:{ip:127.0.0.1}!mark", end)
    answer = Client().get("/plain/")
    assert answer.status_code == 403
    assert 85 <= int(answer["Retry-After"]) <= 91
    assert answer["Cache-Control"] == "no-store"
    valkey.set("rl:1:{ip:127.0.0.1}!mark", 0)
    local_cache.forget(["ip:127.0.0.1"])  # as the publisher tells every process
    answer = Client().get("/plain/")
    assert (403, False) == (answer.status_code, answer.has_header("Retry-After"))


def test_mark_ends_by_its_own_time(rules: Any, valkey: Any, travel: Any) -> None:
    """C112: a ban is over at its end, though its key lingers."""
    rules({"rate": "9/m"})
    valkey.set("rl:1:{ip:127.0.0.1}!mark", snapshot_cache.now_us() + 20_000_000)
    assert Client().get("/plain/").status_code == 403
    travel(20.1)
    assert Client().get("/plain/").status_code == 200


def test_blacklisted_network_is_forbidden_without_redis(rules: Any, valkey: Any) -> None:
    """Networks are matched in the process."""
    snapshot = rules({"rate": "9/m"})
    snapshot.networks.set("127.0.0.0/30", 0)
    before = _calls(valkey).get("evalsha", 0)
    assert Client().get("/plain/").status_code == 403
    assert _calls(valkey).get("evalsha", 0) == before


def test_mapped_address_meets_the_mark_of_its_ipv4(rules: Any, valkey: Any) -> None:
    """C13, C15: a dual-stack peer is the IPv4 client that it is."""
    rules({"rate": "9/m"})
    valkey.set("rl:1:{ip:192.0.2.1}!mark", 0)
    assert Client(REMOTE_ADDR="::ffff:192.0.2.1").get("/plain/").status_code == 403
    assert Client(REMOTE_ADDR="::ffff:203.0.113.9").get("/plain/").status_code == 200


def test_ipv6_network_shares_one_limit_and_one_mark(rules: Any, valkey: Any) -> None:
    """C12: a /64 is one client; a mark of the /64 and one of the full address both act."""
    rules({"rate": "3/m"})
    addresses = [f"2001:db8:aa:1::{n}" for n in range(1, 5)]
    assert [200] * 3 + [429] == [Client(REMOTE_ADDR=a).get("/plain/").status_code for a in addresses]
    assert Client(REMOTE_ADDR="2001:db8:aa:2::1").get("/plain/").status_code == 200
    valkey.set("rl:1:{ip:2001:db8:aa:2::1}!mark", 0)
    assert Client(REMOTE_ADDR="2001:db8:aa:2::1").get("/plain/").status_code == 403
    assert Client(REMOTE_ADDR="2001:db8:aa:2::2").get("/plain/").status_code == 200
    valkey.set("rl:1:{ip:2001:db8:aa:2::/64}!mark", 0)
    assert Client(REMOTE_ADDR="2001:db8:aa:2::2").get("/plain/").status_code == 403


def test_allowlist_beats_blacklist_and_rules(rules: Any, valkey: Any) -> None:
    """C102: who is on both lists passes, and is not even counted."""
    from ratelimit_app.core.access_lists import NetworkTable

    allowed = NetworkTable()
    allowed.set("127.0.0.0/8", 0)
    rules({"rate": "0/s"}, allowed_networks=allowed)
    valkey.set("rl:1:{ip:127.0.0.1}!mark", 0)
    assert Client().get("/plain/").status_code == 200


@pytest.fixture
def user(db: Any) -> User:
    """A user who can sign in."""
    return User.objects.create_user("ann")


def _signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_user_rule_counts_the_user_on_every_address(rules: Any, user: User) -> None:
    """C93: a rule keyed by the user acts on a Django view, whatever address the user comes from."""
    rules({"rate": "3/m", "key": "user"})
    client = _signed_in(user)
    answers = [client.get("/plain/", REMOTE_ADDR=f"203.0.113.{n}").status_code for n in range(4)]
    assert [200] * 3 + [429] == answers


def test_user_and_address_have_no_common_log(rules: Any, db: Any, valkey: Any) -> None:
    """C19: a user whose key looks like an address shares nothing with that address."""
    rules({"rate": "1/m", "key": "user_or_ip"})
    client = _signed_in(User.objects.create_user("bob", pk=2130706433))
    assert [200, 429] == [client.get("/plain/").status_code for _ in range(2)]
    assert Client().get("/plain/").status_code == 200
    assert set(valkey.keys("rl:1:{*}:rule-0")) == {
        b"rl:1:{user:2130706433}:rule-0",
        b"rl:1:{ip:127.0.0.1}:rule-0",
    }


def test_ip_rules_come_before_the_user_is_asked(
    rules: Any, user: User, django_assert_num_queries: Any
) -> None:
    """An address that is limited or banned costs no session."""
    rules({"rate": "1/m"}, {"rate": "9/m", "key": "user"})
    client = _signed_in(user)
    assert client.get("/plain/").status_code == 200
    with django_assert_num_queries(0):
        assert client.get("/plain/").status_code == 429


def test_user_on_the_allowlist_passes_a_limited_address(rules: Any, user: User) -> None:
    """The allowlist beats the rules, even those that come before the user is known."""
    rules({"rate": "0/s"}, allowed_users={f"user:{user.pk}": 0})
    assert _signed_in(user).get("/plain/").status_code == 200
    assert Client().get("/plain/").status_code == 429


def test_marked_user_is_forbidden(rules: Any, user: User, valkey: Any) -> None:
    """A ban of a user acts on a Django view."""
    rules({"rate": "9/m"})
    valkey.set(f"rl:1:{{user:{user.pk}}}!mark", 0)
    assert _signed_in(user).get("/plain/").status_code == 403
    assert Client().get("/plain/").status_code == 200


def test_disabled_app_calls_nobody(rules: Any, settings: Any, valkey: Any) -> None:
    """Off: every request passes, and Redis is not asked."""
    rules({"rate": "0/s"})
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "ENABLED": False}
    before = _calls(valkey).get("evalsha", 0)
    assert Client().get("/plain/").status_code == 200
    assert _calls(valkey).get("evalsha", 0) == before


def test_denial_sends_one_signal(rules: Any) -> None:
    """A receiver gets the request and the decision."""
    seen: list[Any] = []

    def receiver(sender: Any, request: HttpRequest, decision: Any, **_: Any) -> None:
        seen.append((sender, request.path, decision.rule))

    request_denied.connect(receiver)
    try:
        rules({"rate": "1/m", "name": "page"})
        for _ in range(2):
            Client().get("/plain/")
    finally:
        request_denied.disconnect(receiver)
    assert [(RateLimitMiddleware, "/plain/", "page")] == seen


def test_receiver_that_fails_does_not_break_the_answer(rules: Any, caplog: Any) -> None:
    """A request never becomes a 500 because of a receiver."""

    def receiver(**_: Any) -> None:
        msg = "a receiver's own fault"
        raise RuntimeError(msg)

    request_denied.connect(receiver)
    try:
        rules({"rate": "0/s"})
        assert Client().get("/plain/").status_code == 429
    finally:
        request_denied.disconnect(receiver)


@pytest.mark.parametrize(
    "header", [b"\x00\xff", b"a b", b"{x}", b"\xed\xa0\x80", b"~" + b"0" * 32, b"x" * 10_000]
)
def test_any_bytes_get_an_answer(rules: Any, valkey: Any, header: bytes) -> None:
    """C25: three pass, the fourth is limited, and no key is longer than 200 bytes."""
    rules({"rate": "3/m", "key": "device"}, {"rate": "9/m", "name": "b", "key": "header:x-token+ip"})
    extra: dict[str, Any] = {
        "HTTP_X_DEVICE_ID": header.decode("latin-1"),
        "HTTP_X_TOKEN": header.decode("latin-1"),
    }
    factory, middleware = RequestFactory(), RateLimitMiddleware(lambda request: HttpResponse("passed"))
    answers = []
    for _ in range(4):
        request = factory.get("/plain/", **extra)
        request.user = AnonymousUser()
        answers.append(middleware(request).status_code)  # type: ignore[union-attr]
    assert [200] * 3 + [429] == answers
    assert all(len(key) < 200 for key in valkey.keys("*"))


def test_check_after_the_doors_tells_what_they_found(rules: Any, valkey: Any) -> None:
    """A view that asks again is charged nothing and sees the results; a greater cost tops the charge up."""
    rules({"rate": "9/m", "name": "page"})
    seen: list[Any] = []

    def view(request: HttpRequest) -> HttpResponse:
        seen.extend([check(request), check(request, cost=3), check(request, cost=3)])
        return HttpResponse("passed")

    response = RateLimitMiddleware(view)(RequestFactory().get("/plain/"))
    assert [8, 6, 6] == [decision.remaining for decision in seen]
    assert ["page"] * 3 == [decision.results[0].rule for decision in seen]
    assert valkey.zcard("rl:1:{ip:127.0.0.1}:page") == 3
    assert response["X-RateLimit-Remaining"] == "6"  # type: ignore[index]


LARGE: dict[str, Any] = {
    "content_type": "application/json",
    "data": b'{"email": "a@example.org", "x": "' + b"x" * (1024 * 1024) + b'"}',
}


@pytest.mark.parametrize("client", [Client(), AsyncClient()], ids=["sync", "async"])
async def test_body_too_large_to_read_is_413(rules: Any, valkey: Any, client: Any) -> None:
    """Who hides the field behind a large body is turned away, and nothing is charged; a shadow rule lets it pass."""
    from asgiref.sync import iscoroutinefunction, sync_to_async

    post = client.post if iscoroutinefunction(client.post) else sync_to_async(client.post)
    rules({"rate": "9/m", "key": "ip+field:email", "name": "login"}, {"rate": "9/m", "name": "page"})
    answer = await post("/plain/", **LARGE)
    assert (413, "no-store", "application/problem+json") == (
        answer.status_code,
        answer["Cache-Control"],
        answer["Content-Type"],
    )
    assert not valkey.keys("rl:1:{*}:*")
    rules({"rate": "9/m", "key": "ip+field:email", "mode": "shadow"})
    assert (await post("/plain/", **LARGE)).status_code == 200


def test_user_on_the_allowlist_may_send_large_bodies(rules: Any, user: User) -> None:
    """The allowlist beats the rules, even one that cannot be read before the user is known (C102)."""
    rules({"rate": "9/m", "key": "ip+field:email"}, allowed_users={f"user:{user.pk}": 0})
    assert _signed_in(user).post("/plain/", **LARGE).status_code == 200
    assert Client().post("/plain/", **LARGE).status_code == 413


def ask_scope(request: HttpRequest) -> HttpResponse:
    """Ask from within the view."""
    return HttpResponse(check(request, scope="login").verdict)


async def aask_scope(request: HttpRequest) -> HttpResponse:
    """Ask from within an async view."""
    return HttpResponse((await acheck(request, scope="login")).verdict)


urlpatterns = [path("ask/", ask_scope), path("aask/", aask_scope)]


@pytest.mark.urls(__name__)
@pytest.mark.parametrize(("kind", "url"), [(Client, "/ask/"), (AsyncClient, "/aask/")])
@pytest.mark.parametrize(("installed", "status"), [(True, 413), (False, 400)])
async def test_check_of_a_body_too_large_raises(
    rules: Any, settings: Any, kind: Any, url: str, installed: bool, status: int
) -> None:
    """The middleware answers it with 413; by itself it is Django's RequestDataTooBig, which is a 400."""
    from asgiref.sync import iscoroutinefunction, sync_to_async

    rules({"rate": "9/m", "key": "field:email", "scope": "login"})
    if not installed:
        settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if "ratelimit_app" not in name]
    client = kind()
    post = client.post if iscoroutinefunction(client.post) else sync_to_async(client.post)
    assert (await post(url, **LARGE)).status_code == status


@pytest.mark.parametrize("path", ["/plain/../elsewhere", "/plain/%2e%2e/elsewhere", "/elsewhere/../plain/x"])
def test_dot_segments_do_not_lead_out_of_a_prefix(rules: Any, path: str) -> None:
    """C145: Django hands them to the view unresolved, so that both readings of them count."""
    rules({"rate": "0/s", "route": "/plain"})
    assert Client().get(path).status_code == 429
