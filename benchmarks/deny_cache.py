"""
What the deny cache keeps when more is denied than it has room for, and what it costs, beside two plain policies.

    python benchmarks/deny_cache.py [--quick]

Hit rates are parts of the repeated denials; times are medians of rounds, in thread CPU time; memory is tracemalloc's.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ratelimit_app.core.deny_cache import Denial, DenyCache

HOUR = 3_600.0
Order = Callable[[random.Random, int, int], Iterable[int]]


class Cache(Protocol):
    """What all of them can do."""

    def find(self, key: bytes, now: float) -> Denial | None: ...
    def put(self, key: bytes, denial: Denial, generation: int) -> None: ...


class EmptiesItself:
    """The simplest bound: throw all away when it is full."""

    def __init__(self, size: int) -> None:
        self.size, self.rows = size, dict[bytes, Denial]()

    def find(self, key: bytes, now: float) -> Denial | None:
        """Give what holds."""
        found = self.rows.get(key)
        return found if found is not None and found.until > now else None

    def put(self, key: bytes, denial: Denial, _: int) -> None:
        """Remember, and forget all others when there is no room."""
        if len(self.rows) >= self.size and key not in self.rows:
            self.rows.clear()
        self.rows[key] = denial


class LeastRecentlyUsed:
    """The usual bound. It moves a row at each look, which takes a lock; none is taken here."""

    def __init__(self, size: int) -> None:
        self.size, self.rows = size, OrderedDict[bytes, Denial]()

    def find(self, key: bytes, now: float) -> Denial | None:
        """Give what holds."""
        found = self.rows.get(key)
        if found is None or found.until <= now:
            return None
        self.rows.move_to_end(key)
        return found

    def put(self, key: bytes, denial: Denial, _: int) -> None:
        """Remember, and forget whoever was not asked about for longest."""
        self.rows[key] = denial
        self.rows.move_to_end(key)
        if len(self.rows) > self.size:
            self.rows.popitem(last=False)


CACHES: dict[str, Callable[[int], Cache]] = {
    "deny cache": DenyCache,
    "empties itself": EmptiesItself,
    "LRU": LeastRecentlyUsed,
}


def uniform(draw: random.Random, offenders: int, requests: int) -> Iterable[int]:
    """Anybody may come next."""
    return (int(draw.random() * offenders) for _ in range(requests))


def in_turn(_: random.Random, offenders: int, requests: int) -> Iterable[int]:
    """Each comes again after all others: the worst order for whatever keeps the newest."""
    return (number % offenders for number in range(requests))


def zipf(draw: random.Random, offenders: int, requests: int) -> Iterable[int]:
    """The n-th offender comes 1/n as often as the first."""
    return draw.choices(range(offenders), [1 / (number + 1) for number in range(offenders)], k=requests)


def offender(number: int) -> tuple[bytes, str]:
    """Give a key and an identity, of the length that they have in production."""
    identity = f"ip:10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    return b"rl:1:{%b}:login" % identity.encode(), identity


def hit_rate(
    cache: Cache, order: Order, offenders: int, requests: int, periods: tuple[float, ...] = (HOUR,)
) -> float:
    """
    Give the part of repeated denials that the cache knew.

    Each offender is let through at instants one period apart, and denied in between; the requests fill two hours.
    """
    draw = random.Random(1)
    people = [offender(number) for number in range(offenders)]
    phases = [HOUR * draw.random() for _ in range(offenders)]
    told, hits, repeated = [0.0] * offenders, 0, 0
    for number, who in enumerate(order(draw, offenders, requests)):
        now = number * 2 * HOUR / requests
        repeated += told[who] > now
        if cache.find(people[who][0], now):
            hits += 1
        else:
            until = told[who] = now + (phases[who] - now) % periods[who % len(periods)]
            cache.put(people[who][0], Denial(until, 1, b"", people[who][1], frozenset(), 0, until), 0)
    return hits / max(repeated, 1)


def print_hit_rates(offenders: int, turns: int) -> None:
    """Print a table for each size: all have room, half have, a tenth has."""
    orders: list[tuple[str, Order, tuple[float, ...]]] = [
        ("uniform", uniform, (HOUR,)),
        ("in turn", in_turn, (HOUR,)),
        ("Zipf", zipf, (HOUR,)),
        ("mixed 10 s, 1 h", uniform, (10.0, HOUR)),
    ]
    print(f"hit rate, {offenders:,} live offenders" + "".join(f"{name:>17}" for name, *_ in orders))
    for size in (offenders, offenders // 2, offenders // 10):
        for name, make in CACHES.items():
            rates = [
                hit_rate(make(size), order, offenders, offenders * turns, periods)
                for _, order, periods in orders
            ]
            print(f"  size {size:>7,}  {name:<18}" + "".join(f"{rate:17.1%}" for rate in rates))


def cost(work: Callable[[], None], calls: int) -> float:
    """Give microseconds of CPU a call. The collector runs before, not during."""
    gc.collect()
    gc.disable()
    try:
        begun = time.thread_time()
        work()
        return (time.thread_time() - begun) / calls * 1e6
    finally:
        gc.enable()


def rows_from(first: int, count: int, draw: random.Random) -> list[tuple[bytes, Denial]]:
    """Make denials of new offenders."""
    made = []
    for number in range(first, first + count):
        (key, identity), until = offender(number), 1e6 + draw.random() * HOUR
        made.append((key, Denial(until, 1, b"", identity, frozenset((identity,)), 0, until)))
    return made


def costs_of(cache: Cache, size: int, overflow: int) -> list[float]:
    """Give what an insert costs while it fills and in overflow, and what a look costs that hits and that misses."""
    draw, figures = random.Random(3), []
    for turn in range(overflow):
        rows = rows_from(turn * size, size, draw)

        def insert(rows: list[tuple[bytes, Denial]] = rows) -> None:
            for key, row in rows:
                cache.put(key, row, 0)

        figures.append(cost(insert, size))
    for first in (overflow * size - size // 10, overflow * size):
        keys = [offender(number)[0] for number in range(first, first + size // 10)]
        draw.shuffle(keys)

        def look(keys: list[bytes] = keys) -> None:
            for key in keys:
                cache.find(key, 0.0)

        figures.append(cost(look, len(keys)))
    return [figures[0], statistics.median(figures[1:-2]), figures[-2], figures[-1]]


def print_costs(size: int, overflow: int) -> None:
    """Print costs in microseconds, and as ratios to the cache that empties itself, of the same run."""
    heads = ("insert, filling", f"insert, {overflow} x size", "find, hit", "find, miss")
    print(f"\nus a call (ratio), size {size:,}    " + "".join(f"{head:>20}" for head in heads))
    base = costs_of(EmptiesItself(size), size, overflow)
    for name, make in CACHES.items():
        ours = costs_of(make(size), size, overflow)
        cells = [f"{us:.2f} ({us / other:.2f})" for us, other in zip(ours, base, strict=True)]
        print(f"  {name:<34}" + "".join(f"{cell:>20}" for cell in cells))


def print_memory(size: int) -> None:
    """Print bytes an entry: the cache's own, and with key and denial in it."""
    tracemalloc.start()
    rows = rows_from(0, size, random.Random(3))
    loaded = tracemalloc.get_traced_memory()[0]
    cache = DenyCache(size)
    for key, row in rows:
        cache.put(key, row, 0)
    own = tracemalloc.get_traced_memory()[0] - loaded
    tracemalloc.stop()
    each = sys.getsizeof(rows) / size + sys.getsizeof((0, 0)) + 16
    print(f"\nmemory, size {size:,}: {own / size:.0f} B an entry for the table, ", end="")
    print(f"{(own + loaded) / size - each:.0f} B with its key, identity and denial")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the size: shows that it runs")
    offenders = 1_000 if parser.parse_args().quick else 100_000
    print_hit_rates(offenders, turns=16)
    print_costs(offenders, overflow=10)
    print_memory(offenders)


if __name__ == "__main__":
    main()
