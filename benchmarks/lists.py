"""
Lists at scale: what a lookup, an import and a decision cost with a million bans and 100,000 networks.

    python -m benchmarks.lists [--entries N] [--networks N] [--quick] [--json]

Each figure stands beside a baseline of the same run. SQLite, and PostgreSQL where TEST_DATABASE_URL names a server.
Starts its own Valkey on a unix socket, or takes the empty database at REDIS_URL.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Any

from benchmarks import lists_site
from benchmarks.servers import server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHILD = "BENCH_LISTS_DATABASE"
Row = tuple[str, float, str, str]


def cost(work: Callable[[], object], calls: int, rounds: int = 5) -> float:
    """Give microseconds a call, the median of some rounds."""
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        found.append((time.perf_counter() - began) / calls * 1e6)
    return statistics.median(found)


def lookups(count: int, calls: int) -> Iterator[Row]:
    """Measure the table of a process beside a walk through all networks, which is what it spares."""
    from ratelimit_app.core.access_lists import NetworkTable  # noqa: PLC0415 - beside Django

    texts = lists_site.networks(count)
    tracemalloc.start()
    table = NetworkTable()
    for number, text in enumerate(texts):
        table.set(text, 2_000_000_000_000_000 + number)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    draw = random.Random(3)
    some = [ip_address(text) for text in lists_site.addresses(calls)]
    hits = [ip_address(text.partition("/")[0]) for text in draw.sample(texts, min(calls, count))]
    walked = [ip_network(text) for text in texts]
    naive = cost(lambda: [any(address in network for network in walked) for address in some[:3]], 3, 1)
    for name, addresses in (
        ("IPv4, not banned", [address for address in some if address.version == 4]),
        ("IPv6, not banned", [address for address in some if address.version == 6]),
        ("banned", hits),
    ):
        us = cost(partial(_find_all, table, addresses), len(addresses))
        yield f"lookup among {count:,} networks, {name}", us, "us", f"{naive / us:,.0f} x faster than a walk"
    yield f"table of {count:,} networks, by tracemalloc", held / 1e6, "MB", "asked: 64"


def _find_all(table: Any, addresses: list[Any]) -> None:
    for address in addresses:
        table.find(address, 1)


@contextmanager
def beside(what: str) -> Iterator[Any]:
    """Run another process of the site."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.lists_site", what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in filter(None, (process.stdin, process.stdout)):
            pipe.close()


def imported(lines: list[str]) -> dict[str, float]:
    """Import a list; gives seconds until it was read, committed, and in Redis."""
    from django.utils import timezone  # noqa: PLC0415 - Django is set up by now

    from ratelimit_app import importing  # noqa: PLC0415
    from ratelimit_app.core import feeds  # noqa: PLC0415
    from ratelimit_app.models import BlacklistEntry  # noqa: PLC0415

    text, now, at = io.StringIO("\n".join(lines)), timezone.now(), dict[str, float]()
    began = time.perf_counter()

    def progress(step: str, _: int) -> None:
        at[f"first {step}"] = at.get(f"first {step}", time.perf_counter() - began)

    _, rows = feeds.read(text, feeds.Terms("ip", now))
    terms = importing.Terms(BlacklistEntry, now, force=True)  # IPv6 allocations are wider than /32
    report = importing.import_rows(rows, terms, progress=progress)
    took = time.perf_counter() - began
    if report.published is not True or report.accepted - report.repeated != len(lines):
        sys.exit(f"Not imported as it should be: {report}")
    return {"all": took, "committed": at.get(f"first {importing.PUBLISH}", took)}


def bulk_created(count: int) -> float:
    """Give entries a second of Django's own `bulk_create`, which neither compares nor publishes."""
    from django.db import models, transaction  # noqa: PLC0415 - Django is set up by now

    from ratelimit_app.models import BlacklistEntry  # noqa: PLC0415

    with transaction.atomic():
        began = time.perf_counter()
        rows = [BlacklistEntry(kind="user", value=str(number), source="imported") for number in range(count)]
        plain: models.QuerySet[BlacklistEntry] = models.QuerySet(BlacklistEntry)
        plain.bulk_create(rows, batch_size=2_000)
        took = time.perf_counter() - began
        transaction.set_rollback(True)
    return count / took


class Server:
    """What the server says of itself, from here on."""

    def __init__(self) -> None:
        from ratelimit_app.store.connection import client  # noqa: PLC0415 - Django is set up by now

        self._client: Any = client()
        self._client.config_set("slowlog-log-slower-than", 1_000)
        self._client.slowlog_reset()
        self._before = self._client.info("memory")["used_memory"]

    def grown(self) -> int:
        """Give by how many bytes it has grown."""
        return int(self._client.info("memory")["used_memory"] - self._before)

    def longest(self) -> float:
        """Give the milliseconds of the longest command; below one they are not noted."""
        return max((row["duration"] for row in self._client.slowlog_get(1_000)), default=0) / 1e3

    def bans(self) -> int:
        """Count the bans."""
        from ratelimit_app.conf import conf  # noqa: PLC0415 - Django is set up by now

        return int(self._client.hlen(conf.keys.marks) + self._client.hlen(conf.keys.networks))


def most_memory() -> float:
    """Give the most megabytes that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def imports(entries: int, count: int) -> Iterator[Row]:
    """Import both lists, while another process edits a rule."""
    plain, redis = bulk_created(min(entries, 20_000)), Server()
    yield "Django's bulk_create alone, nothing published", plain, "/s", ""
    lines = lists_site.addresses(entries)
    held = most_memory()
    with beside("edit") as editor:
        editor.stdout.readline()
        took = imported(lines)
        editor.stdin.close()
        edited = json.loads(editor.stdout.read())
    name = f"import of {entries:,} addresses"
    committed, through = entries / took["committed"], entries / took["all"]
    yield f"{name}, committed", committed, "/s", f"{committed / plain:.2f} x; asked: 20,000"
    yield f"{name}, in Redis too", through, "/s", f"{through / plain:.2f} x"
    yield "edit of a rule meanwhile, until it is in Redis, median", edited["median"] * 1e3, "ms", ""
    yield "edit of a rule meanwhile, longest", edited["longest"] * 1e3, "ms", f"of {edited['edits']} edits"
    yield "longest command of the server meanwhile", redis.longest(), "ms", "by its slow log, from 1 ms"
    yield "memory of the importing process, beside the list", most_memory() - held, "MB", ""
    yield "memory of the server for a ban", redis.grown() / entries, "bytes", ""
    yield "the same list again, nothing to change", entries / imported(lines)["all"], "/s", ""
    took = imported(lists_site.networks(count))
    yield f"import of {count:,} networks, in Redis too", count / took["all"], "/s", ""
    if redis.bans() != entries + count:
        sys.exit("Redis does not have every ban.")


def processes(count: int) -> Iterator[Row]:
    """Measure what it costs a process of the site to hold the networks."""
    with beside("serve") as process:
        found = json.loads(process.stdout.read())
    if found["networks"] != count:
        sys.exit(f"A process holds {found['networks']:,} networks of {count:,}.")
    yield f"memory of a process for {count:,} networks", found["mb"], "MB", "asked: 64"
    yield f"loading {count:,} networks beside requests", found["s"], "s", ""
    usual = found["usual"] * 1e3
    yield (
        "longest stall of another thread meanwhile",
        found["stall"] * 1e3,
        "ms",
        f"asked: 500; before: {usual:.1f}",
    )


def decisions(calls: int, rounds: int) -> Iterator[Row]:
    """Measure a decision with the lists beside one with empty lists, in turn."""
    from ratelimit_app import snapshot_cache  # noqa: PLC0415 - Django is set up by now
    from ratelimit_app.core.rules import rule_from_dict  # noqa: PLC0415
    from ratelimit_app.core.snapshot import Snapshot  # noqa: PLC0415

    rules = (rule_from_dict({"name": "one", "key": "ip", "rate": "5/m", "scope": "one"}),)
    full = snapshot_cache.refresh() or Snapshot()
    made = {
        "empty": Snapshot(version="bench:1", rules=rules, marked_kinds=frozenset()),
        "full": Snapshot(
            version="bench:2", rules=rules, marked_kinds=full.marked_kinds, networks=full.networks
        ),
    }
    ratios, costs = [], list[float]()
    for turn in range(rounds + 1):
        took = {}
        for name in ("empty", "full") if turn % 2 else ("full", "empty"):
            snapshot_cache.override(made[name])
            took[name] = decided(calls, 2 * turn + (name == "full"))
        if turn:  # the first one warms up
            ratios.append(took["full"] / took["empty"])
            costs.append(took["full"])
    snapshot_cache.override(None)
    yield "decision with these lists", statistics.median(costs), "us", ""
    yield "decision with these lists : with empty ones", statistics.median(ratios), "x", "asked: 1.05"


def decided(calls: int, turn: int) -> float:
    """Decide requests of as many addresses that are not banned, and give microseconds for each."""
    from django.http import HttpRequest  # noqa: PLC0415 - Django is set up by now

    from ratelimit_app import check  # noqa: PLC0415

    requests = []
    for number in range(calls):
        request = HttpRequest()
        request.method, request.path, request.path_info = "GET", "/", "/"
        request.META = {"REMOTE_ADDR": f"{1 + (turn >> 8)}.{turn & 255}.{number >> 8}.{number & 255}"}
        requests.append(request)
    gc.collect()
    began = time.perf_counter()
    allowed = sum(check(request, scope="one").allowed for request in requests)
    took = (time.perf_counter() - began) / calls * 1e6
    if allowed != calls:
        sys.exit(f"{calls - allowed} decisions of {calls} were wrong.")
    return took


def syncs(bans: int) -> Iterator[Row]:
    """Measure the comparison that runs every 30 seconds."""
    from ratelimit_app import publishing  # noqa: PLC0415 - Django is set up by now

    began = time.perf_counter()
    report = publishing.sync()
    if report.has_drifted or report.bans != bans:
        sys.exit(f"The sync found what nobody has changed: {report}")
    yield f"sync of {bans:,} bans", time.perf_counter() - began, "s", ""


def on_database(database: str, options: argparse.Namespace) -> list[Row]:
    """Measure all that needs a database."""
    with server() as url:
        lists_site.set_up(url, database)
        from django.core.management import call_command  # noqa: PLC0415 - Django is set up by now

        call_command("migrate", verbosity=0)
        rows = list(imports(options.entries, options.networks))
        rows += processes(options.networks)
        rows += syncs(options.entries + options.networks)
        rows += decisions(500, 4 if options.quick else 40)
    return rows


def in_child(database: str) -> list[Row]:
    """Measure in a process of its own: Django is set up once in each."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.lists", *sys.argv[1:]],
        env=os.environ | {CHILD: database},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.returncode)
    return [(name, value, unit, note) for name, value, unit, note in json.loads(done.stdout)]


@contextmanager
def scratch(url: str) -> Iterator[str]:
    """Make an empty database on a PostgreSQL server, and drop it again."""
    import psycopg  # noqa: PLC0415 - only PostgreSQL needs it

    name = f"ratelimit_bench_{os.getpid()}"
    base, slash, _ = url.rpartition("/")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            yield f"{base}{slash}{name}"
        finally:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def measured(options: argparse.Namespace) -> dict[str, list[Row]]:
    """Measure everything."""
    found = {"lookup": list(lookups(options.networks, 500 if options.quick else 20_000))}
    home = tempfile.mkdtemp(prefix="ratelimit-bench-")
    try:
        found["SQLite"] = in_child(f"{home}/lists.sqlite3")
    finally:
        shutil.rmtree(home, ignore_errors=True)
    if url := os.environ.get("TEST_DATABASE_URL"):
        with scratch(url) as database:
            found["PostgreSQL"] = in_child(database)
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.lists", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--entries", type=int, default=1_000_000, help="single addresses (1000000)")
    parser.add_argument("--networks", type=int, default=100_000, help="networks (100000)")
    parser.add_argument("--quick", action="store_true", help="shows that it runs, and no more")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.entries < 1 or options.networks < 1:
        parser.error(
            f"--entries {options.entries} --networks {options.networks}: expected whole numbers from 1"
        )
    if options.quick:
        options.entries, options.networks = 3_000, 1_500
    return options


def main() -> None:
    """Measure and print."""
    options = _options()
    if database := os.environ.get(CHILD):
        print(json.dumps(on_database(database, options)))
        return
    found = measured(options)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for section, rows in found.items():
        print(f"\n{section}")
        for name, value, unit, note in rows:
            shown = f"{value:,.0f}" if value >= 1_000 else f"{value:,.2f}"
            print(f"  {name:<58}{shown:>12} {unit:<6} {note}")


if __name__ == "__main__":
    main()
