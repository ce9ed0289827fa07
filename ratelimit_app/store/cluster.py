"""Redis Cluster for django-redis, which has no client for it: a connection factory for any alias."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django_redis.pool import ConnectionFactory
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import SSLConnection, parse_url
from redis.exceptions import MovedError

from ratelimit_app.core.slots import slot_of

if TYPE_CHECKING:
    from redis import ConnectionPool, Redis

DEFAULT_PORT = 6379
_node: Any = ClusterNode
LOOK_AGAIN = 0.1  # seconds between two looks at the slots


class ClusterClient(RedisCluster):
    """redis-py's client of a cluster, whose commands mean the same as on one server wherever django-redis uses them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Should all servers have new addresses, those that the alias names are the only way back.
        self._named = [(node.host, node.port) for node in kwargs.get("startup_nodes", ())]
        super().__init__(*args, **kwargs)
        self._doubts, self._looking, self._looked = threading.Lock(), False, 0.0

    def doubt(self) -> None:
        """Ask in a thread who has which slots now, unless somebody is at it or has just done so."""
        with self._doubts:
            if self._looking or time.monotonic() - self._looked < LOOK_AGAIN:
                return
            self._looking = True
        threading.Thread(target=self._look, name="ratelimit_app.slots", daemon=True).start()

    def _look(self) -> None:
        # With no node that answers, what was known stays; whoever calls finds out.
        with suppress(Exception):
            self.nodes_manager.initialize(additional_startup_nodes_info=self._named)
        with self._doubts:
            self._looking, self._looked = False, time.monotonic()

    def has_moved(self, slot: int, name: str) -> None:
        """Note which server has a slot now, as another one says, and have all slots asked for."""
        self.nodes_manager.move_slot(MovedError(f"{slot} {name}"))
        self.doubt()

    def name_of(self, slot: int) -> str:
        """Give the `host:port` of a slot's primary. Raises SlotNotCoveredError."""
        return str(self.nodes_manager.get_node_from_slot(slot).name)

    def mget(self, keys: Any, *args: Any) -> Any:
        """Give the values of keys in any slots. They are not read at one instant."""
        return self.mget_nonatomic(keys, *args)

    def keys(self, pattern: Any = "*", **kwargs: Any) -> Any:
        """Give the keys of all servers; redis-py asks one of them."""
        return super().keys(pattern, **{"target_nodes": RedisCluster.PRIMARIES, **kwargs})

    def dbsize(self, **kwargs: Any) -> Any:
        """Count the keys of all servers; redis-py asks one of them."""
        return super().dbsize(**{"target_nodes": RedisCluster.PRIMARIES, **kwargs})

    def owner(self, key: bytes | str) -> Redis:
        """Give the client of the primary that has a key's slot. Raises what redis-py raises."""
        raw = key.encode() if isinstance(key, str) else key
        return self.get_redis_connection(self.nodes_manager.get_node_from_slot(slot_of(raw)))

    def knows(self, name: str) -> bool:
        """Whether a server is one of the cluster's, by its `host:port`."""
        return name in self.nodes_manager.nodes_cache

    def primaries(self) -> list[Redis]:
        """Give a client of each primary."""
        nodes: Any = self.nodes_manager.get_nodes_by_server_type("primary")
        return [self.get_redis_connection(node) for node in nodes]

    def pool_of(self, name: str) -> ConnectionPool:
        """Give the pool of a server by its `host:port`, of one that was heard of a moment ago too."""
        node: Any = self.nodes_manager.get_node(node_name=name)
        if node is None:
            host, _, port = name.rpartition(":")
            node = _node(host, int(port))
        return self.get_redis_connection(node).connection_pool


class ClusterConnectionFactory(ConnectionFactory):  # type: ignore[misc]
    """
    Connect an alias to a cluster: `"OPTIONS": {"CONNECTION_FACTORY": "ratelimit_app.store.cluster.…"}`.

    The URL is of one node or of several, joined by `|`: whichever answers first tells of all others. Options are
    those of django-redis; a process has one client for each URL.
    """

    _clients: dict[str, ClusterClient] = {}
    _making = threading.Lock()

    def connect(self, url: str) -> ClusterClient:
        """Give the client of a URL. Raises ImproperlyConfigured, or what redis-py raises when no node answers."""
        found = self._clients.get(url)
        if found is None:
            with self._making:
                found = self._clients.get(url)
                if found is None:
                    found = self._clients[url] = self._make(url)
        return found

    def disconnect(self, connection: Any) -> None:
        """Close the idle connections of a client."""
        connection.disconnect_connection_pools()

    @classmethod
    def forget(cls) -> None:
        """Begin without clients: this process is a fork, and a thread that is not here may hold their locks."""
        cls._clients, cls._making = {}, threading.Lock()

    def _make(self, url: str) -> ClusterClient:
        urls = [parse_url(each) for each in url.split("|")]  # type: ignore[no-untyped-call]
        for each in urls:
            if each.get("db"):
                msg = f"a cluster has the database 0 only, and the location {url!r} names {each['db']}"
                raise ImproperlyConfigured(msg)
            if "path" in each:
                msg = f"a cluster is reached by names and ports, and the location {url!r} is a socket"
                raise ImproperlyConfigured(msg)
        nodes = [_node(each.get("host", "localhost"), each.get("port", DEFAULT_PORT)) for each in urls]
        params = self.make_connection_params("")
        of_url = {name: value for name, value in urls[0].items() if name not in ("host", "port", "db")}
        if of_url.pop("connection_class", None) is SSLConnection:
            of_url["ssl"] = True
        given = {name: value for name, value in params.items() if name not in ("url", "parser_class")}
        # While slots have no server, those that have one are of use.
        given |= {"require_full_coverage": False, **of_url, **self.pool_cls_kwargs}
        return ClusterClient(startup_nodes=nodes, **given)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ClusterConnectionFactory.forget)
