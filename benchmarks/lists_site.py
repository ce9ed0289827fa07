"""The site whose lists are measured, in the process that imports and in those beside it."""

from __future__ import annotations

import json
import os
import random
import resource
import statistics
import sys
import threading
import time
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import django
from django.conf import settings

# So often a length occurs among a thousand networks of a composed public list.
LENGTHS = {
    4: {8: 1, 12: 2, 14: 4, 16: 20, 17: 8, 18: 12, 19: 20, 20: 35, 21: 40, 22: 90, 23: 70, 24: 480, 25: 15}
}
LENGTHS[4] |= {26: 20, 27: 25, 28: 30, 29: 40, 30: 40, 31: 28}
LENGTHS[6] = {19: 1, 24: 2, 28: 3, 29: 90, 32: 260, 36: 30, 40: 60, 44: 60, 46: 20, 48: 400, 52: 10, 56: 60}
URL, DATABASE = "BENCH_REDIS", "BENCH_DATABASE"


def set_up(url: str, database: str) -> None:
    """Make Django on a server and a database: the path of a SQLite file, or a PostgreSQL URL."""
    os.environ[URL], os.environ[DATABASE] = url, database
    if database.startswith("postgres"):
        import dj_database_url  # noqa: PLC0415 - only PostgreSQL needs it

        found: dict[str, Any] = dict(dj_database_url.parse(database))
    else:
        pragmas = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL"
        options = {"transaction_mode": "IMMEDIATE", "timeout": 60, "init_command": pragmas}
        found = {"ENGINE": "django.db.backends.sqlite3", "NAME": database, "OPTIONS": options}
    settings.configure(
        SECRET_KEY="for the benchmark only",
        DATABASES={"default": found},
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}},
        RATELIMIT_APP={"STORE_TIMEOUT": 5.0, "TRUSTED_PROXIES": ["10.0.0.0/8"]},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "ratelimit_app"],
        ROOT_URLCONF="benchmarks.project",
        USE_TZ=True,
    )
    django.setup()


def addresses(count: int) -> list[str]:
    """Make different public addresses, one in ten of IPv6."""
    draw, found = random.Random(1), dict[str, None]()
    while len(found) < count:
        if draw.random() < 0.1:
            found[str(IPv6Address(0x2A << 120 | draw.getrandbits(120)))] = None
        else:
            found[str(IPv4Address(draw.randrange(11 << 24, 127 << 24)))] = None
    return list(found)


def networks(count: int) -> list[str]:
    """Make different networks with the lengths of public lists, one in five of IPv6."""
    draw, found = random.Random(2), dict[str, None]()
    while len(found) < count:
        version = 6 if draw.random() < 0.2 else 4
        (length,) = draw.choices(list(LENGTHS[version]), list(LENGTHS[version].values()))
        if version == 6:
            number = 0x2A << 120 | draw.getrandbits(120)
            found[f"{IPv6Address(number >> 128 - length << 128 - length)}/{length}"] = None
        else:
            number = draw.randrange(11 << 24, 127 << 24)
            found[f"{IPv4Address(number >> 32 - length << 32 - length)}/{length}"] = None
    return list(found)


def megabytes() -> float:
    """Give what this process holds of the machine's memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def watch(stop: threading.Event, gaps: list[float]) -> None:
    """Note how late this thread gets the interpreter after each millisecond of sleep."""
    while not stop.is_set():
        began = time.perf_counter()
        time.sleep(0.001)
        gaps.append(time.perf_counter() - began - 0.001)


def await_end(stop: threading.Event) -> None:
    """Set the event when the input ends."""
    sys.stdin.read()
    stop.set()


def edit() -> None:
    """Edit a rule again and again until the input ends; tell how long its way to Redis took."""
    from ratelimit_app import publishing  # noqa: PLC0415 - Django is set up by now
    from ratelimit_app.models import Rule  # noqa: PLC0415

    rule = Rule.objects.create(name="edited", rate="5/s")
    stop, took = threading.Event(), list[float]()
    threading.Thread(target=await_end, args=(stop,), daemon=True).start()
    print("ready", flush=True)
    number = 0
    while not stop.is_set():
        number += 1
        began = time.perf_counter()
        rule.rate = f"{5 + number % 2}/s"
        rule.save()
        while json.loads(publishing.read_snapshot().body or b"{}")["rules"][0] != rule.to_dict():
            time.sleep(0.001)
        took.append(time.perf_counter() - began)
        time.sleep(0.05)
    print(json.dumps({"edits": len(took), "median": statistics.median(took), "longest": max(took)}))


def serve() -> None:
    """Load the networks as a process of the site does; tell how long it took, its stalls and its memory."""
    from ratelimit_app import snapshot_cache  # noqa: PLC0415 - Django is set up by now

    snapshot_cache.restorer.on_missing = None
    before, stop, gaps = megabytes(), threading.Event(), list[float]()
    watcher = threading.Thread(target=watch, args=(stop, gaps))
    watcher.start()
    time.sleep(0.2)
    usual = max(gaps)
    gaps.clear()
    began = time.perf_counter()
    snapshot = snapshot_cache.refresh()
    took = time.perf_counter() - began
    stop.set()
    watcher.join()
    held = len(snapshot.networks) if snapshot else 0
    print(
        json.dumps(
            {"networks": held, "s": took, "stall": max(gaps), "usual": usual, "mb": megabytes() - before}
        )
    )


if __name__ == "__main__":
    set_up(os.environ[URL], os.environ[DATABASE])
    {"edit": edit, "serve": serve}[sys.argv[1]]()
