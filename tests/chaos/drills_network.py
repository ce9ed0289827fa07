"""The network between the site and Redis: late, thin, and cut off in the middle of an answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tests.chaos.drills_outage import BANS_BACK, GRACE
from tests.chaos.findings import Finding, at_most, banned_within, exact_again, statuses
from tests.chaos.ground import BUDGET, ask, end, hear
from tests.chaos.proxy import Proxy, Weather
from tests.chaos.shop import Shop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.chaos.ground import Ground

FINE = Weather()


def late(ground: Ground) -> Iterator[Finding]:
    """Each way takes 25 ms, within the budget: slower, and as exact as ever."""
    with Proxy(ground.redis.port) as proxy:
        shop = Shop(ground, proxy.url)
        with shop.crowd() as crowd:
            time.sleep(ground.seconds(4, 2))
            proxy.weather, began = Weather(delay=0.025), time.time()
            time.sleep(ground.seconds(8, 4))
        yield from statuses(crowd.notes)
        yield from exact_again(crowd.notes, began)


def too_late(ground: Ground) -> Iterator[Finding]:
    """Each way takes 250 ms, beyond the budget: as if Redis hung."""
    yield from _storm(ground, Weather(delay=0.25))


def thin(ground: Ground) -> Iterator[Finding]:
    """The line carries 1,000 bytes a second: no answer comes in time."""
    yield from _storm(ground, Weather(bandwidth=1_000))


def _storm(ground: Ground, weather: Weather) -> Iterator[Finding]:
    with Proxy(ground.redis.port) as proxy:
        asker = ground.program("asker", redis_url=proxy.url)
        hear(asker)
        proxy.weather = weather
        yield at_most("the first decision", ask(asker, "first"), BUDGET + GRACE)
        yield at_most("the next 1,000 together", ask(asker, "thousand", 1), BUDGET + GRACE)
        end(asker)
        proxy.weather = FINE
        shop = Shop(ground, proxy.url)
        with shop.crowd() as crowd:
            time.sleep(ground.seconds(4, 2))
            proxy.weather = weather
            time.sleep(ground.seconds(8, 3))
            proxy.weather, returned = FINE, time.time()
            time.sleep(ground.seconds(8, 5))
        yield from statuses(crowd.notes)
        yield banned_within(crowd.notes, returned, BANS_BACK)
        yield from exact_again(crowd.notes, returned)


def cut(ground: Ground) -> Iterator[Finding]:
    """Connections are reset in the middle of an answer: what was charged is never charged again."""
    with Proxy(ground.redis.port) as proxy:
        asker = ground.program("asker", redis_url=proxy.url)
        hear(asker)
        proxy.weather = Weather(cut_after=600)
        asked, answered = ask(asker, "charge", ground.seconds(2_000, 500))
        proxy.weather = FINE
        end(asker)
        charged = _charged(ground.redis.admin)
        yield Finding(
            "no call whose answer was lost is sent again: charges between answers and questions",
            f"{answered:,} answers, {charged:,} charges, {asked:,} questions, {proxy.cuts:,} connections cut",
            answered <= charged <= asked and answered < asked and proxy.cuts > 0,
        )
        shop = Shop(ground, proxy.url)
        with shop.crowd() as crowd:
            proxy.weather = Weather(cut_after=20_000)
            time.sleep(ground.seconds(8, 3))
            proxy.weather, returned = FINE, time.time()
            time.sleep(ground.seconds(8, 5))
        yield from statuses(crowd.notes)
        yield from exact_again(crowd.notes, returned)


def _charged(admin: Any) -> int:
    """Count what stands in the one log of an hour's window: a sorted set, and a list when it is long."""
    (key,) = admin.scan_iter(match="*user:charged*")
    return int(admin.llen(key) if admin.type(key) == b"list" else admin.zcard(key))
