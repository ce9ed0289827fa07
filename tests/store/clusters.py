"""A cluster as people run it: three primaries with a replica each, as child processes on loopback."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from ratelimit_app.core.slots import SLOTS, slot_of
from tests.store.servers import HOST, Server, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable

PRIMARIES = 3
OPTIONS = (
    "cluster-enabled yes",
    "cluster-node-timeout 2000",
    "cluster-require-full-coverage no",
    "repl-diskless-sync-delay 0",
)


class Cluster:
    """Servers by number: `servers[:3]` begin as primaries, `servers[n + 3]` as the replica of `servers[n]`."""

    def __init__(self, replicas: int = 1) -> None:
        self.servers = [Server(*OPTIONS) for _ in range(PRIMARIES * (1 + replicas))]
        edges = [SLOTS * n // PRIMARIES for n in range(PRIMARIES + 1)]
        for number, server in enumerate(self.servers[:PRIMARIES]):
            server.ask("CLUSTER", "ADDSLOTS", *range(edges[number], edges[number + 1]))
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server in self.servers[1:]:
            self.servers[0].ask("CLUSTER", "MEET", HOST, server.port)
        wait_until(lambda: all(map(self._knows_all, self.servers)), "the servers to meet")
        for number, server in enumerate(self.servers[PRIMARIES:]):
            server.ask("CLUSTER", "REPLICATE", self.name(self.servers[number]))
        wait_until(self.is_whole, "the cluster to be whole")

    def _knows_all(self, server: Server) -> bool:
        return f"cluster_known_nodes:{len(self.servers)}\r" in server.ask("CLUSTER", "INFO")

    def is_whole(self) -> bool:
        """Whether every server serves, every replica follows, and none takes itself for what it was before."""
        return len(list(self.primaries())) == PRIMARIES and all(
            "cluster_state:ok" in server.ask("CLUSTER", "INFO") and _follows(server)
            for server in self.servers
        )

    @staticmethod
    def name(server: Server) -> str:
        """Give the id that a server has in the cluster."""
        return str(server.ask("CLUSTER", "MYID"))

    @property
    def location(self) -> str:
        """Where the alias leads: two of the servers."""
        return "|".join(f"redis://{HOST}:{server.port}" for server in self.servers[:2])

    def owner(self, key: bytes) -> Server:
        """Give the server that has a key's slot, as the servers say that are alive."""
        for first, last, (_, port, *_), *_ in self._alive().ask_raw("CLUSTER", "SLOTS"):
            if first <= slot_of(key) <= last:
                return next(one for one in self.servers if one.port == port)
        message = f"nobody has the slot of {key!r}"
        raise LookupError(message)

    def _alive(self) -> Server:
        return next(server for server in self.servers if server.is_running)

    def move(self, key: bytes, target: Server, *, finish: bool = True) -> None:
        """Move a key's slot to another server, keys first; unfinished, keys stay and are asked for at both."""
        slot, source = slot_of(key), self.owner(key)
        names = self.name(source), self.name(target)
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", names[0])
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", names[1])
        if finish:
            self.finish(slot, source, target)

    def finish(self, slot: int, source: Server, target: Server) -> None:
        """End the move of a slot."""
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.ask("MIGRATE", HOST, target.port, "", 0, 5_000, "KEYS", *keys)
        for server in (target, source, *self.primaries()):
            server.ask("CLUSTER", "SETSLOT", slot, "NODE", self.name(target))

    def primaries(self) -> Iterable[Server]:
        """Give those that serve slots."""
        return [one for one in self.servers if one.is_running and one.ask_raw("ROLE")[0] == b"master"]

    def flush(self) -> None:
        """Empty all of them."""
        for server in self.primaries():
            server.ask("FLUSHALL")

    def end(self) -> None:
        """End all processes."""
        for server in self.servers:
            server.kill()
            shutil.rmtree(server.home)


def _follows(server: Server) -> bool:
    role: Any = server.ask_raw("ROLE")
    return bool(role[0] == b"master" or role[3] == b"connected")
