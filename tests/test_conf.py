"""Settings: typed, with defaults, followed at once; what cannot be used is named as it was written."""

from __future__ import annotations

import logging
import threading
from ipaddress import ip_address
from typing import Any

import pytest
from django.test import override_settings

from ratelimit_app.conf import SETTINGS, conf

DEFAULTS: dict[str, Any] = {
    "ENABLED": True,
    "CACHE": "default",
    "KEY_PREFIX": "rl",
    "KEY_SECRET": None,
    "TRUSTED_PROXIES": [],
    "CLIENT_IP_HEADER": "X-Forwarded-For",
    "IPV4_PREFIX": 32,
    "IPV6_PREFIX": 64,
    "DEVICE_HEADER": "X-Device-Id",
    "ON_FAILURE": "open",
    "NORMALIZERS": {},
    "LOCAL_SHARE": 1.0,
    "STORE_TIMEOUT": 0.1,
    "BREAKER_THRESHOLD": 3,
    "BREAKER_COOLDOWN": 1.0,
    "REFRESH_INTERVAL": 1.0,
    "LOCAL_CACHE_SIZE": 100_000,
    "LOCAL_BLOCK_AFTER": None,
    "LOCAL_BLOCK_WINDOW": 10,
    "LOCAL_BLOCK_PERIOD": 300,
    "RAISE": False,
    "HEADERS": "both",
}

# For each setting values that cannot be used, and a part of what is expected instead.
BAD: dict[str, tuple[list[Any], str]] = {
    "ENABLED": (["yes", 1, None], "True or False"),
    "CACHE": ([None, 7], "text"),
    "KEY_PREFIX": (["", "a b", "{x}", "x" * 21, "é", None, "a*", "\n"], "plain characters"),
    "KEY_SECRET": ([7, ["x"]], "text"),
    "TRUSTED_PROXIES": (
        ["10.0.0.0/8", None, ["10.0.0.0/40"], ["proxy"], [7], {"a": 1}],
        "a list of networks",
    ),
    "CLIENT_IP_HEADER": ([None, 7, "", "X Real IP", "X-Real-IP:"], "the name of a header"),
    "IPV4_PREFIX": ([0, 33, "24", 24.0, True], "a number from 1 to 32"),
    "IPV6_PREFIX": ([0, 129, None], "a number from 1 to 128"),
    "DEVICE_HEADER": ([None, 7, "", "X-Device-Id\n"], "the name of a header"),
    "ON_FAILURE": (["shut", True, None], "'open', 'closed'"),
    "NORMALIZERS": (
        [
            None,
            [],
            {"field": None},
            {"ip": None},
            {7: None},
            {"ip+field:a": None},
            {"field:a": 7},
            {"usr:a": ""},
        ],
        "a dict from sources",
    ),
    "LOCAL_SHARE": ([-0.1, 1.1, "1"], "a number from 0 to 1"),
    "STORE_TIMEOUT": ([0, -1, 61, "0.1", None, float("nan")], "a number from 0.001 to 60"),
    "BREAKER_THRESHOLD": ([0, 1.5, "3"], "a number from 1"),
    "BREAKER_COOLDOWN": ([0, None], "a number from 0.01"),
    "REFRESH_INTERVAL": ([0, 0.01, "1"], "a number from 0.05"),
    "LOCAL_CACHE_SIZE": ([-1, 1.5], "a number from 0"),
    "LOCAL_BLOCK_AFTER": ([0, "3"], "a number from 1"),
    "LOCAL_BLOCK_WINDOW": ([0, None], "a number from 0.001"),
    "LOCAL_BLOCK_PERIOD": ([0, None], "a number from 0.001"),
    "RAISE": ([1, "no"], "True or False"),
    "HEADERS": (["all", True], "'ietf', 'legacy', 'both', None"),
}
BAD_PAIRS = [(name, value, expected) for name, (values, expected) in BAD.items() for value in values]


def given(**values: Any) -> override_settings:
    """Set these of our settings and no others."""
    return override_settings(RATELIMIT_APP=values)


def test_settings_when_listed_are_those_of_the_contract() -> None:
    """Every setting has a default, and a bad value in this file."""
    assert DEFAULTS == {name: setting.default for name, setting in SETTINGS.items()}
    assert set(SETTINGS) == set(BAD)


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_a_setting_when_absent_has_its_default(name: str) -> None:
    """A project without `RATELIMIT_APP` gets what the documentation says."""
    with given():
        value = getattr(conf, {"RAISE": "raise_"}.get(name, name.lower()))
        if name == "TRUSTED_PROXIES":
            assert not value
        elif name == "KEY_SECRET":
            assert 32 == len(value)
        else:
            assert DEFAULTS[name] == value
        assert [] == conf.problems()


@pytest.mark.parametrize(("name", "value", "expected"), BAD_PAIRS)
def test_a_setting_when_it_cannot_be_used_is_named_with_what_is_expected(
    name: str, value: Any, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The problem names the setting as written and the value; the site goes on with the default, and says so."""
    with given(**{name: value}), caplog.at_level(logging.ERROR, "ratelimit_app"):
        (problem,) = conf.problems()
        assert f"RATELIMIT_APP[{name!r}]" == problem.name
        assert repr(value) == repr(problem.value)
        assert expected in problem.expected
        conf.forget()
        assert conf.on_failure
    told = {record.getMessage() for record in caplog.records if "The default is used." in record.getMessage()}
    assert [f"RATELIMIT_APP[{name!r}]"] == [line.split()[0] for line in told]


@pytest.mark.parametrize("value", [None, [], "ENABLED", 7])
def test_the_settings_when_no_dict_are_one_problem(value: Any) -> None:
    """`RATELIMIT_APP` of another type is told, and read as empty."""
    with override_settings(RATELIMIT_APP=value):
        assert [("RATELIMIT_APP", value, "a dict")] == conf.problems()
        assert conf.cache == "default"


def test_a_setting_when_unknown_is_a_problem_that_lists_the_known() -> None:
    """A misspelt name is not silently without effect."""
    with given(ENABLE=True, FAIL_OPEN=True):
        problems = conf.problems()
    assert ["RATELIMIT_APP['ENABLE']", "RATELIMIT_APP['FAIL_OPEN']"] == [problem.name for problem in problems]
    assert all("ENABLED, CACHE" in problem.expected for problem in problems)


def test_a_setting_when_overridden_counts_at_once_and_no_longer_than_the_block() -> None:
    """`override_settings` needs no restart and no reload, and is undone (C86)."""
    before = conf.key_prefix
    with given(KEY_PREFIX="other"):
        assert ("other", "other:1") == (conf.key_prefix, conf.keys.root)
        with given(KEY_PREFIX="inner"):
            assert conf.key_prefix == "inner"
        assert conf.key_prefix == "other"
    assert before == conf.key_prefix


@pytest.mark.parametrize(
    ("old", "value", "name", "expected"),
    [
        ("RATELIMIT_ENABLE", False, "enabled", False),
        ("RATELIMIT_USE_CACHE", "limits", "cache", "limits"),
        ("RATELIMIT_IPV4_MASK", 24, "ipv4_prefix", 24),
        ("RATELIMIT_IPV6_MASK", 48, "ipv6_prefix", 48),
        ("RATELIMIT_FAIL_OPEN", True, "on_failure", "open"),
        ("RATELIMIT_FAIL_OPEN", False, "on_failure", "closed"),
    ],
)
def test_a_setting_of_django_ratelimit_when_ours_is_absent_is_honoured(
    old: str, value: Any, name: str, expected: Any
) -> None:
    """A project that comes from django-ratelimit keeps its settings; ours wins where both are there."""
    with override_settings(**{"RATELIMIT_APP": {}, old: value}):
        assert expected == getattr(conf, name)
    ours = {name.upper(): DEFAULTS[name.upper()]}
    with override_settings(**{"RATELIMIT_APP": ours, old: value}):
        assert DEFAULTS[name.upper()] == getattr(conf, name)


def test_a_setting_of_django_ratelimit_when_it_cannot_be_used_is_named_as_written() -> None:
    """The message names the setting that the project has, not ours that it lacks."""
    with override_settings(RATELIMIT_APP={}, RATELIMIT_IPV4_MASK=99):
        assert ["RATELIMIT_IPV4_MASK"] == [problem.name for problem in conf.problems()]


def test_trusted_proxies_when_they_name_a_socket_are_split() -> None:
    """Networks become a set of networks, and `unix` a flag."""
    with given(TRUSTED_PROXIES=["10.0.0.0/8", "unix", "2001:db8::1"]):
        assert conf.trusts_unix
        texts = ("10.1.1.1", "2001:db8::1", "192.0.2.1")
        found = [ip_address(text) in conf.trusted_proxies for text in texts]
    assert [True, True, False] == found
    with given(TRUSTED_PROXIES=("10.0.0.0/8",)):
        assert not conf.trusts_unix


def test_the_secret_when_not_given_comes_from_the_secret_key() -> None:
    """It follows `SECRET_KEY`, is never that key itself, and `KEY_SECRET` replaces it for good."""
    with override_settings(RATELIMIT_APP={}, SECRET_KEY="one"):
        first = conf.key_secret
        assert b"one" not in first
        with override_settings(SECRET_KEY="two"):
            second = conf.key_secret
    with override_settings(RATELIMIT_APP={"KEY_SECRET": "own"}, SECRET_KEY="one"):
        third = conf.key_secret
        with override_settings(SECRET_KEY="two"):
            assert third == conf.key_secret
    assert len({first, second, third}) == 3
    with override_settings(RATELIMIT_APP={"KEY_SECRET": "own"}):
        assert third == conf.keys.secret


def test_a_name_when_no_setting_is_an_attribute_error() -> None:
    """A typing error in our own code, or in a probe for dunder names, is told as Python does."""
    with pytest.raises(AttributeError, match="RATELIMIT_APP has no setting 'CASHE'"):
        _ = conf.cashe
    assert not hasattr(conf, "__wrapped__")


def test_settings_when_they_change_while_they_are_read_are_not_kept(settings: Any, monkeypatch: Any) -> None:
    """Another thread that began with the old settings does not leave them to those that ask later."""
    read, mine = type(conf)._read, threading.get_ident()

    def overtaken(self: Any) -> dict[str, Any]:
        values = read(self)
        if threading.get_ident() != mine:  # the refresh beside the tests, which may outlast this one
            return values
        settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "STORE_TIMEOUT": 7.0}
        return values

    conf.forget()
    monkeypatch.setattr(type(conf), "_read", overtaken)
    assert conf.store_timeout != 7.0
    monkeypatch.undo()
    assert conf.store_timeout == 7.0
