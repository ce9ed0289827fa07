"""Sentinels as people run them: two servers and three sentinels that watch them, as child processes on loopback."""

from __future__ import annotations

import shutil

from tests.store.servers import HOST, Server, wait_until


class Watched:
    """Two servers, one of which follows the other, and three sentinels that watch them."""

    def __init__(self) -> None:
        self.servers = [Server("repl-diskless-sync-delay 0") for _ in range(2)]
        first, second = self.servers
        second.ask("REPLICAOF", HOST, first.port)
        watch = (
            f"sentinel monitor shop {HOST} {first.port} 2",
            "sentinel down-after-milliseconds shop 1500",
            "sentinel failover-timeout shop 1000",
        )
        self.sentinels = [Server(*watch, arguments=("--sentinel",)) for _ in range(3)]
        wait_until(self.is_whole, "the sentinels to meet and the replica to follow")

    def is_whole(self) -> bool:
        """Whether a failover could begin now."""
        with self.replica.admin() as one:
            follows = one.info("replication").get("master_link_status") == "up"
        return follows and all(map(_knows_the_others, self.sentinels))

    @property
    def primary(self) -> Server:
        """Who is the primary by now."""
        with self.sentinels[0].admin() as one:
            port = int(one.sentinel_get_master_addr_by_name("shop")[1])
        return next(one for one in self.servers if one.port == port)

    @property
    def replica(self) -> Server:
        """The other one."""
        return self.servers[1 - self.servers.index(self.primary)]

    def end(self) -> None:
        """End all processes."""
        for one in [*self.sentinels, *self.servers]:
            one.kill()
            shutil.rmtree(one.home)


def _knows_the_others(sentinel: Server) -> bool:
    with sentinel.admin() as one:
        known = one.sentinel_masters()["shop"]
    return bool(known["num-other-sentinels"] == 2 and known["num-slaves"] == 1 and known["flags"] == "master")
