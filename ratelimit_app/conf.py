"""The settings of `RATELIMIT_APP`, typed, each with its default; they follow `override_settings` at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from django.conf import settings

from ratelimit_app.core.addresses import UNIX, NetworkSet, parse_network
from ratelimit_app.core.forwarding import is_header, travelling
from ratelimit_app.core.headers import STYLES
from ratelimit_app.core.identity import NAMED_KINDS, IdentityError, parse_sources
from ratelimit_app.core.keys import Keys
from ratelimit_app.core.rules import FAILURE_POLICIES

logger = logging.getLogger("ratelimit_app")

MAX_PREFIX = 20
Check = Callable[[Any], str | None]


class Setting(NamedTuple):
    """A default, a check that says what was expected of a bad value, and django-ratelimit's name for it."""

    default: Any
    check: Check
    old: str = ""


def _is(kind: type, expected: str) -> Check:
    return lambda value: None if isinstance(value, kind) and type(value) in (kind, str) else expected


def _one_of(choices: tuple[Any, ...]) -> Check:
    return lambda value: None if value in choices else "one of " + ", ".join(map(repr, choices))


def _between(low: float, high: float, *, whole: bool = False) -> Check:
    def check(value: Any) -> str | None:
        kinds = int if whole else (int, float)
        good = isinstance(value, kinds) and not isinstance(value, bool) and low <= value <= high
        return None if good else f"a number from {low:,} to {high:,}"

    return check


def _or_none(inner: Check) -> Check:
    return lambda value: None if value is None else inner(value)


def _header(value: Any) -> str | None:
    return (
        None
        if isinstance(value, str) and is_header(value)
        else "the name of a header, such as 'X-Forwarded-For'"
    )


def _networks(value: Any) -> str | None:
    expected = "a list of networks such as ['10.0.0.0/8'], and 'unix' for a peer on a unix socket"
    if isinstance(value, str) or not isinstance(value, (list, tuple, set, frozenset)):
        return expected
    for text in value:
        if text != UNIX:
            try:
                parse_network(text)
            except (ValueError, AttributeError, TypeError):
                return f"{expected}; {text!r} is none"
    return None


def _normalizers(value: Any) -> str | None:
    """A normaliser is imported at its first use: its module may well import ours."""
    expected = "a dict from sources such as 'field:email' to callables, their dotted paths, or None"
    if not isinstance(value, Mapping):
        return expected
    for key, given in value.items():
        try:
            sources = parse_sources(key)
        except (IdentityError, TypeError, AttributeError):
            return f"{expected}; {key!r} is no source"
        if len(sources) > 1 or sources[0].kind not in NAMED_KINDS:
            return f"{expected}; {key!r} is none of header, cookie, param and field"
        if not (given is None or isinstance(given, str) or callable(given)):
            return f"{expected}; {given!r} is none of these"
    return None


def _prefix(value: Any) -> str | None:
    good = isinstance(value, str) and 0 < len(value) <= MAX_PREFIX and value.isascii() and value.isprintable()
    if good and not set("{} *?[") & set(value):
        return None
    return f"1 to {MAX_PREFIX} plain characters without braces or blanks"


_BOOL, _TEXT = _is(bool, "True or False"), _is(str, "text")

SETTINGS: dict[str, Setting] = {
    "ENABLED": Setting(True, _BOOL, "RATELIMIT_ENABLE"),
    "CACHE": Setting("default", _TEXT, "RATELIMIT_USE_CACHE"),
    "KEY_PREFIX": Setting("rl", _prefix),
    "KEY_SECRET": Setting(None, _or_none(_TEXT)),
    "TRUSTED_PROXIES": Setting([], _networks),
    "CLIENT_IP_HEADER": Setting("X-Forwarded-For", _header),
    "IPV4_PREFIX": Setting(32, _between(1, 32, whole=True), "RATELIMIT_IPV4_MASK"),
    "IPV6_PREFIX": Setting(64, _between(1, 128, whole=True), "RATELIMIT_IPV6_MASK"),
    "DEVICE_HEADER": Setting("X-Device-Id", _header),
    "ON_FAILURE": Setting("open", _one_of(FAILURE_POLICIES), "RATELIMIT_FAIL_OPEN"),
    "NORMALIZERS": Setting({}, _normalizers),
    "LOCAL_SHARE": Setting(1.0, _between(0, 1)),
    "STORE_TIMEOUT": Setting(0.1, _between(0.001, 60)),
    "BREAKER_THRESHOLD": Setting(3, _between(1, 1_000_000, whole=True)),
    "BREAKER_COOLDOWN": Setting(1.0, _between(0.01, 3_600)),
    "REFRESH_INTERVAL": Setting(1.0, _between(0.05, 3_600)),
    "LOCAL_CACHE_SIZE": Setting(100_000, _between(0, 100_000_000, whole=True)),
    "LOCAL_BLOCK_AFTER": Setting(None, _or_none(_between(1, 1_000_000, whole=True))),
    "LOCAL_BLOCK_WINDOW": Setting(10, _between(0.001, 86_400)),
    "LOCAL_BLOCK_PERIOD": Setting(300, _between(0.001, 86_400)),
    "RAISE": Setting(False, _BOOL),
    "HEADERS": Setting("both", _one_of(STYLES)),
}


class Problem(NamedTuple):
    """A setting that cannot be used: its name as the project wrote it, the value, and what was expected."""

    name: str
    value: Any
    expected: str


class Conf:
    """The live settings. Reading the first one reads all; a change of Django's settings forgets them."""

    enabled: bool
    cache: str
    key_prefix: str
    key_secret: bytes
    keys: Keys
    trusted_proxies: NetworkSet
    trusts_unix: bool
    client_ip_header: str
    ipv4_prefix: int
    ipv6_prefix: int
    device_header: str
    on_failure: str
    normalizers: dict[str, Any]
    local_share: float
    store_timeout: float
    breaker_threshold: int
    breaker_cooldown: float
    refresh_interval: float
    local_cache_size: int
    local_block_after: int | None
    local_block_window: float
    local_block_period: float
    raise_: bool
    headers: str | None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # A thread that reads settings which are forgotten meanwhile must not leave them to all others.
        held = self.__dict__
        values = self._read()
        if name not in values:
            msg = f"RATELIMIT_APP has no setting {name.upper()!r}"
            raise AttributeError(msg)
        held.update(values)
        return values[name]

    def forget(self) -> None:
        """Read the settings anew at the next use."""
        self.__dict__ = {}

    def problems(self) -> list[Problem]:
        """Give every setting that cannot be used, unknown keys included."""
        given = _given()
        if not isinstance(given, Mapping):
            return [Problem("RATELIMIT_APP", given, "a dict")]
        unknown = [
            Problem(f"RATELIMIT_APP[{key!r}]", value, "one of " + ", ".join(SETTINGS))
            for key, value in given.items()
            if key not in SETTINGS
        ]
        return unknown + [problem for key in SETTINGS if (problem := _look_up(key)[1])]

    def _read(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, setting in SETTINGS.items():
            value, problem = _look_up(key)
            if problem:
                logger.error("%s is %r: expected %s. The default is used.", *problem)
                value = setting.default
            values[key.lower()] = value
        values["raise_"] = values.pop("raise")
        for key in ("client_ip_header", "device_header"):
            values[key] = travelling(values[key])
        normalizers = values["normalizers"].items()
        values["normalizers"] = {str(parse_sources(key)[0]): given for key, given in normalizers}
        proxies = values["trusted_proxies"]
        values["trusts_unix"] = UNIX in proxies
        values["trusted_proxies"] = NetworkSet(parse_network(text) for text in proxies if text != UNIX)
        secret = values["key_secret"] or settings.SECRET_KEY
        values["key_secret"] = sha256(
            b"ratelimit_app.key:" + str(secret).encode("utf-8", "surrogatepass")
        ).digest()
        values["keys"] = Keys(values["key_prefix"], values["key_secret"])
        return values


def _given() -> Any:
    return getattr(settings, "RATELIMIT_APP", {})


def _look_up(key: str) -> tuple[Any, Problem | None]:
    default, check, old = SETTINGS[key]
    given = _given()
    name, value = f"RATELIMIT_APP[{key!r}]", default
    if isinstance(given, Mapping) and key in given:
        value = given[key]
    elif old and hasattr(settings, old):
        name, value = old, getattr(settings, old)
        if old == "RATELIMIT_FAIL_OPEN":
            value = "open" if value else "closed"
    expected = check(value)
    return value, Problem(name, value, expected) if expected else None


conf = Conf()


def on_setting_changed(*, setting: str, **_: Any) -> None:
    """Forget what was read when a setting that counts has changed."""
    if setting.startswith("RATELIMIT_") or setting in ("SECRET_KEY", "CACHES"):
        conf.forget()
