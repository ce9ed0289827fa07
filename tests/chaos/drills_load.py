"""Masses: a million identities in a minute, and a million decisions that are judged one by one."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tests.chaos.drinker import ANSWER
from tests.chaos.findings import Finding
from tests.chaos.ground import end, hear, tell, wait_until
from tests.integration.judging import Try, faults

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.chaos.ground import Ground

WINDOW_S = 5
LIMIT = 20
MEGABYTE = 1_000_000
UNHURRIED = 2.0  # seconds: 32 threads on a few cores wait for each other, not for Redis


def million(ground: Ground) -> Iterator[Finding]:
    """A million distinct identities: Redis and the processes have their memory back."""
    number, drinkers = int(ground.seconds(1_000_000, 40_000)), 2
    share = number // drinkers
    programs = [
        ground.program(
            "drinker", str(share), str(share), str(place * share), f"5/{WINDOW_S}s", "", "4", budget=UNHURRIED
        )
        for place in range(drinkers)
    ]
    for program in programs:
        hear(program)
    before = _memory(ground)
    for program in programs:
        tell(program)
    said = [hear(program) for program in programs]
    at_end = _memory(ground)
    emptied = wait_until(
        lambda: not ground.redis.admin.dbsize() or _only_lasting(ground), "the windows to end", 60
    )
    after = _memory(ground)
    end(*programs)
    took = max(row[0] for row in said)
    without = sum(row[3] for row in said)
    yield Finding(
        f"Redis: {number:,} identities in {took:.0f} s, none decided without it",
        f"{number / took:,.0f} a second, {without:,} without",
        without <= number // 1_000,
        timed=True,
    )
    yield Finding(
        f"Redis has its memory back after the window of {WINDOW_S} s",
        f"{before / MEGABYTE:.1f} MB before, {at_end / MEGABYTE:.1f} MB at the end, {after / MEGABYTE:.1f} MB "
        f"{emptied:.0f} s later",
        after - before < max((at_end - before) / 10, MEGABYTE),
    )
    grown = max(row[2] - row[1] for row in said)
    yield Finding(
        "a process grows by less than 8 MB over the second half",
        f"{grown / MEGABYTE:+.1f} MB",
        grown < 8 * MEGABYTE,
        timed=ground.short,  # the bounded tables are not full yet
    )


def _memory(ground: Ground) -> int:
    return int(ground.redis.admin.info("memory")["used_memory"])


def _only_lasting(ground: Ground) -> bool:
    """Whether no window is left: what stays are the names of processes and the like."""
    return int(ground.redis.admin.dbsize()) < 100


def exact(ground: Ground) -> Iterator[Finding]:
    """Eight processes, a thousand identities, a million decisions: each is judged by the log of admitted times."""
    number, processes = int(ground.seconds(1_000_000, 80_000)), 8
    share, paths = number // processes, [ground.crew.directory / f"answers-{one}" for one in range(processes)]
    identities = int(ground.seconds(1_000, 100))
    programs = [
        ground.program(
            "drinker",
            str(share),
            str(identities),
            "0",
            f"{LIMIT}/{WINDOW_S}s",
            str(path),
            "4",
            budget=UNHURRIED,
        )
        for path in paths
    ]
    for program in programs:
        hear(program)
    for program in programs:
        tell(program)
    said = [hear(program) for program in programs]
    end(*programs)
    tries: dict[int, list[Try]] = defaultdict(list)
    for path in paths:
        for who, at, passed in ANSWER.iter_unpack(path.read_bytes()):
            tries[who].append(Try(bool(passed), at))
    answered = sum(map(len, tries.values()))
    wrong = [fault for some in tries.values() for fault in faults(some, LIMIT, WINDOW_S * 1_000_000)]
    over = [fault for fault in wrong if "admitted" in fault]
    below = [fault for fault in wrong if "denied" in fault]
    admitted = sum(one.allowed for some in tries.values() for one in some)
    took, without = max(row[0] for row in said), sum(row[3] for row in said)
    yield Finding(
        f"{number:,} decisions by {processes} processes over {len(tries):,} identities, all by Redis",
        f"{number / took:,.0f} a second, {without:,} without it",
        answered == number,
        timed=True,
    )
    yield Finding(
        "not one over its limit", f"{admitted:,} admitted, {len(over)} over", not over and admitted > 0
    )
    # What was charged and whose answer came too late is in no list: it may look as if others were denied below.
    yield Finding(
        "not one denied below it",
        f"{answered - admitted:,} denied, {len(below)} below",
        not below and answered > admitted,
        timed=bool(without),
    )
