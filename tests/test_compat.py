"""The functions of django-ratelimit over a real Valkey."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from ratelimit_app import engine, offences
from ratelimit_app.compat import get_usage, is_ratelimited
from ratelimit_app.core.access_lists import NetworkTable
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.decorators import ratelimit

BY_IP: dict[str, Any] = {"group": "a", "key": "ip", "rate": "2/m"}


def _request(method: str = "GET", user: Any = None, **extra: Any) -> HttpRequest:
    request = RequestFactory().generic(method, "/", **extra)
    request.user = user or AnonymousUser()
    return request


@pytest.fixture(autouse=True)
def _no_rules(rules: Any) -> None:
    """No admin rules."""
    rules()


def test_incremented_requests_are_limited() -> None:
    """The limit passes, the next one is limited, whether the request object is a new one or not."""
    assert [False, False, True] == [is_ratelimited(_request(), **BY_IP, increment=True) for _ in range(3)]
    request = _request(REMOTE_ADDR="203.0.113.9")
    assert [False, False, True] == [is_ratelimited(request, **BY_IP, increment=True) for _ in range(3)]


def test_looking_counts_nothing_and_tells_of_the_next_request() -> None:
    """Without increment nothing is charged; a full limit says so, before a request is denied."""
    assert not any(is_ratelimited(_request(), **BY_IP) for _ in range(5))
    for _ in range(2):
        assert not is_ratelimited(_request(), **BY_IP, increment=True)
    assert is_ratelimited(_request(), **BY_IP)


def test_looking_works_after_counting_the_same_request() -> None:
    """A view that counts and then looks sees the count."""
    request = _request()
    get_usage(request, **BY_IP, increment=True)
    usage = get_usage(request, **BY_IP)
    assert usage is not None
    assert (1, False) == (usage["count"], usage["should_limit"])


def test_usage_has_the_keys_of_django_ratelimit(travel: Any) -> None:
    """Count, limit, should_limit and whole seconds; denied requests are not counted."""
    usages = [get_usage(_request(), **BY_IP, increment=increment) for increment in (False, True, True, True)]
    assert [0, 1, 2, 2] == [usage and usage["count"] for usage in usages]
    assert [False, False, False, True] == [usage and usage["should_limit"] for usage in usages]
    assert [2] * 4 == [usage and usage["limit"] for usage in usages]
    assert [0, 60, 60, 60] == [usage and usage["time_left"] for usage in usages]
    travel(20.5)  # the process knows the clock of Redis to some milliseconds
    later = get_usage(_request(), **BY_IP)
    assert later == {"count": 2, "limit": 2, "should_limit": True, "time_left": 40}


def test_zero_rate_never_passes() -> None:
    """C47: no time is left to wait for."""
    usage = get_usage(_request(), group="a", key="ip", rate="0/s", increment=True)
    assert usage == {"count": 0, "limit": 0, "should_limit": True, "time_left": -1}


@pytest.mark.parametrize(
    "arguments",
    [
        {"rate": None},
        {"rate": lambda group, request: None},
        {"method": "POST"},
        {"method": is_ratelimited.UNSAFE},
    ],
)
def test_no_limit_for_the_request_is_none(arguments: dict[str, Any]) -> None:
    """No rate, or another method: nothing applies."""
    assert get_usage(_request(), **{**BY_IP, **arguments}, increment=True) is None
    assert not is_ratelimited(_request(), **{**BY_IP, **arguments}, increment=True)


def test_disabled_app_is_none(settings: Any) -> None:
    """RATELIMIT_ENABLE of django-ratelimit is honoured."""
    settings.RATELIMIT_ENABLE = False
    assert get_usage(_request(), group="a", key="ip", rate="0/s") is None


def test_allowlisted_client_is_none(rules: Any) -> None:
    """Who is on the allowlist has no limit."""
    allowed = NetworkTable()
    allowed.set("127.0.0.0/8", 0)
    rules(allowed_networks=allowed)
    assert get_usage(_request(), group="a", key="ip", rate="0/s", increment=True) is None


def test_blacklisted_client_is_limited(valkey: Any) -> None:
    """A ban limits, for ever without a time."""
    valkey.set("rl:1:{ip:127.0.0.1}!mark", 0)
    assert get_usage(_request(), **BY_IP) == {"count": 0, "limit": 0, "should_limit": True, "time_left": -1}


def test_store_away_follows_the_policy(settings: Any) -> None:
    """RATELIMIT_FAIL_OPEN: open has no answer, closed limits."""
    with mock.patch.object(engine, "gateway", side_effect=StoreUnavailable("away")):
        settings.RATELIMIT_FAIL_OPEN = True
        assert get_usage(_request(), **BY_IP, increment=True) is None
        settings.RATELIMIT_FAIL_OPEN = False
        usage = get_usage(_request(), **BY_IP, increment=True)
    assert usage == {"count": 0, "limit": 0, "should_limit": True, "time_left": -1}


def key_of(group: str, request: HttpRequest) -> str:
    """Count by a query parameter."""
    return f"{group}:{request.GET['a']}"


def rate_of(group: str, request: HttpRequest) -> tuple[int, int]:
    """Give a rate as django-ratelimit's callables may."""
    return (1, 60)


@pytest.mark.parametrize("key", ["get:a", "param:a", key_of, f"{__name__}.key_of"])
@pytest.mark.parametrize("rate", ["1/m", rate_of, f"{__name__}.rate_of", (1, 60)])
def test_keys_and_rates_come_as_in_django_ratelimit(key: Any, rate: Any) -> None:
    """C139: sources, callables and their dotted paths."""
    limited = partial(is_ratelimited, group="g", key=key, rate=rate, increment=True)
    queries = ["a=1", "a=1", "a=2"]
    assert [False, True, False] == [limited(_request(QUERY_STRING=query)) for query in queries]


def test_users_are_counted_on_every_address(db: Any) -> None:
    """`user_or_ip`: the user, or without one the address."""
    limited = partial(is_ratelimited, group="g", key="user_or_ip", rate="1/m", increment=True)
    ann = User.objects.create_user("ann")
    assert [False, True] == [limited(_request(user=ann, REMOTE_ADDR=f"203.0.113.{n}")) for n in range(2)]
    assert not limited(_request(REMOTE_ADDR="203.0.113.1"))


def test_group_of_a_function_is_the_views_own() -> None:
    """`fn` names the group as the decorator on that view does: both count together."""

    @ratelimit(key="ip", rate="2/m")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("passed")

    view(_request())
    assert not is_ratelimited(_request(), fn=view, key="ip", rate="2/m", increment=True)
    assert view(_request()).status_code == 429


@pytest.mark.parametrize(
    "arguments",
    [
        {"group": None},
        {"key": None},
        {"key": "usr"},
        {"key": "no.such.path"},
        {"rate": "10/month"},
        {"rate": "no.such.path"},
        {"rate": (1, 0)},
        {"rate": (-1, 60)},
        {"rate": lambda group, request: "often"},
        {"method": "FETCH"},
    ],
)
def test_bad_argument_is_improperly_configured(arguments: dict[str, Any]) -> None:
    """C28, C135: nothing that cannot be read is let pass; the error is both kinds."""
    with pytest.raises(ImproperlyConfigured) as caught:
        is_ratelimited(_request(), **{**BY_IP, **arguments})
    assert isinstance(caught.value, ValueError)


def test_denial_is_an_offence_but_a_look_is_none() -> None:
    """What is limited counts for promotion under its group; looking does not."""
    arguments: dict[str, Any] = {"group": "offending", "key": "ip", "rate": "0/s"}
    for increment in (False, True):
        is_ratelimited(_request(), **arguments, increment=increment)
        offences.flush()
        counts = [count for _, slot, count in offences.counts("ip:127.0.0.1") if slot == "@offending"]
        assert counts == [1] * increment


def test_constants_are_there() -> None:
    """ALL and UNSAFE stand on both functions."""
    functions: list[Any] = [is_ratelimited, get_usage]
    for function in functions:
        assert (None, {"DELETE", "PATCH", "POST", "PUT"}) == (function.ALL, set(function.UNSAFE))
