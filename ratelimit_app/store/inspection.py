"""What the servers behind an alias say of themselves: for checks and for the doctor, never for requests."""

from __future__ import annotations

from typing import Any, NamedTuple

from ratelimit_app.store.cluster import ClusterClient
from ratelimit_app.store.connection import client, unavailable


class ServerFacts(NamedTuple):
    """
    A server as its INFO tells.

    `version`: of Redis, or the one that it is compatible with. `policy`: what it does when its memory is full;
    `noeviction` without a bound of memory.
    """

    version: tuple[int, ...]
    policy: str
    is_cluster: bool


def server_facts(alias: str | None = None) -> list[ServerFacts]:
    """Ask each primary of an alias (default: `CACHE`). Raises StoreUnavailable."""
    with unavailable():
        made: Any = client(alias)
        each = made.primaries() if isinstance(made, ClusterClient) else [made]
        return [_read(one.info("everything")) for one in each]


def _read(info: dict[str, Any]) -> ServerFacts:
    version = str(info.get("redis_version", "")).split(".")
    return ServerFacts(
        version=tuple(int(part) for part in version if part.isdigit()),
        policy=str(info.get("maxmemory_policy", "")) if info.get("maxmemory") else "noeviction",
        is_cluster=bool(int(info.get("cluster_enabled", 0))),
    )
