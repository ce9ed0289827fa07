"""What the servers behind an alias say of themselves: for checks and for the doctor, never for requests."""

from __future__ import annotations

from typing import Any, NamedTuple

from ratelimit_app.store.connection import client, unavailable


class ServerFacts(NamedTuple):
    """A server as its INFO tells; `version`: of Redis, or the one that it is compatible with."""

    version: tuple[int, ...]
    policy: str
    is_cluster: bool


def server_facts(alias: str | None = None) -> list[ServerFacts]:
    """Ask each primary of an alias (default: `CACHE`). Raises StoreUnavailable."""
    with unavailable():
        made: Any = client(alias)
        return [_read(made.info())]


def _read(info: dict[str, Any]) -> ServerFacts:
    version = str(info.get("redis_version", "")).split(".")
    return ServerFacts(
        version=tuple(int(part) for part in version if part.isdigit()),
        policy=str(info.get("maxmemory_policy", "noeviction")),
        is_cluster=bool(int(info.get("cluster_enabled", 0))),
    )
