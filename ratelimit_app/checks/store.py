"""Checks of the Redis that limits are kept in: the alias, and with `check --deploy` the server behind it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning

from ratelimit_app.conf import conf
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.store.aliases import BACKEND, is_cluster, locations
from ratelimit_app.store.inspection import server_facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# The tag of what asks the server, for the doctor.
SERVER = "ratelimit_app.server"
CLUSTER = "ratelimit_app.store.cluster.ClusterConnectionFactory"
OLDEST = (6, 2)
# What runs beside the requests has connections of its own: offences, snapshot, permits, and one who looks.
BESIDE = 4
# Where servers are told how many requests a process handles at a time.
_THREADS = {
    "GUNICORN_CMD_ARGS": r"--threads[= ]+(\d+)",
    "GRANIAN_BLOCKING_THREADS": r"^(\d+)$",
    "UWSGI_THREADS": r"^(\d+)$",
    "WAITRESS_THREADS": r"^(\d+)$",
}


def check_cache(**_: Any) -> Iterable[CheckMessage]:
    """E002: limits that every process would count for itself."""
    cache = getattr(settings, "CACHES", {}).get(conf.cache)
    backend = cache.get("BACKEND") if cache else None
    if conf.enabled and backend != BACKEND:
        found = f"has the backend {backend!r}" if cache else "does not exist"
        yield Error(
            f"The cache alias {conf.cache!r}, named by RATELIMIT_APP['CACHE'], {found}.",
            hint=f"Limits are shared through Redis: give CACHES[{conf.cache!r}] the backend {BACKEND!r}.",
            id="ratelimit_app.E002",
        )


def check_pool(**_: Any) -> Iterable[CheckMessage]:
    """W030: fewer connections than threads that decide at once."""
    most = _option("max_connections")
    threads, told = _threads()
    if _is_ours() and isinstance(most, int) and most < max(threads, BESIDE):
        why = (
            f"{told} has {threads} threads decide at once" if threads > BESIDE else "work beside the requests"
        )
        yield Warning(
            f"The cache alias {conf.cache!r} allows max_connections = {most}, but {why}: a request that finds none"
            " free waits, and is degraded after STORE_TIMEOUT.",
            hint=f"Give it at least {max(threads, BESIDE)}, or leave max_connections out: 100 is redis-py's own.",
            id="ratelimit_app.W030",
        )


def check_timeouts(**_: Any) -> Iterable[CheckMessage]:
    """W031: an alias whose other users wait for a Redis that hangs."""
    missing = [name for name in ("SOCKET_TIMEOUT", "SOCKET_CONNECT_TIMEOUT") if not _has_timeout(name)]
    if _is_ours() and missing:
        yield Warning(
            f"The cache alias {conf.cache!r} has no {' and no '.join(missing)}: the limiter waits for STORE_TIMEOUT,"
            " but cache and sessions wait five seconds or more for a Redis that hangs.",
            hint=f"Write CACHES[{conf.cache!r}]['OPTIONS'] with {', '.join(f'{name!r}: 0.5' for name in missing)}.",
            id="ratelimit_app.W031",
        )


def check_server(**_: Any) -> Iterable[CheckMessage]:
    """E030, E031, W032: a server that is a cluster's, too old, or may drop limits. Asks it; silent when it is away."""
    if not _is_ours():
        return
    try:
        found = server_facts()
    except StoreUnavailable:
        return
    if any(facts.is_cluster for facts in found) and not is_cluster(conf.cache):
        yield Error(
            f"The cache alias {conf.cache!r} leads to one node of a Redis Cluster: the keys of other nodes are refused.",
            hint=f"Give CACHES[{conf.cache!r}]['OPTIONS'] 'CONNECTION_FACTORY': {CLUSTER!r}.",
            id="ratelimit_app.E030",
        )
    for version in sorted({facts.version for facts in found if facts.version and facts.version < OLDEST}):
        yield Error(
            f"The server of the cache alias {conf.cache!r} is Redis {'.'.join(map(str, version))}.",
            hint="Redis 6.2 is the oldest that is supported.",
            id="ratelimit_app.E031",
        )
    for policy in sorted({facts.policy for facts in found if facts.policy != "noeviction"}):
        yield Warning(
            f"The server of the cache alias {conf.cache!r} has maxmemory-policy {policy!r}: when its memory is full it"
            " forgets limits and bans that still hold.",
            hint="Give limits a server of their own with maxmemory-policy 'noeviction'.",
            id="ratelimit_app.W032",
        )


def _is_ours() -> bool:
    cache = getattr(settings, "CACHES", {}).get(conf.cache)
    return bool(conf.enabled and cache and cache.get("BACKEND") == BACKEND)


def _option(name: str) -> Any:
    """Give what redis-py is told by the options or by the URL, None: nothing."""
    if not _is_ours():
        return None
    pool = _given().get("CONNECTION_POOL_KWARGS") or {}
    for url in locations(conf.cache)[:1]:
        for text in parse_qs(urlsplit(url).query).get(name, []):
            return int(text) if text.isdigit() else text
    return pool.get(name)


def _has_timeout(name: str) -> bool:
    return bool(_given().get(name) or _option(name.lower()))


def _given() -> dict[str, Any]:
    cache = getattr(settings, "CACHES", {}).get(conf.cache) or {}
    return cache.get("OPTIONS") or {}


def _threads() -> tuple[int, str]:
    """Give how many threads of a process decide at once, and who says so; 0: nobody does."""
    return max(_told(), default=(0, ""))


def _told() -> Iterator[tuple[int, str]]:
    for name, pattern in _THREADS.items():
        if found := re.search(pattern, os.environ.get(name, "")):
            yield int(found[1]), name
