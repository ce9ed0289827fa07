"""Sentinels promote a replica; a cluster loses a primary, or moves a slot."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ratelimit_app.core.keys import Keys
from ratelimit_app.core.slots import slot_of
from tests.chaos.drills_outage import BANS_BACK, GRACE
from tests.chaos.findings import Finding, at_most, banned_within, exact_again, exactness, statuses
from tests.chaos.ground import BUDGET, COOLDOWN
from tests.chaos.shop import Shop
from tests.chaos.shoppers import BANNED, VISITS
from tests.store.clusters import Cluster
from tests.store.sentinels import Watched
from tests.store.servers import HOST, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.chaos.ground import Ground
    from tests.chaos.shoppers import Note
    from tests.store.servers import Server

KEYS = Keys("slots are of identities alone", b"")
CLIENTS = sorted({client for _, client in VISITS if client != BANNED})
FACTORY = "ratelimit_app.store.cluster.ClusterConnectionFactory"


def sentinel(ground: Ground) -> Iterator[Finding]:
    """The primary is killed with -9, and sentinels promote its replica."""
    watched = Watched()
    try:
        options = {
            "CLIENT_CLASS": "django_redis.client.SentinelClient",
            "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
            "SENTINELS": [(HOST, one.port) for one in watched.sentinels],
        }
        ground.alias = {"LOCATION": "redis://shop/0", "OPTIONS": options}
        shop, heir = Shop(ground), watched.replica
        with shop.crowd() as crowd:
            time.sleep(ground.seconds(5, 2))
            watched.primary.kill()
            promoted = _when(lambda: watched.primary is heir, "the sentinels to name the replica")
            time.sleep(ground.seconds(8, 5))
    finally:
        watched.end()
    yield from statuses(crowd.notes)
    yield _back(crowd.notes, promoted)
    yield banned_within(crowd.notes, promoted, BANS_BACK)
    yield from exact_again(crowd.notes, promoted)
    for word in ("store_degraded", "store_recovered"):
        lines = ground.log_lines("site", f"ratelimit.{word}")
        yield Finding(
            f"one log line of {word} for each of two processes", f"{lines}", 1 <= lines <= 2, timed=lines > 2
        )


def cluster(ground: Ground) -> Iterator[Finding]:
    """One of three primaries of a cluster is killed with -9, and its replica takes over."""
    with _cluster(ground) as made:
        victim, lived_there = _victim(made)
        heir = made.servers[made.servers.index(victim) + 3]
        shop = Shop(ground)
        with shop.crowd() as crowd:
            time.sleep(ground.seconds(5, 2))
            killed = time.time()
            victim.kill()
            promoted = _when(lambda: heir.ask_raw("ROLE")[0] == b"master", "a replica to be promoted")
            time.sleep(ground.seconds(8, 5))
    there = [note for note in crowd.notes if note.client in lived_there]
    elsewhere = [note for note in crowd.notes if note.client not in lived_there]
    yield from statuses(crowd.notes)
    yield _degraded("nobody whose keys live elsewhere is decided without Redis", elsewhere)
    yield from _named("elsewhere", exactness(elsewhere, 0, killed - 1))
    yield Finding(
        "the rest follow their policy meanwhile",
        f"{sum(note.degraded for note in there):,} decisions",
        any(note.degraded for note in there),
    )
    yield _back(there, promoted)
    yield from _named("there", exact_again(there, promoted))


def moved(ground: Ground) -> Iterator[Finding]:
    """A slot of a cluster is moved to another server, under load: MOVED and ASK."""
    with _cluster(ground) as made:
        shop = Shop(ground)
        with shop.crowd() as crowd:
            time.sleep(ground.seconds(5, 2))
            began = time.time()
            for client in CLIENTS:
                key = KEYS.mark(f"ip:{client}")
                source = made.owner(key)
                target = next(one for one in made.primaries() if one is not source)
                made.move(key, target, finish=False)
                time.sleep(ground.seconds(2, 0.5))
                made.finish(slot_of(key), source, target)
            time.sleep(ground.seconds(8, 4))
    yield from statuses(crowd.notes)
    yield _degraded(f"{len(CLIENTS)} slots on their way, and nobody is decided without Redis", crowd.notes)
    yield from exactness(crowd.notes, 0, began - 1)


@contextmanager
def _cluster(ground: Ground) -> Iterator[Cluster]:
    made = Cluster()
    try:
        ground.alias = {"LOCATION": made.location, "OPTIONS": {"CONNECTION_FACTORY": FACTORY}}
        yield made
    finally:
        made.end()


def _victim(made: Cluster) -> tuple[Server, set[str]]:
    """Give a primary that keeps windows of some and nothing that all share, and whose they are."""
    shared = made.owner(KEYS.snapshot.encode())
    owners = {client: made.owner(KEYS.mark(f"ip:{client}")) for client in CLIENTS}
    victim = next(one for one in owners.values() if one is not shared)
    return victim, {client for client, owner in owners.items() if owner is victim}


def _when(holds: Callable[[], bool], what: str) -> float:
    """Wait until something holds, and give when (seconds since the epoch)."""
    wait_until(holds, what)
    return time.time()


def _back(notes: list[Note], promoted: float) -> Finding:
    last = max((note.began + note.took for note in notes if note.degraded), default=promoted)
    return at_most(
        "decisions by Redis again after the promotion", max(last - promoted, 0.0), COOLDOWN + BUDGET + GRACE
    )


def _degraded(asked: str, notes: list[Note]) -> Finding:
    count = sum(note.degraded for note in notes)
    return Finding(asked, f"{count:,} of {len(notes):,}", bool(notes) and not count, timed=True)


def _named(name: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    for one in findings:
        yield Finding(f"{name}: {one.asked}", one.seen, one.held, one.timed)
