"""
The Redis client of a cache alias, as the limiter needs it.

django-redis keys its pools by URL alone and redis-py's timeouts are not a limiter's, so the alias's location and
options are given to the alias's own connection factory class with a pool registry and timeouts of ours.
"""

from __future__ import annotations

from typing import Any, cast

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from ratelimit_app.conf import conf
from ratelimit_app.store.cluster import ClusterConnectionFactory

BACKEND = "django_redis.cache.RedisCache"
FACTORY = "django_redis.pool.ConnectionFactory"


def connect(alias: str) -> Any:
    """
    Make the client of an alias, with the limiter's timeouts and no retries.

    That of a cluster asks it for its slots: this raises what redis-py raises then. Raises ImproperlyConfigured.
    """
    factory = factory_of(alias)
    cache: Any = settings.CACHES[alias]
    given: dict[str, Any] = dict(cache.get("OPTIONS") or {})
    of_cluster = issubclass(factory, ClusterConnectionFactory)
    own: Any = type("LimiterConnectionFactory", (factory,), {"_pools": {}, "_clients": {}})
    urls = locations(alias)
    options = _options(given)
    if of_cluster:
        for reading in ("read_from_replicas", "load_balancing_strategy"):
            options["CONNECTION_POOL_KWARGS"].pop(reading, None)
    made = own(options).connect("|".join(urls) if of_cluster else urls[0])
    if of_cluster:
        return made
    pool = made.connection_pool
    # Once more: what the URL says (`?socket_timeout=5`) wins over the options. Connections take none of the pool's.
    pool.connection_kwargs.update(_own())
    if hasattr(pool, "sentinel_manager"):
        # A replica decides by what it has been told so far, and cannot charge.
        pool.is_master = pool.proxy.is_master = True
    return made


def is_cluster(alias: str) -> bool:
    """Whether an alias leads to a cluster; what is misconfigured does not."""
    try:
        return issubclass(factory_of(alias), ClusterConnectionFactory)
    except (ImproperlyConfigured, ImportError, TypeError):
        return False


def factory_of(alias: str) -> type:
    """Give the connection factory class of an alias. Raises ImproperlyConfigured, ImportError."""
    cache: Any = settings.CACHES.get(alias)
    if cache is None or cache.get("BACKEND") != BACKEND:
        msg = f"CACHES[{alias!r}] is no {BACKEND}"
        raise ImproperlyConfigured(msg)
    path = (cache.get("OPTIONS") or {}).get("CONNECTION_FACTORY")
    path = path or getattr(settings, "DJANGO_REDIS_CONNECTION_FACTORY", FACTORY)
    return cast("type", import_string(str(path)))


def locations(alias: str) -> list[str]:
    """Give the URLs of an alias; the first one is where django-redis writes."""
    location: Any = settings.CACHES[alias]["LOCATION"]
    return location.split(",") if isinstance(location, str) else list(location)


def _own() -> dict[str, Any]:
    """Give what all connections of the limiter have, whatever the alias says."""
    return {
        **_waits(),
        "decode_responses": False,
        # Two round trips less for each connection, and two rights less for its user.
        "driver_info": None,
        # redis-py refuses these notices with its RESP2 parser, and a script call has no use for them.
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }


def _waits() -> dict[str, Any]:
    timeout = conf.store_timeout
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
    }


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Give the alias's options with the limiter's timeouts, for its servers and for their sentinels."""
    options = {**given, "REDIS_CLIENT_KWARGS": {}}
    options["CONNECTION_POOL_KWARGS"] = {**(given.get("CONNECTION_POOL_KWARGS") or {}), **_own()}
    options["SOCKET_TIMEOUT"] = options["SOCKET_CONNECT_TIMEOUT"] = conf.store_timeout
    if given.get("SENTINELS"):
        # Sentinels are asked in turn: one that hangs costs one call its budget, and is asked last from then on.
        options["SENTINEL_KWARGS"] = {**(given.get("SENTINEL_KWARGS") or {}), **_waits()}
    return options
