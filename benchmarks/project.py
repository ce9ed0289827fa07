"""The Django project that is measured: its settings, its rules, and the requests that are made to it."""

from __future__ import annotations

from typing import Any

import django
from django.conf import settings
from django.http import HttpRequest

LIMIT = 5
RATE = f"{LIMIT}/m"
MARKED = frozenset({"ip", "user", "device"})
THREE = (("three-ip", "ip", RATE), ("three-user", "user", "100/m"), ("three-device", "device", "1000/h"))

urlpatterns: list[Any] = []


def set_up(url: str) -> None:
    """Make Django on the server at `url`, with the rules of the scopes `one`, `three` and `1` to `10`."""
    settings.configure(
        SECRET_KEY="for the benchmark only",
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}},
        RATELIMIT_APP={"STORE_TIMEOUT": 5.0, "REFRESH_INTERVAL": 3_600, "KEY_PREFIX": "bench"},
        RATELIMIT_BACKEND="redis",
        RATELIMIT_REDIS={"url": url},
        REST_FRAMEWORK={"DEFAULT_THROTTLE_RATES": {"anon": RATE}},
        INSTALLED_APPS=[],
        ROOT_URLCONF=__name__,
        USE_TZ=True,
    )
    django.setup()
    rows = [{"name": "one-ip", "key": "ip", "rate": RATE, "scope": "one"}]
    rows += [{"name": name, "key": key, "rate": rate, "scope": "three"} for name, key, rate in THREE]
    rows += [
        {"name": f"{total}-{n}", "key": "ip", "rate": "100/m", "scope": str(total)}
        for total in range(1, 11)
        for n in range(total)
    ]
    use_rules(rows)


def use_rules(rows: list[dict[str, str]], marked: frozenset[str] = MARKED) -> None:
    """Decide by these rules, without a database, and look for a mark of each identity of the `marked` kinds."""
    from ratelimit_app import snapshot_cache  # noqa: PLC0415 - useful only once Django is set up
    from ratelimit_app.core.rules import rule_from_dict  # noqa: PLC0415
    from ratelimit_app.core.snapshot import Snapshot  # noqa: PLC0415

    rules = tuple(rule_from_dict(dict(row)) for row in rows)
    snapshot_cache.override(Snapshot(version="bench:1", rules=rules, marked_kinds=marked))


class User:
    """A user as far as a limiter looks at one."""

    def __init__(self, pk: str = "") -> None:
        self.pk = pk
        self.is_authenticated = bool(pk)


def request_of(prefix: str, n: int, *, signed_in: bool) -> HttpRequest:
    """Make the request of client number `n` of a run, from an address of its own."""
    request = HttpRequest()
    request.method, request.path, request.path_info = "GET", "/", "/"
    run = int(prefix.rpartition("r")[2])
    request.META = {"REMOTE_ADDR": f"2001:db8:{run:x}:{n:x}::1"}
    if signed_in:
        request.META["HTTP_X_DEVICE_ID"] = f"{prefix}-{n}"
    request.user = User(f"{prefix}-{n}" if signed_in else "")  # type: ignore[assignment]
    return request
