"""Redis refuses, is killed, comes back empty, or hangs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tests.chaos.findings import Finding, at_most, banned_within, equal, exact_again, statuses
from tests.chaos.ground import BUDGET, COOLDOWN, ask, end, hear, wait_until
from tests.chaos.shop import Shop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.chaos.ground import Ground

GRACE = 0.05  # seconds beside the budget
BANS_BACK = 2.0  # seconds: REFRESH_INTERVAL + 1


def refused(ground: Ground) -> Iterator[Finding]:
    """Redis is shut down and comes back with its data."""
    yield from _outage(ground, lambda: ground.redis.admin.shutdown(save=True))


def killed(ground: Ground) -> Iterator[Finding]:
    """Redis is killed with -9 and comes back empty."""
    yield from _outage(ground, ground.redis.kill)


def emptied(ground: Ground) -> Iterator[Finding]:
    """Redis is flushed under load: scripts, rules, bans and windows are gone at once."""
    shop = Shop(ground)
    with shop.crowd() as crowd:
        time.sleep(ground.seconds(5, 2))
        flushed = time.time()
        ground.redis.admin.flushall()
        ground.redis.admin.script_flush()
        time.sleep(ground.seconds(8, 5))
    yield from statuses(crowd.notes)
    yield banned_within(crowd.notes, flushed, BANS_BACK)
    yield from exact_again(crowd.notes, flushed)


def _outage(ground: Ground, fell: Callable[[], Any]) -> Iterator[Finding]:
    shop = Shop(ground)
    with shop.crowd() as crowd:
        time.sleep(ground.seconds(5, 2))
        fallen = time.time()
        fell()
        ground.redis.process.wait()
        time.sleep(ground.seconds(5, 2))
        admin_is_there = shop.answers()
        ground.redis.start()
        returned = time.time()
        time.sleep(ground.seconds(8, 5))
    yield from statuses(crowd.notes)
    yield equal("the admin answers while Redis is away", admin_is_there, True)
    away = [note for note in crowd.notes if fallen + 0.5 < note.began < returned]
    yield Finding(
        "`closed` answers 503 while Redis is away",
        f"{sum(note.status == 503 for note in away):,} of {len(away):,} answers",
        any(note.status == 503 for note in away),
    )
    yield banned_within(crowd.notes, returned, BANS_BACK)
    yield from exact_again(crowd.notes, returned)
    yield from _told_once(ground)


def _told_once(ground: Ground) -> Iterator[Finding]:
    for word in ("store_degraded", "store_recovered"):
        lines = ground.log_lines("site", f"ratelimit.{word}")
        yield Finding(
            f"one log line of {word} for each of two processes", f"{lines}", 1 <= lines <= 2, timed=lines > 2
        )


def hung(ground: Ground) -> Iterator[Finding]:
    """Redis is stopped with SIGSTOP: it accepts, and answers nothing."""
    asker = ground.program("asker")
    hear(asker)
    ground.redis.stop()
    stopped = time.monotonic()
    first, thousand, threads = ask(asker, "first"), ask(asker, "thousand", 1), ask(asker, "thousand", 16)
    yield at_most("the first decision", first, BUDGET + GRACE)
    yield at_most("the next 1,000 together", thousand, BUDGET + GRACE)
    yield at_most("1,000 more, by 16 threads", threads, BUDGET + GRACE)
    time.sleep(max(stopped + ground.seconds(10, 3) - time.monotonic(), 0))
    ground.redis.go_on()
    yield at_most("decisions by Redis again after it answers", ask(asker, "recover"), COOLDOWN + 1)
    end(asker)
    yield from _hung_shop(ground)


def _hung_shop(ground: Ground) -> Iterator[Finding]:
    shop = Shop(ground)
    with shop.crowd() as crowd:
        time.sleep(ground.seconds(4, 2))
        ground.redis.stop()
        time.sleep(ground.seconds(10, 3))
        ground.redis.go_on()
        returned = time.time()
        wait_until(ground.redis.answers, "Redis to answer")
        time.sleep(ground.seconds(8, 5))
    yield from statuses(crowd.notes)
    yield banned_within(crowd.notes, returned, BANS_BACK)
    yield from exact_again(crowd.notes, returned)
