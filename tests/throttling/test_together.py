"""Several throttles on one view decide together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from rest_framework import throttling as drf
from rest_framework.exceptions import Throttled
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory

from ratelimit_app.signals import request_denied
from ratelimit_app.throttling import AnonRateThrottle, UserRateThrottle
from tests.throttling.api import (
    Answering,
    Burst,
    BurstFirst,
    Mixed,
    Sustained,
    call,
    codes,
    evals,
    get,
    logs,
    request_for,
)

if TYPE_CHECKING:
    from rest_framework.request import Request

pytestmark = pytest.mark.urls("tests.throttling.api")


@pytest.mark.parametrize("url", ["/burstfirst/", "/sustainedfirst/"])
def test_several_throttles_decide_together(
    bare: None, rules: Any, valkey: Any, travel: Any, url: str
) -> None:
    """C46: in either order, one call, and what one denies is charged to none."""
    rules()
    before = evals(valkey)
    assert [200, 200, 429, 429] == codes(get(url, 4))
    assert evals(valkey) - before <= 5  # one for each request, and one EVAL of a script not yet known
    assert sorted(logs(valkey).values()) == [2, 2]
    travel(10.1)
    assert [200, 429] == codes(get(url, 2))


@pytest.mark.parametrize("url", ["/burstfirst/", "/sustainedfirst/"])
def test_longest_wait_is_told(bare: None, rules: Any, travel: Any, url: str) -> None:
    """C83: both over: Retry-After is the longer one."""
    rules()
    get(url)
    travel(11)
    get(url, 2)
    answer = get(url, headers={"accept": "application/json"})[0]
    assert 429 == answer.status_code
    assert 45 <= int(answer["Retry-After"]) <= 49
    assert answer["RateLimit-Policy"].startswith('"sustained"')


def test_each_throttle_answers_for_itself(bare: None, rules: Any) -> None:
    """The one whose rate is over denies; the other one lets pass."""
    rules()
    for _ in range(2):
        call(BurstFirst)
    view, request = BurstFirst(), request_for()
    burst, sustained = view.get_throttles()
    assert (False, True) == (burst.allow_request(request, view), sustained.allow_request(request, view))
    assert sustained.wait() is None
    assert 0 < (burst.wait() or 0) <= 10


def test_rule_throttle_beside_them_is_the_same_call(bare: None, rules: Any, valkey: Any) -> None:
    """The admin's rules and rates in code: one call, all or nothing, each with its own body."""
    rules({"rate": "2/m", "name": "all"})
    get("/mixed/")
    before = evals(valkey)
    get("/mixed/")
    assert evals(valkey) - before == 1
    denied = get("/mixed/")[0]
    assert (429, "application/problem+json") == (denied.status_code, denied["Content-Type"])
    assert sorted(logs(valkey).values()) == [2, 2]
    rules({"rate": "9/m", "name": "all"})
    assert [200] == codes(get("/mixed/"))
    denied = get("/mixed/", headers={"accept": "application/json"})[0]
    assert (429, ["detail"]) == (denied.status_code, list(denied.json()))


def test_throttle_that_the_view_does_not_list_decides_alone(rules: Any, valkey: Any) -> None:
    """A throttle that a view asks by itself, after those it lists, is exact too, and is charged once."""

    class View(Answering):
        throttle_classes = [Sustained]

        def get(self, request: Request) -> Response:
            verdicts = [Burst().allow_request(request, self) for _ in range(2)]
            return Response(verdicts)

    rules()
    assert [[True, True], [True, True], [False, False]] == [call(View).data for _ in range(3)]
    assert sorted(logs(valkey).values()) == [2, 3]


def test_views_that_share_a_request_charge_it_once(rules: Any, valkey: Any) -> None:
    """C21: a view that passes its request on to another one adds one entry to each log."""
    rules({"rate": "9/m", "name": "all"})
    request = APIRequestFactory().get("/")
    assert [200, 200] == [Mixed.as_view()(request).status_code for _ in range(2)]
    assert list(logs(valkey).values()) == [1, 1]


def test_foreign_throttle_beside_them_is_left_alone(bare: None, rules: Any) -> None:
    """A throttle of somebody else is asked by DRF alone, once for each request."""
    asked = []

    class Foreign(drf.BaseThrottle):
        def allow_request(self, request: Any, view: Any) -> bool:
            asked.append(request)
            return True

    class View(Answering):
        throttle_classes = [Foreign, Sustained]

    rules()
    assert [200, 200, 200, 429] == codes([call(View) for _ in range(4)])
    assert len(asked) == 4


def test_nothing_is_let_pass_when_a_sibling_cannot_be_asked(rules: Any, rates: Any) -> None:
    """An error of one throttle is an error, and the next call decides anew."""
    rules()
    rates(anon="0/m")
    faults = [LookupError("the project's own fault")]

    class Broken(UserRateThrottle):
        scope, rate = "broken", "1/m"

        def get_cache_key(self, request: Any, view: Any) -> str | None:
            if faults:
                raise faults.pop()
            return super().get_cache_key(request, view)

    class View(Answering):
        throttle_classes = [AnonRateThrottle, Broken]

    view, request = View(), request_for()
    with pytest.raises(LookupError):
        view.check_throttles(request)
    with pytest.raises(Throttled):
        view.check_throttles(request)


def test_denial_sends_one_signal(bare: None, rules: Any) -> None:
    """A receiver hears of a denial once, with Django's request."""
    seen: list[Any] = []

    def receiver(request: Any, decision: Any, **_: Any) -> None:
        seen.append((request.path, decision.rule))

    rules({"rate": "9/m"})
    request_denied.connect(receiver)
    try:
        get("/mixed/", 4)
    finally:
        request_denied.disconnect(receiver)
    assert [("/mixed/", "sustained")] == seen
