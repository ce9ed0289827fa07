"""System checks: each id is seen, with the setting's name, its value and the line to write."""

from __future__ import annotations

import inspect
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from django.core.checks import Error, Tags, Warning, run_checks
from django.core.management import CommandError, call_command
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.views.decorators.cache import never_cache

from ratelimit_app import authentication, checks
from ratelimit_app.core.identity import parse_sources
from ratelimit_app.decorators import ratelimit
from ratelimit_app.models import Rule

OURS, AUTH = checks.MIDDLEWARE, checks.AUTHENTICATION
BACKEND, MODEL = authentication.BACKEND, "django.contrib.auth.backends.ModelBackend"
NONE: dict[str, Any] = {}
DJANGO_REDIS = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}
LOCMEM = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}

# Settings, the ids that they raise, and what the message or the hint says.
CASES: list[tuple[dict[str, Any], list[str], str]] = [
    (NONE, [], ""),
    ({"RATELIMIT_APP": {"HEADERS": "all"}}, ["E001"], "RATELIMIT_APP['HEADERS'] is 'all'"),
    ({"RATELIMIT_APP": {"ENABLE": True}}, ["E001"], "RATELIMIT_APP['ENABLE'] is True"),
    ({"RATELIMIT_APP": {"HEADERS": 1, "RAISE": 1}}, ["E001", "E001"], "RATELIMIT_APP['RAISE'] is 1"),
    ({"RATELIMIT_APP": 7}, ["E001"], "RATELIMIT_APP is 7"),
    (
        {"RATELIMIT_APP": {"CACHE": "limits"}},
        ["E002"],
        "'limits', named by RATELIMIT_APP['CACHE'], does not exist",
    ),
    (
        {"CACHES": {"default": LOCMEM}},
        ["E002"],
        "has the backend 'django.core.cache.backends.locmem.LocMemCache'",
    ),
    ({"CACHES": {"default": LOCMEM}, "RATELIMIT_APP": {"ENABLED": False}}, [], ""),
    ({"CACHES": {"default": LOCMEM, "l": DJANGO_REDIS}, "RATELIMIT_APP": {"CACHE": "l"}}, [], ""),
    ({"MIDDLEWARE": [OURS, AUTH]}, ["E003"], f"Move {OURS} below {AUTH}"),
    ({"MIDDLEWARE": [AUTH, OURS]}, [], ""),
    ({"MIDDLEWARE": [OURS]}, [], ""),
    ({"REST_FRAMEWORK": {"NUM_PROXIES": 1}}, ["E004", "W002"], "REST_FRAMEWORK['NUM_PROXIES'] is set"),
    # With 0 DRF takes the address of the connection, as this app does.
    ({"REST_FRAMEWORK": {"NUM_PROXIES": 0}}, ["W002"], ""),
    (
        {"RATELIMIT_IP_META_KEY": "HTTP_X_REAL_IP", "RATELIMIT_FAIL_OPEN": True},
        ["E004"],
        "RATELIMIT_IP_META_KEY is set",
    ),
    (
        {
            "RATELIMIT_IP_META_KEY": "HTTP_X_REAL_IP",
            "RATELIMIT_APP": {"TRUSTED_PROXIES": ["10.0.0.0/8"], "ON_FAILURE": "open"},
        },
        [],
        "",
    ),
    ({"RATELIMIT_APP": {"TRUSTED_PROXIES": ["0.0.0.0/0", "unix"]}}, ["E005"], "has '0.0.0.0/0'"),
    ({"RATELIMIT_APP": {"TRUSTED_PROXIES": ["::/0", "10.0.0.0/8"]}}, ["E005"], "has '::/0'"),
    (
        {"RATELIMIT_APP": {"TRUSTED_PROXIES": ["0.0.0.0/1", "128.0.0.0/1"]}},
        ["E005"],
        "'0.0.0.0/1 with 128.0.0.0/1'",
    ),
    ({"RATELIMIT_APP": {"TRUSTED_PROXIES": ["::ffff:0:0/96"]}}, ["E005"], "has '::ffff:0:0/96'"),
    (
        {"RATELIMIT_APP": {"TRUSTED_PROXIES": ["52.0.0.0/7"]}},
        ["W023"],
        "has '52.0.0.0/7', a public network wider",
    ),
    (
        {"RATELIMIT_APP": {"TRUSTED_PROXIES": ["2600::/12"]}},
        ["W023"],
        "has '2600::/12', a public network wider",
    ),
    ({"RATELIMIT_APP": {"TRUSTED_PROXIES": ["10.0.0.0/8", "fc00::/7", "2400:cb00::/32"]}}, [], ""),
    (
        {"RATELIMIT_APP": {"CLIENT_IP_HEADER": "X-Real-IP"}},
        ["W024"],
        "'X-Real-IP', but TRUSTED_PROXIES is empty",
    ),
    ({"RATELIMIT_APP": {"CLIENT_IP_HEADER": "X-Real-IP", "TRUSTED_PROXIES": ["unix"]}}, [], ""),
    ({"RATELIMIT_APP": {"TRUSTED_PROXIES": ["nonsense"]}}, ["E001"], "'nonsense' is none"),
    (
        {"RATELIMIT_APP": {"RAISE": True}, "MIDDLEWARE": [AUTH]},
        ["W001", "W022"],
        f"Add '{OURS}' to MIDDLEWARE",
    ),
    ({"RATELIMIT_APP": {"RAISE": True}}, [], ""),
    ({"REST_FRAMEWORK": {}}, ["W002"], f"Add '{checks.THROTTLE}'"),
    ({"REST_FRAMEWORK": {"DEFAULT_THROTTLE_CLASSES": ["no.such.Throttle", 7]}}, ["W002"], checks.THROTTLE),
    ({"REST_FRAMEWORK": {}, "MIDDLEWARE": [AUTH]}, [], ""),
    ({"REST_FRAMEWORK": {}, "INSTALLED_APPS": ["ratelimit_app"]}, [], ""),
    ({"RATELIMIT_ENABLE": True}, ["W003"], "RATELIMIT_ENABLE is django-ratelimit's"),
    (
        {"RATELIMIT_VIEW": "views.limited", "RATELIMIT_APP": NONE},
        ["W003"],
        "RATELIMIT_VIEW is django-ratelimit's",
    ),
    ({"RATELIMIT_ENABLE": True, "RATELIMIT_FAIL_OPEN": False}, [], ""),
    ({"RATELIMIT_ENABLE": True, "RATELIMIT_APP": {"ON_FAILURE": "closed"}}, [], ""),
    (
        {"RATELIMIT_APP": {"NORMALIZERS": {"field:a": "no.such"}}},
        ["E020"],
        "'no.such', which cannot be imported",
    ),
    ({"RATELIMIT_APP": {"NORMALIZERS": {"field:a": "nodots"}}}, ["E020"], "['field:a'] is 'nodots'"),
    ({"RATELIMIT_APP": {"NORMALIZERS": {"field:a": "tests.cases.SECOND"}}}, ["E020"], "which is 1000000"),
    ({"RATELIMIT_APP": {"NORMALIZERS": {"post:a": str.lower, "field:b": "builtins.ascii"}}}, [], ""),
    ({"RATELIMIT_APP": {"NORMALIZERS": {"field:a": None}}}, [], ""),
    ({"AUTHENTICATION_BACKENDS": [MODEL, BACKEND]}, ["E021"], f"Move '{BACKEND}' to the top"),
    ({"AUTHENTICATION_BACKENDS": [BACKEND, MODEL]}, [], ""),
    (
        {"AUTHENTICATION_BACKENDS": [BACKEND, MODEL], "MIDDLEWARE": [AUTH], "REST_FRAMEWORK": {}},
        ["W021"],
        "looks like a wrong password",
    ),
    ({"MIDDLEWARE": [AUTH]}, ["W022"], "DRF authenticates before it asks throttles"),
    ({"MIDDLEWARE": [AUTH], "INSTALLED_APPS": ["ratelimit_app"]}, [], ""),
]


def found(**settings: Any) -> list[Any]:
    """Run our checks by hand, under these settings."""
    with override_settings(**({"RATELIMIT_APP": {}} | settings)):
        return [message for check in checks.CHECKS for message in check()]


@pytest.mark.parametrize(("settings", "ids", "text"), CASES)
def test_a_check_when_a_project_is_set_up_so_tells_exactly_this(
    settings: dict[str, Any], ids: list[str], text: str
) -> None:
    """The exact ids; a message with the name as written and the value; a hint that says what to write (C06, C52, C93)."""
    messages = found(**settings)
    assert sorted(ids) == sorted(message.id.removeprefix("ratelimit_app.") for message in messages)
    assert text in "\n".join(f"{message.msg} {message.hint}" for message in messages)
    assert all(message.hint for message in messages)


def test_a_check_when_it_is_about_broken_security_is_an_error() -> None:
    """E is an Error that stops a deployment, W a Warning."""
    for settings, _, _ in CASES:
        for message in found(**settings):
            kind = Error if message.id.startswith("ratelimit_app.E") else Warning
            assert type(message) is kind


def test_check_ids_when_listed_belong_to_one_check_each_and_are_tested() -> None:
    """No id is used by two functions, none is without a case in this file or in that of the store's checks."""
    source = "".join(module.read_text() for module in sorted(Path(checks.__file__).parent.glob("*.py")))
    homes: dict[str, set[str]] = {}
    for function in re.split(r"^def ", source, flags=re.MULTILINE)[1:]:
        for check_id in re.findall(r'id="ratelimit_app\.([EW]\d{3})"', function):
            homes.setdefault(check_id, set()).add(function.partition("(")[0])
    assert all(len(functions) == 1 for functions in homes.values())
    tested_below = {"W004", "W020", "E006"}
    tested_beside = set(re.findall(r"[EW]03\d", Path(__file__).with_name("test_checks_store.py").read_text()))
    assert set(homes) == {check_id for _, ids, _ in CASES for check_id in ids} | tested_below | tested_beside


@pytest.mark.django_db(databases=["default", "other"])
def test_the_checks_when_django_runs_them_are_registered() -> None:
    """`manage.py check` tells of a bad setting, and fails for it."""
    with override_settings(RATELIMIT_APP={"HEADERS": "all"}):
        assert "ratelimit_app.E001" in [message.id for message in run_checks(tags=[Tags.security])]
        with pytest.raises(CommandError, match=r"ratelimit_app\.E001"):
            call_command("check")


def test_the_tests_project_when_checked_is_clean() -> None:
    """The settings that all tests use are what the documentation recommends."""
    of_settings = [check for check in checks.CHECKS if check is not checks.check_keys_in_code]
    assert [] == [message for check in of_settings for message in check()]


def test_a_client_chosen_source_when_joined_is_no_longer_alone() -> None:
    """The sources that the documentation names as client-chosen are those of the code."""
    from ratelimit_app.core.identity import CLIENT_CHOSEN_KINDS

    assert {"device", "header", "cookie", "param", "field"} == CLIENT_CHOSEN_KINDS
    assert not {source.kind for source in parse_sources("user+ip")} & CLIENT_CHOSEN_KINDS


def told(*aliases: str) -> list[str]:
    """Run the checks of the database; give the names of the rules that they tell of."""
    found = run_checks(tags=[Tags.database], databases=aliases)
    assert {"ratelimit_app.W004"} >= {message.id for message in found}
    return [re.findall("'(.+?)'", message.msg)[0] for message in found]


def test_rules_keyed_by_what_clients_write_are_told_of(db: Any) -> None:
    """W004: the rule is named, with the key to write instead; shadow rules do no harm."""
    Rule.objects.create(name="device", rate="5/m", key="device", scope="grab")
    Rule.objects.create(name="watched", rate="5/m", key="header:x-a", mode="shadow")
    Rule.objects.create(name="joined", rate="5/m", key="user+header:x-a", scope="x")
    (message,) = run_checks(tags=[Tags.database], databases=["default"])
    assert message.id == "ratelimit_app.W004"
    assert "'device'" in message.msg
    assert "ip+device" in (message.hint or "")


@pytest.mark.parametrize(
    ("fields", "backs"),
    [
        ({}, True),
        ({"key": "user_or_ip", "scope": "grab", "route": "/a/", "methods": "POST"}, True),
        ({"key": "device+ip"}, True),
        ({"key": "global"}, False),
        ({"key": "cookie:a"}, False),
        ({"mode": "shadow"}, False),
        ({"mode": "off"}, False),
        ({"scope": "other"}, False),
        ({"route": "/b/"}, False),
        ({"methods": "GET"}, False),
        ({"ends_at": datetime(2031, 1, 1, tzinfo=UTC)}, False),
    ],
)
def test_a_rule_that_clients_escape_when_another_meets_the_same_requests_is_fine(
    db: Any, fields: dict[str, Any], backs: bool
) -> None:
    """W004: only an enforcing rule by address or user, which meets all that the first one meets, holds on."""
    Rule.objects.create(name="a", rate="5/m", key="field:x", scope="grab", route="/a/", methods="POST")
    Rule.objects.create(**{"name": "b", "rate": "500/m", "key": "ip"} | fields)
    assert ("a" not in told("default")) is backs


@pytest.mark.django_db(databases=["default", "other"])
def test_rules_when_no_database_is_named_are_not_looked_at() -> None:
    """W004: a plain `check` asks no database; each one that is named is asked."""
    Rule.objects.using("other").create(name="far", rate="5/m", key="device")
    assert ([], [], ["far"]) == (told(), told("default"), told("default", "other"))


def test_rules_when_their_table_is_missing_are_none(db: Any) -> None:
    """W004: `migrate` checks before it makes the tables."""
    Rule.objects.create(name="device", rate="5/m", key="device")
    table = Rule._meta.db_table
    with mock.patch.object(Rule._meta, "db_table", f"{table}_not_there"):
        assert told("default") == []
    assert told("default") == ["device"]


@pytest.mark.parametrize("scope", ["authenticate", "login_failed"])
def test_rules_for_tries_to_authenticate_when_nobody_asks_for_them_are_told_of(db: Any, scope: str) -> None:
    """W020: without the backend such a rule has no effect; with it, switched off or in another scope, all is well (C151)."""
    Rule.objects.create(name="tries", rate="5/m", key="ip", scope=scope)
    Rule.objects.create(name="others", rate="5/m", key="ip", scope="shop")
    Rule.objects.create(name="none", rate="5/m", key="ip", scope=scope, mode="off")
    (message,) = run_checks(tags=[Tags.database], databases=["default"])
    assert message.id == "ratelimit_app.W020"
    assert f"'tries' has the scope '{scope}'" in message.msg
    with override_settings(AUTHENTICATION_BACKENDS=[BACKEND, MODEL]):
        assert [] == run_checks(tags=[Tags.database], databases=["default"])


def complaints() -> list[str]:
    """Give what is said of decorators that this test has made."""
    return [f"{found.id} {found.msg}" for found in checks.check_keys_in_code() if __file__ in found.msg]


def test_decorator_keyed_by_what_clients_write_is_told_of() -> None:
    """W004: the line where it is written and its key, as long as the decorator lives."""
    made = ratelimit(key="header:x-token+param:q", rate="5/m")
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    (said,) = complaints()
    assert said.startswith(
        f"ratelimit_app.W004 The decorator at {__file__}:{line} counts by 'header:x-token+"
    )
    del made
    assert complaints() == []


@pytest.mark.parametrize(
    ("other", "backs"),
    [
        ({"key": "ip"}, True),
        ({"key": "user+device", "method": ["POST", "PUT"]}, True),
        ({"key": lambda group, request: "all"}, True),
        ({"key": "ip", "method": "GET"}, False),
        ({"key": "cookie:a"}, False),
        ({"scope": "login", "rate": None}, False),
    ],
)
@pytest.mark.parametrize("is_outer", [True, False])
def test_decorator_that_clients_escape_when_another_holds_them_is_fine(
    other: dict[str, Any], backs: bool, is_outer: bool
) -> None:
    """W004: a login is limited by the account and by the address, in either order, with others between them."""
    field = ratelimit(key="field:email", rate="5/m", method="POST")
    second = ratelimit(**{"rate": "30/m"} | other)
    inner, outer = (field, second) if is_outer else (second, field)

    @outer
    @never_cache
    @inner
    def login(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    assert (not any("'field:email'" in said for said in complaints())) is backs
    del login


@pytest.mark.parametrize(
    ("rate", "ids"), [("10/month", ["E006"]), (7, ["E006"]), ("5/min", []), ("5/s;9/h", []), (None, [])]
)
def test_rates_of_drf_are_read_as_the_throttles_read_them(rate: Any, ids: list[str]) -> None:
    """E006: C134: what DRF would misread is refused before the first request; without DRF nobody reads it."""
    rates = {"REST_FRAMEWORK": {"DEFAULT_THROTTLE_RATES": {"user": rate}}}
    with override_settings(**rates):
        assert [f"ratelimit_app.{name}" for name in ids] == [found.id for found in checks.check_drf_rates()]
    with override_settings(**rates, INSTALLED_APPS=["ratelimit_app"]):
        assert [] == list(checks.check_drf_rates())


def test_rates_of_drf_when_there_are_none_are_fine() -> None:
    """E006: DRF's own default has no rates, and a project may write None."""
    for rates in ({}, {"DEFAULT_THROTTLE_RATES": None}):
        with override_settings(REST_FRAMEWORK=rates):
            assert [] == list(checks.check_drf_rates())
