"""Redis refused, hung or talking nonsense: every door follows the rule's failure policy, and no request is a 500."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from rest_framework.response import Response
from rest_framework.views import APIView

from ratelimit_app import aacquire, acquire, check, local_cache, offences, peek, refund, snapshot_cache
from ratelimit_app.conf import conf
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.decorators import ratelimit
from ratelimit_app.signals import store_degraded, store_recovered
from ratelimit_app.store import health

if TYPE_CHECKING:
    from collections.abc import Iterator

BUDGET = 0.1
SLACK = 1.5  # for a loaded machine; what each test would take without the budget is longer


@ratelimit(key="ip", rate="3/m")
def by_setting(request: HttpRequest) -> HttpResponse:
    """Answer; the policy is the setting's."""
    return HttpResponse("passed")


@ratelimit(key="ip", rate="3/m", on_failure="closed")
def closed(request: HttpRequest) -> HttpResponse:
    """Answer, never unlimited."""
    return HttpResponse("passed")


@ratelimit(key="ip", rate="3/m", on_failure="local")
def local(request: HttpRequest) -> HttpResponse:
    """Answer, limited by this process alone."""
    return HttpResponse("passed")


@ratelimit(key="ip", rate="3/m", on_failure="local")
async def alocal(request: HttpRequest) -> HttpResponse:
    """Answer, limited by this process alone, async."""
    return HttpResponse("passed")


@ratelimit(key="ip", rate="3/m", on_failure="closed")
async def aclosed(request: HttpRequest) -> HttpResponse:
    """Answer, never unlimited, async."""
    return HttpResponse("passed")


class Api(APIView):
    """A view whose throttle decides."""

    throttle_scope = "api"

    def get(self, request: Any) -> Response:
        """Answer."""
        return Response({"passed": True})


class LocalApi(Api):
    """A view whose throttle decides, by this process alone."""

    throttle_scope = "local-api"


def plain(request: HttpRequest) -> HttpResponse:
    """Answer; only the middleware limits."""
    return HttpResponse("passed")


urlpatterns = [
    path("by-setting/", by_setting),
    path("closed/", closed),
    path("aclosed/", aclosed),
    path("api/", Api.as_view()),
    path("plain/", plain),
    path("local/", local),
    path("alocal/", alocal),
    path("local-plain/", plain),
    path("local-api/", LocalApi.as_view()),
]
pytestmark = pytest.mark.urls(__name__)


class Server:
    """A server on loopback that speaks as it is told."""

    def __init__(self, answer: bytes, *, hang: bool) -> None:
        self.answer, self.hang = answer, hang
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.accepted: list[socket.socket] = []
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            self.accepted.append(peer)
            if not self.hang:
                threading.Thread(target=self._talk, args=(peer,), daemon=True).start()

    def _talk(self, peer: socket.socket) -> None:
        try:
            while peer.recv(65_536):
                peer.sendall(self.answer)
        except OSError:
            return

    def close(self) -> None:
        """Stop, and leave no socket to the garbage collector."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.listener.close()
        for peer in self.accepted:
            peer.close()


@pytest.fixture
def point_at(settings: Any) -> Any:
    """Let the cache alias lead to a port."""

    def point(port: int, **options: Any) -> None:
        location = f"redis://127.0.0.1:{port}/0"
        alias = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}
        settings.CACHES = {**settings.CACHES, "broken": alias}
        settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "STORE_TIMEOUT": BUDGET, "CACHE": "broken"}

    return point


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture(params=["refused", "hung", "nonsense"])
def broken(request: pytest.FixtureRequest, point_at: Any, rules: Any) -> Iterator[str]:
    """Three ways in which Redis is away, and the rules that a process still knows."""
    server = None
    if request.param == "refused":
        point_at(_free_port())
    else:
        server = Server(b"+NONSENSE\r\n$-7\r\n", hang=request.param == "hung")
        point_at(server.port)
    rules(
        {"rate": "3/m", "name": "open", "scope": "o", "on_failure": "open"},
        {"rate": "3/m", "name": "closed", "scope": "c", "on_failure": "closed"},
        {"rate": "3/m", "name": "api", "scope": "api", "on_failure": "closed"},
        {"rate": "3/m", "name": "plain", "route": "/plain/", "on_failure": "closed"},
        {"rate": "3/m", "name": "local", "scope": "l", "on_failure": "local"},
        {"rate": "3/m", "name": "local-api", "scope": "local-api", "on_failure": "local"},
        {"rate": "3/m", "name": "local-plain", "route": "/local-plain/", "on_failure": "local"},
        {"rate": "2/m", "name": "shut", "scope": "mixed", "on_failure": "closed", "mode": "shadow"},
    )
    yield str(request.param)
    if server:
        server.close()


@pytest.mark.parametrize("url", ["/closed/", "/aclosed/", "/api/", "/plain/"])
async def test_closed_rule_answers_503(broken: str, url: str) -> None:
    """C118, C122: every door answers 503 with Retry-After, in refusal, timeout and nonsense alike."""
    answer = await AsyncClient().get(url)
    assert (503, "1", "no-store") == (answer.status_code, answer["Retry-After"], answer["Cache-Control"])


@pytest.mark.parametrize("url", ["/closed/", "/aclosed/", "/api/", "/plain/"])
def test_closed_rule_answers_503_under_wsgi(broken: str, url: str) -> None:
    """C118: the same under WSGI."""
    assert Client().get(url).status_code == 503


@pytest.mark.parametrize("ignore", [True, False])
@pytest.mark.parametrize(("policy", "status"), [("open", 200), ("closed", 503)])
def test_setting_decides_whatever_django_redis_ignores(
    point_at: Any, rules: Any, settings: Any, ignore: bool, policy: str, status: int
) -> None:
    """C118: the 2x2 matrix of ON_FAILURE and IGNORE_EXCEPTIONS."""
    point_at(_free_port(), IGNORE_EXCEPTIONS=ignore)
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "ON_FAILURE": policy}
    rules()
    assert Client().get("/by-setting/").status_code == status


def test_rules_of_one_outage_follow_their_own_policies(broken: str) -> None:
    """C122: in the same outage an open rule passes, degraded, and a closed one does not."""
    opened = check(RequestFactory().get("/"), scope="o")
    shut = check(RequestFactory().get("/"), scope="c")
    assert (True, True, "store_unavailable") == (opened.allowed, opened.degraded, opened.reason)
    assert (False, "unavailable", 1.0) == (shut.allowed, shut.verdict, shut.retry_after)


def test_functions_never_raise(broken: str) -> None:
    """C121: acquire, peek and refund answer within the budget, whatever Redis does."""
    started = time.monotonic()
    decision = acquire("user:1", "3/m", group="g")
    assert time.monotonic() - started < BUDGET + SLACK
    assert (True, True) == (decision.allowed, decision.degraded)
    assert peek("user:1", "3/m", group="g").degraded
    assert refund(decision) == 0


async def test_async_functions_never_raise(broken: str) -> None:
    """C121: the async twins likewise."""
    started = time.monotonic()
    decision = await aacquire("user:1", "3/m", group="g")
    assert time.monotonic() - started < BUDGET + SLACK
    assert (True, True) == (decision.allowed, decision.degraded)


def test_many_rules_cost_one_timeout(broken: str, rules: Any) -> None:
    """C121: one deadline for all Redis work of one decision, not one for each rule."""
    rules(*({"rate": "3/m", "name": f"r{n}"} for n in range(40)))
    started = time.monotonic()
    assert Client().get("/plain/").status_code == 200
    assert time.monotonic() - started < BUDGET + SLACK


def test_admin_stays_reachable_while_closed(broken: str, settings: Any, db: Any) -> None:
    """The admin site is spared by ON_FAILURE='closed'."""
    settings.ROOT_URLCONF = "tests.urls"
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "ON_FAILURE": "closed"}
    assert Client().get("/plain/").status_code == 503
    assert Client().get("/admin/login/").status_code == 200


@pytest.mark.parametrize(("policy", "status"), [("open", 200), ("closed", 503)])
def test_process_without_a_snapshot_follows_the_setting(
    point_at: Any, settings: Any, policy: str, status: int, db: Any
) -> None:
    """A process that has never heard from Redis decides by ON_FAILURE; the admin site stays reachable."""
    point_at(_free_port())
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "ON_FAILURE": policy}
    snapshot_cache.forget()
    assert Client().get("/plain/").status_code == status
    settings.ROOT_URLCONF = "tests.urls"
    assert Client().get("/admin/login/").status_code == 200


def test_decisions_come_from_redis_again_after_an_outage(point_at: Any, rules: Any, settings: Any) -> None:
    """C127: recovery needs no restart, and both transitions are told by signal."""
    told: list[str] = []

    def degraded(**_: Any) -> None:
        told.append("degraded")

    def recovered(**_: Any) -> None:
        told.append("recovered")

    store_degraded.connect(degraded)
    store_recovered.connect(recovered)
    rules({"rate": "3/m", "name": "plain", "on_failure": "closed"})
    point_at(_free_port())
    assert [503, 503] == [Client().get("/plain/").status_code for _ in range(2)]
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "CACHE": "default", "STORE_TIMEOUT": 2.0}
    assert [200, 200] == [Client().get("/plain/").status_code for _ in range(2)]
    assert told == ["degraded", "recovered"]


def test_outage_is_logged_once(point_at: Any, rules: Any, caplog: Any) -> None:
    """C120: one line for an outage, not one for each request."""
    rules({"rate": "3/m", "name": "plain"})
    point_at(_free_port())
    for _ in range(20):
        Client().get("/plain/")
    lines = [record for record in caplog.records if "store_degraded" in record.getMessage()]
    assert len(lines) == 1


def test_many_doors_cost_one_timeout(broken: str) -> None:
    """C121: the middleware's passes, a decorator and a function share one budget for a request."""
    started = time.monotonic()
    Client().get("/by-setting/")
    assert time.monotonic() - started < BUDGET + SLACK
    request = RequestFactory().get("/")
    started = time.monotonic()
    for scope in ("o", "c", "api") * 12:
        check(request, scope=scope)
    assert time.monotonic() - started < BUDGET + SLACK


LOCAL = ["/local/", "/alocal/", "/local-api/", "/local-plain/"]


@pytest.mark.parametrize("url", LOCAL)
async def test_local_rule_grants_its_limit(broken: str, url: str) -> None:
    """Every door lets the limit pass and answers 429 with the wait, in refusal, timeout and nonsense alike (C130)."""
    client = AsyncClient()
    answers = [await client.get(url) for _ in range(5)]
    assert [200, 200, 200, 429, 429] == [answer.status_code for answer in answers]
    assert 1 <= int(answers[-1]["Retry-After"]) <= 60
    assert "3" == answers[0]["X-RateLimit-Limit"]
    assert ["2", "1", "0"] == [answer["X-RateLimit-Remaining"] for answer in answers[:3]]


@pytest.mark.parametrize("url", LOCAL)
def test_local_rule_grants_its_limit_under_wsgi(broken: str, url: str) -> None:
    """The same under WSGI."""
    assert [200, 200, 200, 429] == [Client().get(url).status_code for _ in range(4)]


def test_local_share_is_what_a_process_grants(broken: str, settings: Any) -> None:
    """LOCAL_SHARE: a third of three is one; each client has its own."""
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "LOCAL_SHARE": 0.34}
    statuses = [Client(REMOTE_ADDR=f"203.0.113.{n % 2}").get("/local/").status_code for n in range(4)]
    assert [200, 200, 429, 429] == statuses


def test_local_by_setting_is_for_rules_that_do_not_say(broken: str, settings: Any) -> None:
    """ON_FAILURE = 'local': limits in code too, by every function, charging one request once."""
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "ON_FAILURE": "local"}
    assert [200, 200, 200, 429] == [Client().get("/by-setting/").status_code for _ in range(4)]
    decisions = [acquire("user:1", "2/m", group="g") for _ in range(3)]
    assert [(True, True), (True, True), (False, True)] == [(one.allowed, one.degraded) for one in decisions]
    assert "limited" == decisions[-1].verdict
    assert 0 == refund(decisions[0])
    assert not peek("user:1", "2/m", group="g").allowed
    request = RequestFactory().get("/")
    assert [True] * 4 == [check(request, scope="l").allowed for _ in range(4)]
    assert 2 == check(request, scope="l").remaining


async def test_local_async_functions_share_what_a_process_grants(broken: str, settings: Any) -> None:
    """Threads and loops of a process count together."""
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "ON_FAILURE": "local"}
    assert (await aacquire("user:1", "2/m", group="g")).allowed
    assert (await sync_to_async(acquire)("user:1", "2/m", group="g")).allowed
    decision = await aacquire("user:1", "2/m", group="g")
    assert (False, True) == (decision.allowed, decision.degraded)


def test_policies_of_one_request_are_each_followed(broken: str) -> None:
    """A closed rule beats a local one, which charges nothing then; an open one is no hindrance."""
    request = RequestFactory().get("/plain/")
    shut = check(request)
    assert "unavailable" == shut.verdict
    for _ in range(3):
        assert check(RequestFactory().get("/"), scope="l").allowed
    denied = check(RequestFactory().get("/"), scope="l")
    assert ("limited", True, "local") == (denied.verdict, denied.degraded, denied.rule)
    assert all(result.degraded for result in denied.results)


def test_local_denials_are_offences(broken: str) -> None:
    """Who is turned away by a process alone is turned away all the same."""
    offences.discard()
    for _ in range(5):
        check(RequestFactory().get("/"), scope="l")
    assert 2 == sum(count for (_, label, _), count in offences._buffer._take().items() if label == "local")


def test_known_bans_act_while_redis_is_away(point_at: Any, rules: Any, settings: Any, valkey: Any) -> None:
    """Who was turned away before the outage is turned away in it, whatever the policy."""
    rules({"rate": "9/m", "name": "plain"}, marked_kinds=frozenset({"ip"}))
    valkey.set(conf.keys.mark("ip:127.0.0.1"), "0")
    assert Client().get("/plain/").status_code == 403
    port = _free_port()
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": f"redis://127.0.0.1:{port}/0"}}
    assert Client().get("/plain/").status_code in (200, 403)


def test_a_server_that_hangs_costs_one_request_its_budget(point_at: Any, rules: Any) -> None:
    """C121: the breaker opens at the first timeout; a thousand more decisions ask nothing."""
    server = Server(b"", hang=True)
    point_at(server.port)
    rules({"rate": "3/m", "name": "open"})
    assert acquire("user:1", "3/m", group="g").degraded
    before = len(server.accepted)
    started = time.monotonic()
    assert all(acquire(f"user:{n}", "3/m", group="g").degraded for n in range(1_000))
    assert time.monotonic() - started < 100 * BUDGET
    assert len(server.accepted) - before <= 3
    server.close()


def test_a_probe_finds_redis_again(point_at: Any, rules: Any, settings: Any, valkey: Any) -> None:
    """C127: when the cool-down is over one request asks, and all others follow; no restart, no signal from outside."""
    rules({"rate": "3/m", "name": "open"})
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "BREAKER_COOLDOWN": 0.05}
    breaker = health.breaker(conf.cache)
    now = time.monotonic()
    breaker.failed(now, now, timed_out=True)
    assert acquire("user:1", "3/m", group="g").degraded
    until = time.monotonic() + 10
    while acquire("user:1", "3/m", group="g").degraded:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert not breaker.is_open


def test_an_outage_that_comes_and_goes_is_told_once(rules: Any, caplog: Any, settings: Any) -> None:
    """A server that reads and cannot write fails one call and answers the next: no line for each of them."""
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "BREAKER_COOLDOWN": 60, "BREAKER_THRESHOLD": 1_000}
    rules({"rate": "3/m", "name": "open"})
    for _ in range(5):
        health.health.failed(StoreUnavailable("READONLY"))
        assert not acquire("user:1", "300/m", group="g").degraded
    assert 1 == caplog.text.count("store_degraded")
    assert 0 == caplog.text.count("store_recovered")


def test_what_was_granted_alone_is_forgotten_when_redis_is_back(rules: Any, settings: Any) -> None:
    """The next outage begins with nothing: Redis has counted meanwhile."""
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "ON_FAILURE": "local", "BREAKER_COOLDOWN": 0.05}
    rules({"rate": "3/m", "name": "open"})
    breaker, now = health.breaker(conf.cache), time.monotonic()
    breaker.failed(now, now, timed_out=True)
    assert acquire("user:1", "3/m", group="g").degraded
    assert 1 == len(local_cache.local().outage)
    until = time.monotonic() + 10
    while len(local_cache.local().outage):
        acquire("user:1", "300/m", group="h")
        assert time.monotonic() < until
        time.sleep(0.01)
