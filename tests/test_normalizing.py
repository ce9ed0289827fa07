"""Names that a login takes for one are counted as one, by every door and wherever people type them."""

from __future__ import annotations

import logging
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from rest_framework.response import Response
from rest_framework.views import APIView

from ratelimit_app import (
    aacquire,
    acquire,
    apeek,
    block,
    normalizing,
    offences,
    peek,
    reset,
    snapshot_cache,
    unblock,
)
from ratelimit_app.conf import conf
from ratelimit_app.core.identity import Source, identity_of
from ratelimit_app.decorators import ratelimit
from ratelimit_app.identities import canonical
from ratelimit_app.models import BlacklistEntry
from ratelimit_app.normalizing import normalized
from ratelimit_app.throttling import RuleThrottle

if TYPE_CHECKING:
    from collections.abc import Callable

SPELLINGS = ["alice", "ALICE", "Alice ", "\uff41lic\u200be"]
asked: list[str] = []


@pytest.fixture(autouse=True)
def _fresh(settings: Any) -> None:
    """No normaliser that has been told of, none imported."""
    normalizing._told.clear()
    asked.clear()
    settings.ROOT_URLCONF = "tests.test_normalizing"


def by_account(value: str) -> str | None:
    """Give the account that an address of mail belongs to, as a project's database knows it; None: nobody's."""
    asked.append(value)
    user = User.objects.filter(email__iexact=value.strip()).first()
    return user.username if user else None


def broken(value: str) -> str:
    """Fail, with the value in the message."""
    asked.append(value)
    raise LookupError(value)


def no_text(value: str) -> Any:
    """Give what is no text."""
    return 7


def blank(value: str) -> str:
    """Say that there is no name in it."""
    return " "


def given(name: str, normalizer: Any) -> override_settings:
    """Set one normaliser."""
    return override_settings(RATELIMIT_APP={"STORE_TIMEOUT": 2.0, "NORMALIZERS": {name: normalizer}})


def ruled(request: HttpRequest) -> HttpResponse:
    """A page behind the middleware."""
    return HttpResponse("ok")


async def aruled(request: HttpRequest) -> HttpResponse:
    """An async page behind the middleware."""
    return HttpResponse("ok")


@ratelimit(key="field:username", rate="3/m")
@ratelimit(key="ip", rate="1000/m")
def decorated(request: HttpRequest) -> HttpResponse:
    """A page with a decorator."""
    return HttpResponse("ok")


class Api(APIView):
    """An API, throttled."""

    authentication_classes = ()
    throttle_classes = [RuleThrottle]
    throttle_scope = "api"

    def post(self, request: Any) -> Response:
        """Answer."""
        return Response({"name": request.data.get("username")})


urlpatterns = [
    path("ruled/", ruled),
    path("aruled/", aruled),
    path("decorated/", decorated),
    path("api/", Api.as_view()),
    path("admin/", admin.site.urls),
]


def in_form(url: str) -> Callable[[str], int]:
    """Give the function that posts a form."""
    return lambda name: Client().post(url, {"username": name}).status_code


def in_json(url: str) -> Callable[[str], int]:
    """Give the function that posts JSON."""
    return lambda name: Client().post(url, {"username": name}, content_type="application/json").status_code


def in_async_json(url: str) -> Callable[[str], int]:
    """Give the function that posts JSON to an async project."""
    post = async_to_sync(AsyncClient().post)
    return lambda name: post(url, {"username": name}, content_type="application/json").status_code


DOORS: dict[str, Callable[[str], int]] = {
    "middleware": in_form("/ruled/"),
    "middleware, JSON": in_json("/ruled/"),
    "middleware, async": in_async_json("/aruled/"),
    "middleware, sync view on async": in_async_json("/ruled/"),
    "decorator": in_form("/decorated/"),
    "throttle": in_json("/api/"),
    "throttle, form": in_form("/api/"),
}
doors = pytest.mark.parametrize("door", DOORS)


def limit(rules: Any, door: str, key: str = "field:username") -> None:
    """Set three a minute for a door."""
    scope = "api" if door.startswith("throttle") else ""
    rules(*([] if door == "decorator" else [{"name": "account", "rate": "3/m", "key": key, "scope": scope}]))


@doors
def test_a_name_when_spelled_otherwise_is_the_same_account(door: str, rules: Any) -> None:
    """C16: four spellings of one name are four requests of one account; the next name has its own limit."""
    limit(rules, door)
    send = DOORS[door]
    assert [200, 200, 200, 429] == [send(name) for name in SPELLINGS]
    assert 200 == send("alicia")


@doors
def test_a_name_when_blank_is_missing(door: str, rules: Any) -> None:
    """C27: blanks and what nobody sees are no name: the address counts, not a name that all blanks share."""
    limit(rules, door)
    send = DOORS[door]
    assert [200, 200, 200, 429] == [send(name) for name in (" ", "\u200b", "", "\t \u3000")]
    assert 200 == send("alice")


@pytest.mark.django_db(transaction=True)
@doors
def test_a_project_when_it_maps_mail_to_accounts_counts_accounts(door: str, rules: Any) -> None:
    """C16: the project's normaliser may ask the database, in async code too; whom it does not know is folded and counted."""
    User.objects.create(username="alice", email="alice@example.org")
    limit(rules, door)
    send = DOORS[door]
    with given("field:username", "tests.test_normalizing.by_account"):
        assert [200, 200, 200, 429] == [
            send(n) for n in ("alice@example.org", "Alice@Example.ORG ", "alice", "ALICE")
        ]
        assert [200, 200, 200, 429] == [
            send(n) for n in ("x@example.org", "X@example.org", "x@EXAMPLE.org", "x@example.org ")
        ]
    assert 8 <= len(asked)


@pytest.mark.parametrize(
    "normalizer", [broken, no_text, "tests.test_normalizing.broken", "no.such.normalizer"]
)
@doors
def test_a_normaliser_when_it_fails_is_told_once_and_the_default_holds(
    door: str, normalizer: Any, rules: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """No 500, no second log, no secret in the log: as if the project had none."""
    limit(rules, door)
    send = DOORS[door]
    with given("field:username", normalizer), caplog.at_level(logging.DEBUG):
        assert [200, 200, 200, 429] == [send(name) for name in SPELLINGS]
    told = [r.getMessage() for r in caplog.records if "ratelimit.normalizer_failed" in r.getMessage()]
    assert 1 == len(told)
    assert "'field:username'" in told[0]
    ours = "\n".join(record.getMessage() for record in caplog.records if record.name == "ratelimit_app")
    assert not any(name.strip() in ours for name in SPELLINGS)


@doors
def test_a_default_when_switched_off_leaves_values_as_they_are(door: str, rules: Any) -> None:
    """`None`: a field of tokens, whose letters matter."""
    limit(rules, door)
    with given("field:username", None):
        assert [200] * 4 == [DOORS[door](name) for name in SPELLINGS]


def test_a_normaliser_when_it_gives_a_blank_says_that_the_name_is_missing(rules: Any) -> None:
    """The address counts."""
    limit(rules, "middleware")
    with given("post:username", blank):
        assert [200, 200, 200, 429] == [DOORS["middleware"](name) for name in ("a", "b", "c", "d")]


@pytest.mark.parametrize(
    ("key", "name", "values"),
    [
        ("header:x-user", "header:X_User", [{"headers": {"X-User": name}} for name in SPELLINGS[:3]]),
        ("cookie:user", "cookie:user", [{"headers": {"Cookie": f"user={name}"}} for name in ("a", "A", "a")]),
        ("param:user", "get:user", [{"query_params": {"user": name}} for name in SPELLINGS[:3]]),
    ],
)
def test_a_normaliser_when_of_another_source_holds_there_and_by_default_none_does(
    key: str, name: str, values: list[dict[str, Any]], rules: Any
) -> None:
    """Headers, cookies and parameters hold tokens: they fold only where the project says so."""
    rules({"name": "one", "rate": "1/m", "key": key})
    assert [200, 200] == [Client().get("/ruled/", **value).status_code for value in values[:2]]
    with given(name, "tests.test_normalizing.lower"):
        rules({"name": "two", "rate": "2/m", "key": key})
        assert [200, 200, 429] == [Client().get("/ruled/", **value).status_code for value in values]


def lower(value: str) -> str:
    """Fold as a simple project does."""
    return value.strip().lower()


@pytest.mark.parametrize("normalizer", ["default", lower, None])
def test_an_identity_when_named_in_code_is_that_of_requests(normalizer: Any, rules: Any) -> None:
    """`acquire`, `peek`, `reset` and their twins take any spelling, joined too, and what stands in a log."""
    limit(rules, "middleware", "ip+field:username")
    own = {} if normalizer == "default" else {"field:username": normalizer}
    with override_settings(RATELIMIT_APP={"STORE_TIMEOUT": 2.0, "NORMALIZERS": own}):
        names = ["field:username:Alice ", "field:username:alice", canonical("field:username:aLICE")]
        expected = [True, True, True] if normalizer is None else [True, False, False]
        assert expected == [acquire(name, "1/m", group="g").allowed for name in names]
        assert expected == [
            async_to_sync(aacquire)(f"ip:192.0.2.1+{n}", "1/m", group="h").allowed for n in names
        ]
        assert not peek("field:username:Alice ", "1/m", group="g").allowed
        assert not async_to_sync(apeek)("field:username:Alice ", "1/m", group="g").allowed
        assert reset("field:username:Alice ") == 1
        assert peek("field:username:Alice ", "1/m", group="g").allowed


def test_an_identity_when_its_value_has_a_plus_is_that_of_requests(rules: Any, valkey: Any) -> None:
    """An address of mail with a tag joins nothing, alone and joined: code counts by what requests count by."""
    rules(
        {"name": "r", "rate": "9/m", "key": "ip+field:username"},
        {"name": "s", "rate": "9/m", "key": "field:username"},
    )
    DOORS["middleware"]("Alice+Tag@example.org")
    for named in (
        "ip:127.0.0.1+field:username:alice+tag@EXAMPLE.org",
        "field:username:alice+tag@example.org",
    ):
        assert valkey.exists(
            conf.keys.log(canonical(named), b"r") if "ip" in named else conf.keys.log(canonical(named), b"s")
        )
        assert acquire(named, "1/m", group="g").allowed
        assert not acquire(named, "1/m", group="g").allowed
    assert "user:1%2Bx+ip:192.0.2.1" == canonical("user:1+x+ip:192.0.2.1")
    assert "key:a%2Bb" == canonical("a+b")


@pytest.mark.django_db
def test_a_normaliser_when_its_answer_changes_is_asked_again(rules: Any) -> None:
    """What a project's normaliser gave is not remembered: an account that was renamed is counted by its new name."""
    user = User.objects.create(username="alice", email="a@example.org")
    with given("field:email", by_account):
        before = canonical("field:email:a@example.org")
        user.username = "renamed"
        user.save()
        assert before != canonical("field:email:a@example.org")
        assert canonical("field:email:a@example.org") == canonical("field:email: A@EXAMPLE.ORG")


def _type(client: Client, kind: str, value: str) -> Any:
    """Fill in the admin's form of a blacklist entry."""
    return client.post(
        "/admin/ratelimit_app/blacklistentry/add/", {"kind": kind, "value": value, "reason": "r"}
    )


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("typed", ["Alice ", "alice", "\uff21LICE"])
def test_an_entry_when_typed_in_any_spelling_is_the_account_that_requests_name(
    typed: str, settings: Any, client: Client, admin_client: Client
) -> None:
    """Form, command, function and model write one row, which bans every spelling and is lifted by any (C15)."""
    expected = identity_of(Source("field", "username"), "alice", conf.key_secret).rpartition(":")[2]
    answer = _type(admin_client, "field:username", typed)
    assert 302 == answer.status_code, answer.context["errors"]
    assert [expected] == list(BlacklistEntry.objects.values_list("value", flat=True))
    assert "has a manual entry already" in str(
        _type(admin_client, "post:username", "ALICE").context["errors"]
    )
    call_command("ratelimit_block", f"field:username:{typed}", stdout=StringIO())
    block(f"field:username:{typed}", reason="r")
    assert [expected] == list(BlacklistEntry.objects.values_list("value", flat=True))
    snapshot_cache.refresh()
    assert {403} == {DOORS["middleware"](name) for name in SPELLINGS}
    assert 200 == DOORS["middleware"]("alicia")
    assert 1 == unblock("field:username:ALICE")


@pytest.mark.django_db
def test_an_entry_when_of_a_normalised_kind_is_found_by_the_admins_search(
    admin_client: Client, settings: Any
) -> None:
    """Whoever looks for a name finds its row, however it is spelled, under the project's own rules."""
    settings.ROOT_URLCONF = "tests.urls"
    with given("field:username", lower):
        entry = block("field:username:Alice", reason="the one")
        page = admin_client.get("/admin/ratelimit_app/blacklistentry/", {"q": "field:username: ALICE"})
        assert entry.value in page.content.decode()
        page = admin_client.get("/admin/ratelimit_app/blacklistentry/", {"q": "field:username:bob"})
        assert entry.value not in page.content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize("value", ["", " ", "\u200b", "\x00"])
def test_an_entry_when_nothing_is_left_of_it_is_refused(value: str) -> None:
    """A name of blanks would ban nobody, or all who send none."""
    with pytest.raises(ValueError, match="missing"):
        block(f"field:username:{value}", reason="r")


def test_an_offender_when_spelled_in_many_ways_is_one(rules: Any, valkey: Any) -> None:
    """Offences add up under the account's one identity."""
    limit(rules, "middleware")
    for name in SPELLINGS * 3:
        DOORS["middleware"](name)
    offences.flush()
    (key,) = valkey.keys("rl:1:{field:username:*}!offences")
    assert 9 == sum(map(int, valkey.hvals(key)))


def test_a_value_when_the_project_has_no_normaliser_costs_one_look() -> None:
    """The text itself comes back for tokens, and a name in plain small letters is not even copied."""
    token, name = "ToKeN-12345", "alice"
    assert normalized(Source("header", "x"), token) is token
    assert normalized(Source("field", "x"), name) == name
