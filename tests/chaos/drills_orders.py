"""Redis answers, but not what was asked for: each fault comes and goes while the same crowd asks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.chaos.findings import ANSWERED, Finding, banned_within, exact_again, statuses
from tests.chaos.ground import free_port, run
from tests.chaos.shop import Shop
from tests.chaos.shoppers import VISITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.chaos.ground import Ground
    from tests.chaos.shoppers import Note

BANS_BACK = 2.0
REGULARS = {client for _, client in VISITS}
LOGS = "*{ip:10.0.*"
PASSERS_BY = 1 << 24


class Fault(NamedTuple):
    """
    What is done to Redis, and undone.

    `degrades`: the site decides some requests without Redis between the two. None: it may.
    """

    name: str
    begin: Callable[[Any], Any]
    finish: Callable[[Any], Any]
    degrades: bool | None = True


def _flush_scripts(admin: Any) -> None:
    admin.script_flush()


def _demote(admin: Any) -> None:
    admin.replicaof("127.0.0.1", free_port())


def _spoil(admin: Any) -> None:
    """Put something else where the logs are, of another kind for each."""
    for number, key in enumerate(sorted(admin.scan_iter(match=LOGS))):
        admin.delete(key)
        (admin.set, admin.sadd, admin.rpush)[number % 3](key, "spoiled")


def _press(admin: Any) -> None:
    """Fill the memory of a server that may forget any key, until nothing of ours is left."""
    used = int(admin.info("memory")["used_memory"])
    admin.config_set("maxmemory", used + 4_000_000)
    admin.config_set("maxmemory-policy", "allkeys-random")
    for start in range(0, 20_000, 500):
        admin.mset({f"junk:{number}": "x" * 1_000 for number in range(start, start + 500)})


def _relieve(admin: Any) -> None:
    admin.config_set("maxmemory", 0)
    admin.config_set("maxmemory-policy", "noeviction")
    admin.delete(*(f"junk:{number}" for number in range(20_000)))


FAULTS = (
    Fault("SCRIPT FLUSH", _flush_scripts, _flush_scripts, degrades=False),
    Fault("WRONGTYPE", _spoil, lambda _: None, degrades=False),
    Fault("READONLY", _demote, lambda admin: admin.replicaof("NO", "ONE")),
    Fault(
        "OOM", lambda admin: admin.config_set("maxmemory", 1), lambda admin: admin.config_set("maxmemory", 0)
    ),
    Fault(
        "NOPERM",
        lambda admin: admin.execute_command("ACL", "SETUSER", "default", "-evalsha", "-eval"),
        lambda admin: admin.execute_command("ACL", "SETUSER", "default", "+@all"),
    ),
    Fault("eviction", _press, _relieve, degrades=None),
)


class Spell(NamedTuple):
    """When a fault was there, in seconds since the epoch, and how many lines it was worth."""

    fault: Fault
    began: float
    ended: float
    over: float
    lines: int


def orders(ground: Ground) -> Iterator[Finding]:
    """SCRIPT FLUSH; wrong types; READONLY after a demotion; OOM; an ACL that forbids; eviction."""
    shop, spells = Shop(ground), list[Spell]()
    # Without memory Redis still serves those whose logs are there; others come as well.
    with shop.crowd(passers_by=PASSERS_BY) as crowd:
        time.sleep(2)
        for fault in FAULTS:
            before = ground.log_lines("site", "ratelimit.store_degraded")
            began = time.time()
            fault.begin(ground.redis.admin)
            time.sleep(ground.seconds(4, 1.5))
            fault.finish(ground.redis.admin)
            ended = time.time()
            if fault.name == "eviction":
                run(ground, ["ratelimit_sync"])  # as the schedule does every 30 s: a mark alone was evicted
            time.sleep(ground.seconds(6, 4))
            lines = ground.log_lines("site", "ratelimit.store_degraded") - before
            spells.append(Spell(fault, began, ended, time.time(), lines))
    for spell in spells:
        for finding in _judge(
            spell, [note for note in crowd.notes if spell.began <= note.began < spell.over]
        ):
            yield Finding(f"{spell.fault.name}: {finding.asked}", finding.seen, finding.held, finding.timed)


def _judge(spell: Spell, notes: list[Note]) -> Iterator[Finding]:
    yield from statuses(notes)
    yield banned_within(notes, spell.ended, BANS_BACK)
    yield from exact_again([note for note in notes if note.client in REGULARS], spell.ended, until=spell.over)
    degraded = sum(note.degraded for note in notes if note.began < spell.over - ANSWERED)
    if spell.fault.degrades:
        yield Finding("the fault is felt", f"{degraded:,} decisions without Redis", degraded > 0)
    if spell.fault.degrades is not False:
        yield Finding(
            "at most one log line for each of two processes", str(spell.lines), spell.lines <= 2, timed=True
        )
    else:
        yield Finding("decided by Redis throughout", f"{degraded:,} without", not degraded, timed=True)
