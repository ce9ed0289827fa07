"""System checks: one function for each concern. Ids are numbered once and for ever."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DatabaseError
from django.db.transaction import atomic
from django.utils.module_loading import import_string

from ratelimit_app.authentication import BACKEND, EVERY_TRY, FAILURES, is_installed
from ratelimit_app.checks.proxies import check_proxies
from ratelimit_app.checks.store import SERVER, check_cache, check_pool, check_server, check_timeouts
from ratelimit_app.conf import conf
from ratelimit_app.core.identity import IdentityError, Source, are_client_chosen, hold_client, parse_sources
from ratelimit_app.core.rates import RateError, parse_rates
from ratelimit_app.limits import decorating
from ratelimit_app.models import Rule
from ratelimit_app.normalizing import load

if TYPE_CHECKING:
    from collections.abc import Iterable

MIDDLEWARE = "ratelimit_app.middleware.RateLimitMiddleware"
AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
THROTTLE = "ratelimit_app.throttling.RuleThrottle"
# What says which requests a rule meets, and when.
_MEETING = ("scope", "route", "methods", "starts_at", "ends_at")
_PEER_SETTINGS = ("RATELIMIT_ENABLE", "RATELIMIT_USE_CACHE", "RATELIMIT_VIEW", "RATELIMIT_IP_META_KEY")


def check_settings(**_: Any) -> Iterable[CheckMessage]:
    """E001: a setting that does not exist or cannot be used."""
    for name, value, expected in conf.problems():
        yield Error(f"{name} is {value!r}.", hint=f"Expected {expected}.", id="ratelimit_app.E001")


def check_middleware_order(**_: Any) -> Iterable[CheckMessage]:
    """E003: a middleware that acts where the user cannot be known."""
    order = list(getattr(settings, "MIDDLEWARE", []))
    if (
        MIDDLEWARE in order
        and AUTHENTICATION in order
        and order.index(MIDDLEWARE) < order.index(AUTHENTICATION)
    ):
        yield Error(
            f"{MIDDLEWARE} stands above {AUTHENTICATION}: rules and marks that need the user cannot see it.",
            hint=f"Move {MIDDLEWARE} below {AUTHENTICATION} in MIDDLEWARE.",
            id="ratelimit_app.E003",
        )


def check_raise(**_: Any) -> Iterable[CheckMessage]:
    """W001: exceptions that nobody turns into a 429."""
    if conf.raise_ and MIDDLEWARE not in getattr(settings, "MIDDLEWARE", []):
        yield Warning(
            "RATELIMIT_APP['RAISE'] is on, but the middleware is not installed: Ratelimited ends as a plain 403.",
            hint=f"Add {MIDDLEWARE!r} to MIDDLEWARE, or switch RAISE off: the decorator then answers by itself.",
            id="ratelimit_app.W001",
        )


def check_throttle(**_: Any) -> Iterable[CheckMessage]:
    """W002: DRF views for whose users nobody decides."""
    if not _has_drf() or MIDDLEWARE not in getattr(settings, "MIDDLEWARE", []):
        return
    names = getattr(settings, "REST_FRAMEWORK", {}).get("DEFAULT_THROTTLE_CLASSES", [])
    if not any(_is_rule_throttle(name) for name in names):
        yield Warning(
            f"REST_FRAMEWORK['DEFAULT_THROTTLE_CLASSES'] has no {THROTTLE}: rules and blacklist entries that need"
            " the user do not act on DRF's views, since the middleware leaves them to it.",
            hint=f"Add {THROTTLE!r} to REST_FRAMEWORK['DEFAULT_THROTTLE_CLASSES'].",
            id="ratelimit_app.W002",
        )


def _has_drf() -> bool:
    return "rest_framework" in settings.INSTALLED_APPS


def _is_rule_throttle(name: Any) -> bool:
    try:
        found = import_string(name) if isinstance(name, str) else name
        return issubclass(found, import_string(THROTTLE))
    except (ImportError, TypeError):
        return False


def check_failure_default(**_: Any) -> Iterable[CheckMessage]:
    """W003: a project that comes from django-ratelimit, whose outage default is closed."""
    given = getattr(settings, "RATELIMIT_APP", {})
    names = [name for name in _PEER_SETTINGS if hasattr(settings, name)]
    if names and "ON_FAILURE" not in given and not hasattr(settings, "RATELIMIT_FAIL_OPEN"):
        yield Warning(
            f"{names[0]} is django-ratelimit's, which denies when its cache is away; here ON_FAILURE is 'open'.",
            hint="Write RATELIMIT_APP['ON_FAILURE'] = 'open' or 'closed'.",
            id="ratelimit_app.W003",
        )


def check_keys_in_code(**_: Any) -> Iterable[CheckMessage]:
    """W004: a decorator that whoever changes a header escapes."""
    for limit, place in sorted(decorating.items(), key=itemgetter(1)):
        if limit.is_escaped:
            yield _escaped(f"The decorator at {place}", "+".join(map(str, limit.sources)))


def check_keys_in_database(databases: Iterable[str] | None = None, **_: Any) -> Iterable[CheckMessage]:
    """W004: an enforcing rule of the admin that whoever changes a header escapes; run with `--database`."""
    for alias in databases or ():
        rows = _enforcing(alias)
        for row in rows:
            sources = _sources(row["key"])
            if sources and are_client_chosen(sources) and not any(_backs(other, row) for other in rows):
                yield _escaped(f"The rule {row['name']!r}", row["key"])


def _enforcing(alias: str) -> list[dict[str, Any]]:
    """Give the rules of a database that deny; none where the tables are not there yet."""
    try:
        with atomic(using=alias):  # so that a failure breaks no transaction around the checks
            return list(Rule.objects.using(alias).filter(mode="enforce").values("name", "key", *_MEETING))
    except DatabaseError:
        return []


def _backs(other: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether another rule that meets all the same requests counts by the address or the user."""
    meets = all(not other[field] or other[field] == row[field] for field in _MEETING)
    return meets and hold_client(_sources(other["key"]))


def _sources(key: str) -> tuple[Source, ...]:
    """Read a key; one that cannot be read counts nobody."""
    try:
        return parse_sources(key)
    except IdentityError:
        return ()


def _escaped(what: str, key: str) -> CheckMessage:
    return Warning(
        f"{what} counts by {key!r} alone, which the client writes: whoever changes it escapes.",
        hint=f"Join it with the address or the user, as in 'ip+{key}', or add a rule whose key has one of them.",
        id="ratelimit_app.W004",
    )


def check_drf_rates(**_: Any) -> Iterable[CheckMessage]:
    """E006: a rate of DRF's throttles that would be refused at the first request."""
    rates = getattr(settings, "REST_FRAMEWORK", {}).get("DEFAULT_THROTTLE_RATES") if _has_drf() else None
    for scope, rate in (rates or {}).items():
        try:
            rate is None or parse_rates(rate)
        except RateError as error:
            yield Error(
                f"REST_FRAMEWORK['DEFAULT_THROTTLE_RATES'][{scope!r}]: {error}",
                hint="DRF reads only the first letter of the unit; ratelimit_app reads the whole rate.",
                id="ratelimit_app.E006",
            )


def check_normalizers(**_: Any) -> Iterable[CheckMessage]:
    """E020: a normaliser that does not exist, so that the default would hold instead."""
    for name, given in conf.normalizers.items():
        try:
            found = load(given)
            problem = "" if found is None or callable(found) else f"is {found!r}"
        except ImportError as error:
            problem = f"cannot be imported: {error}"
        if problem:
            yield Error(
                f"RATELIMIT_APP['NORMALIZERS'][{name!r}] is {given!r}, which {problem}.",
                hint="Give a callable from text to text, its dotted path, or None for the value as it is.",
                id="ratelimit_app.E020",
            )


def check_backend(**_: Any) -> Iterable[CheckMessage]:
    """E021, W021: an authentication backend that is asked too late, or that nobody answers for."""
    backends = list(getattr(settings, "AUTHENTICATION_BACKENDS", []))
    if BACKEND in backends[1:]:
        yield Error(
            f"{BACKEND} is not the first of AUTHENTICATION_BACKENDS: those above it look at the password before it.",
            hint=f"Move {BACKEND!r} to the top.",
            id="ratelimit_app.E021",
        )
    if BACKEND in backends and MIDDLEWARE not in getattr(settings, "MIDDLEWARE", []):
        yield Warning(
            f"{BACKEND} is installed without the middleware: a refused login looks like a wrong password, and tries"
            " whose code names no request have no address.",
            hint=f"Add {MIDDLEWARE!r} to MIDDLEWARE.",
            id="ratelimit_app.W021",
        )


def check_attempts_in_database(databases: Iterable[str] | None = None, **_: Any) -> Iterable[CheckMessage]:
    """W020: a rule for tries to authenticate that nobody asks for; run with `--database`."""
    if is_installed():
        return
    for alias in databases or ():
        for row in _enforcing(alias):
            if row["scope"] in {EVERY_TRY, FAILURES}:
                yield Warning(
                    f"The rule {row['name']!r} has the scope {row['scope']!r}, but {BACKEND} is not installed.",
                    hint=f"Put {BACKEND!r} first into AUTHENTICATION_BACKENDS, or give the rule another scope.",
                    id="ratelimit_app.W020",
                )


def check_throttle_alone(**_: Any) -> Iterable[CheckMessage]:
    """W022: limits by address that act only on who has passed DRF's authentication."""
    names = getattr(settings, "REST_FRAMEWORK", {}).get("DEFAULT_THROTTLE_CLASSES", []) if _has_drf() else []
    if MIDDLEWARE not in getattr(settings, "MIDDLEWARE", []) and any(map(_is_rule_throttle, names)):
        yield Warning(
            f"{THROTTLE} works without the middleware, but DRF authenticates before it asks throttles: requests with"
            " bad tokens are answered 401 and never counted.",
            hint=f"Add {MIDDLEWARE!r} to MIDDLEWARE: rules and entries by address then come first.",
            id="ratelimit_app.W022",
        )


CHECKS = (
    check_settings,
    check_cache,
    check_pool,
    check_middleware_order,
    check_proxies,
    check_raise,
    check_throttle,
    check_failure_default,
    check_keys_in_code,
    check_drf_rates,
    check_normalizers,
    check_backend,
    check_throttle_alone,
)


def connect() -> None:
    """Register the checks."""
    for check in CHECKS:
        register(check, Tags.security)
    register(check_timeouts, Tags.security, deploy=True)
    register(check_server, Tags.security, SERVER, deploy=True)
    register(check_keys_in_database, Tags.database)
    register(check_attempts_in_database, Tags.database)
