"""RuleThrottle over DRF's own views and a real Valkey."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client

from ratelimit_app import engine, snapshot_cache
from ratelimit_app.core.access_lists import NetworkTable
from ratelimit_app.core.calls import StoreUnavailable
from tests.throttling.api import Ruled, call, codes, evals, get, logs

if TYPE_CHECKING:
    from rest_framework.request import Request

pytestmark = pytest.mark.urls("tests.throttling.api")


def test_rules_of_the_scope_and_without_one_apply(both: None, rules: Any) -> None:
    """C71: with and without the middleware: 429 as problem details, with its headers."""
    rules(
        {"rate": "2/m", "scope": "grab", "name": "grab"},
        {"rate": "9/m", "name": "all"},
        {"rate": "0/s", "scope": "x"},
    )
    answers = get("/ruled/", 3, headers={"accept": "text/html"})
    assert [200, 200, 429] == codes(answers)
    assert ["1", "0", "0"] == [answer["X-RateLimit-Remaining"] for answer in answers]
    assert answers[2]["RateLimit-Policy"] == '"grab";q=2;w=60'
    assert answers[2]["Content-Type"] == "application/problem+json"
    assert answers[2]["Cache-Control"] == "no-store"
    assert answers[2].json()["violated-policies"] == ["grab"]
    assert answers[2].json()["retry_after"] == int(answers[2]["Retry-After"])


def test_rule_is_charged_once_by_middleware_and_throttle(both: None, rules: Any, valkey: Any) -> None:
    """C21: one request adds one entry to each rule that it meets."""
    rules(
        {"rate": "9/m", "name": "all"},
        {"rate": "9/h", "scope": "grab", "name": "grab"},
        {"rate": "9/m", "key": "user", "name": "user"},
    )
    get("/ruled/")
    assert logs(valkey) == {"all": 1, "grab": 1, "user": 1}


def test_user_of_the_token_is_counted(both: None, rules: Any, db: Any) -> None:
    """C93: DRF's user, whom Django does not know, has one limit on all addresses."""
    from rest_framework.authtoken.models import Token

    rules({"rate": "2/m", "key": "user"})
    token = Token.objects.create(user=User.objects.create_user("ann")).key
    headers = {"authorization": f"Token {token}"}
    answers = [Client().get("/ruled/", headers=headers, REMOTE_ADDR=f"203.0.113.{n}") for n in range(3)]
    assert [200, 200, 429] == codes(answers)


def test_guessed_tokens_are_limited(rules: Any, db: Any) -> None:
    """C84: DRF authenticates before it throttles; the middleware stands before both."""
    rules({"rate": "3/m"})
    answers = [Client().get("/ruled/", headers={"authorization": f"Token {n}"}) for n in range(4)]
    assert [401, 401, 401, 429] == codes(answers)


@pytest.mark.parametrize("expires", [0, 90])
def test_marked_client_is_forbidden(bare: None, rules: Any, valkey: Any, expires: int) -> None:
    """A blacklisted address gets 403 until its ban ends; for ever has no Retry-After."""
    rules()
    valkey.set("rl:1:{ip:127.0.0.1}!mark", expires and snapshot_cache.now_us() + expires * 1_000_000)
    for url in ("/ruled/", "/anonymous/"):
        answer = get(url)[0]
        assert (403, "application/problem+json") == (answer.status_code, answer["Content-Type"])
        assert answer["Cache-Control"] == "no-store"
        assert answer.has_header("Retry-After") is bool(expires)


def test_allowlisted_client_passes(bare: None, rules: Any, valkey: Any) -> None:
    """The allowlist beats marks and rates, in code too."""
    allowed = NetworkTable()
    allowed.set("127.0.0.0/8", 0)
    rules({"rate": "0/s"}, allowed_networks=allowed)
    valkey.set("rl:1:{ip:127.0.0.1}!mark", 0)
    assert [200] * 4 == codes(get("/ruled/", 4))
    assert [200] * 4 == codes(get("/anonymous/", 4))


def test_never_passing_request_has_no_retry_after(both: None, rules: Any) -> None:
    """C81: where waiting never helps, there is a 429 without a time."""
    rules({"rate": "0/s", "scope": "grab"})
    answer = get("/ruled/")[0]
    assert (429, False) == (answer.status_code, answer.has_header("Retry-After"))
    assert "retry_after" not in answer.json()


def test_headers_come_back_where_a_handler_drops_them(both: None, rules: Any) -> None:
    """C89: a project's exception handler keeps its body; Retry-After and no-store come back."""
    rules({"rate": "1/m", "scope": "grab"})
    answer = get("/droppingerrors/", 2)[1]
    assert (429, {"error": "throttled"}) == (answer.status_code, answer.json())
    assert 55 <= int(answer["Retry-After"]) <= 60
    assert answer["Cache-Control"] == "no-store"


def test_headers_of_a_ban_come_back_too(bare: None, rules: Any, valkey: Any) -> None:
    """C89: the same for 403."""
    rules()
    valkey.set("rl:1:{ip:127.0.0.1}!mark", snapshot_cache.now_us() + 90_000_000)
    answer = get("/droppingerrors/")[0]
    assert (403, {"error": "blocked"}) == (answer.status_code, answer.json())
    assert 85 <= int(answer["Retry-After"]) <= 91


def test_body_that_a_handler_extends_is_the_projects(bare: None, rules: Any) -> None:
    """C89: what the project's handler has added is kept, in its own format."""
    rules({"rate": "0/s", "scope": "grab"})
    answer = get("/addingerrors/", headers={"accept": "application/json"})[0]
    assert (429, "application/json") == (answer.status_code, answer["Content-Type"])
    assert answer.json()["shop"] == "ours"


def test_shared_caches_keep_no_numbers(both: None, rules: Any) -> None:
    """C74: an answer that says public has no numbers of one client."""
    rules({"rate": "5/m", "scope": "grab"})
    answer = get("/shared/")[0]
    assert not answer.has_header("RateLimit")
    assert not answer.has_header("X-RateLimit-Limit")


def test_cache_decorator_around_the_view_is_seen_by_the_middleware(rules: Any) -> None:
    """C74: the throttle leaves the headers to the middleware, which sees the answer as it goes out."""
    rules({"rate": "5/m", "scope": "grab"})
    answer = get("/cached/")[0]
    assert (200, False) == (answer.status_code, answer.has_header("RateLimit"))


def test_header_of_the_view_stays(both: None, rules: Any) -> None:
    """What the view has set itself is not overwritten."""
    rules({"rate": "5/m", "scope": "grab"})
    answer = get("/ownheader/")[0]
    assert ("mine", "4") == (answer["X-RateLimit-Limit"], answer["X-RateLimit-Remaining"])


@pytest.mark.parametrize("url", ["/ruled/", "/anonymous/"])
def test_store_away_follows_the_policy(both: None, rules: Any, settings: Any, url: str) -> None:
    """Redis gone: open lets pass, closed answers 503 with a time to come back."""
    rules({"rate": "5/m", "scope": "grab"})
    with mock.patch.object(engine, "gateway", side_effect=StoreUnavailable("away")):
        assert [200] == codes(get(url))
        settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "ON_FAILURE": "closed"}
        answer = get(url)[0]
    assert (503, "1") == (answer.status_code, answer["Retry-After"])
    assert answer["Content-Type"] == "application/problem+json"


def test_disabled_app_asks_nobody(both: None, rules: Any, settings: Any, valkey: Any) -> None:
    """Off: every request passes every throttle without Redis."""
    rules({"rate": "0/s"})
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "ENABLED": False}
    before = evals(valkey)
    assert [200] * 5 == codes([*get("/ruled/"), *get("/mixed/", 4)])
    assert evals(valkey) == before


def test_numbers_of_later_doors_win(rules: Any) -> None:
    """The headers describe all doors: the middleware's rule and the throttle's, whichever is nearer its limit."""
    rules({"rate": "9/m", "name": "all"}, {"rate": "3/m", "scope": "grab", "name": "grab"})
    answer = get("/ruled/")[0]
    assert (answer["RateLimit-Policy"], answer["X-RateLimit-Remaining"]) == ('"grab";q=3;w=60', "2")


def test_problem_is_json_whatever_the_renderers(bare: None, rules: Any) -> None:
    """A view that renders HTML alone still denies in problem details."""
    from rest_framework.renderers import StaticHTMLRenderer

    class Page(Ruled):
        renderer_classes = [StaticHTMLRenderer]

        def get(self, request: Request) -> Any:
            return HttpResponse("page")

    rules({"rate": "0/s"})
    response = call(Page)
    assert json.loads(response.render().content)["status"] == 429


@pytest.mark.parametrize("url", ["/ruled/", "/mixed/"])
def test_body_too_large_for_a_field_rule_is_413(both: None, rules: Any, valkey: Any, url: str) -> None:
    """The whole view answers in problem details, whichever throttle is asked first, and nothing is charged."""
    rules({"rate": "9/m", "key": "field:email", "scope": "grab"}, {"rate": "9/m", "key": "field:email"})
    body = b'{"email": "a@example.org", "x": "' + b"x" * (1024 * 1024) + b'"}'
    answer = Client().generic("GET", url, body, "application/json", headers={"accept": "text/html"})
    assert (413, "no-store") == (answer.status_code, answer["Cache-Control"])
    assert answer["Content-Type"] == "application/problem+json"
    assert {"type", "title", "status", "detail"} == set(answer.json())
    assert logs(valkey) == {}
