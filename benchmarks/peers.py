"""
Other limiters, each as its documentation has it used, on the same server.

None of them is required: one that is not installed, or that cannot work here, is skipped with a line saying so.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import redis

from benchmarks.contenders import EXACT, ONE, REQUEST, THREE, each, name_of, plain_request
from benchmarks.project import LIMIT, RATE
from benchmarks.rounds import Contender

FIXED = "fixed window: up to twice the limit"
COUNTER = "two counters: approximate"
Decide = Callable[[Any], bool]
OF_THREE = ((RATE, "a"), ("100/m", "b"), ("1000/h", "c"))


def peers(url: str) -> tuple[list[Contender], dict[str, str]]:
    """Give the contenders of every peer that is there, and for the others why they are not."""
    found: list[Contender] = []
    skipped: dict[str, str] = {}
    for package, build in BUILDERS.items():
        try:
            version(package)
            found += build(url)
        except PackageNotFoundError:
            skipped[package] = "not installed"
        except Exception as error:  # noqa: BLE001 - whatever a peer does must not end the run
            skipped[package] = f"{type(error).__name__}: {error}"
    return found, skipped


def versions() -> dict[str, str]:
    """Give the versions of the peers that are installed."""
    there = {}
    for package in BUILDERS:
        try:
            there[package] = version(package)
        except PackageNotFoundError:
            continue
    return there


def _rows(
    name: str, work: str, limiter: Callable[[str, str], Decide], *, of_requests: bool
) -> list[Contender]:
    """Give a peer's one rule, and its three rules one after the other; `limiter` takes a rate and a group."""
    one = limiter(RATE, "bench")
    three = [limiter(rate, group) for rate, group in OF_THREE]
    group, make = (REQUEST, plain_request) if of_requests else (ONE, name_of)
    return [
        Contender(name=name, group=group, work=work, make=make, decide=each(one)),
        Contender(
            name=f"{name}, three times",
            group=THREE,
            work=work,
            make=make,
            decide=each(lambda thing: all(decide(thing) for decide in three)),
        ),
    ]


def _limits(url: str) -> list[Contender]:
    limits, storage = import_module("limits"), import_module("limits.storage")
    address = url.replace("unix://", "redis+unix://")
    moving = limits.strategies.MovingWindowRateLimiter(storage.storage_from_string(address))

    def limiter(rate: str, group: str) -> Decide:
        count, unit = rate.split("/")
        item = limits.parse(f"{count}/{'minute' if unit == 'm' else 'hour'}")
        return lambda name: bool(moving.hit(item, group, name))

    return _rows("limits moving window", EXACT, limiter, of_requests=False)


def _throttled(url: str) -> list[Contender]:
    throttled = import_module("throttled")
    store = throttled.RedisStore(server=url)

    def using(algorithm: str) -> Callable[[str, str], Decide]:
        def limiter(rate: str, group: str) -> Decide:
            quota = f"{rate} burst {LIMIT}" if algorithm == "gcra" else rate
            throttle = throttled.Throttled(using=algorithm, quota=quota, store=store, key_prefix=group)
            return lambda name: not throttle.limit(name).limited

        return limiter

    rows = _rows("throttled-py sliding window", COUNTER, using("sliding_window"), of_requests=False)
    return rows + _rows("throttled-py GCRA", "one stamp: a smooth rate", using("gcra"), of_requests=False)[:1]


def _pyrate(url: str) -> list[Contender]:
    pyrate = import_module("pyrate_limiter")
    client = redis.Redis.from_url(url)
    lua = import_module("pyrate_limiter.buckets.redis_bucket").LuaScript.PUT_ITEM
    sha = client.script_load(lua)
    units = {"m": pyrate.Duration.MINUTE, "h": pyrate.Duration.HOUR}

    def limiter(rate: str, group: str) -> Decide:
        count, unit = rate.split("/")
        rates = [pyrate.Rate(int(count), units[unit])]

        class Buckets(pyrate.BucketFactory):  # type: ignore[misc, name-defined]
            def wrap_item(self, name: str, weight: int = 1) -> Any:
                return pyrate.RateItem(name, clock.now(), weight=weight)

            def get(self, item: Any) -> Any:
                return pyrate.RedisBucket(rates, client, f"{group}:{item.name}", sha)

        clock = pyrate.RedisBucket(rates, client, group, sha)
        made = pyrate.Limiter(Buckets())
        return lambda name: bool(made.try_acquire(name, blocking=False))

    return _rows("PyrateLimiter", "log, no expiry of keys", limiter, of_requests=False)


def _django_ratelimit(_: str) -> list[Contender]:
    core = import_module("django_ratelimit.core")

    def limiter(rate: str, group: str) -> Decide:
        return lambda request: (
            not core.is_ratelimited(request, group=group, key="ip", rate=rate, increment=True)
        )

    return _rows("django-ratelimit", FIXED, limiter, of_requests=True)


def _django_smart_ratelimit(url: str) -> list[Contender]:
    backend = import_module("django_smart_ratelimit.backends.redis_backend").RedisBackend
    # Its own pool is given host and port beside the address, which a unix socket's connections refuse.
    pool = redis.ConnectionPool.from_url(url, decode_responses=True)
    backend._get_or_create_pool = classmethod(lambda *_, **__: pool)  # noqa: SLF001
    smart, http = import_module("django_smart_ratelimit"), import_module("django.http")
    passed = http.HttpResponse()

    def limiter(rate: str, group: str) -> Decide:
        view = smart.rate_limit(
            key=lambda request, *_, **__: f"{group}:{request.META['REMOTE_ADDR']}",
            rate=rate,
            algorithm="sliding_window",
        )(lambda _: passed)
        return lambda request: view(request).status_code == http.HttpResponse.status_code

    return _rows("django-smart-ratelimit", "log, counts denied tries", limiter, of_requests=True)


def _drf(_: str) -> list[Contender]:
    throttling = import_module("rest_framework.throttling")

    def limiter(rate: str, group: str) -> Decide:
        kind = type("Throttle", (throttling.AnonRateThrottle,), {"rate": rate, "scope": group})
        return lambda request: bool(kind().allow_request(request, None))

    return _rows("DRF AnonRateThrottle", "log, not atomic", limiter, of_requests=True)


BUILDERS: dict[str, Callable[[str], list[Contender]]] = {
    "limits": _limits,
    "throttled-py": _throttled,
    "pyrate-limiter": _pyrate,
    "django-ratelimit": _django_ratelimit,
    "django-smart-ratelimit": _django_smart_ratelimit,
    "djangorestframework": _drf,
}
