"""
What a log of many units costs the server: bytes for each, and how long a decision takes when all of them expire.

    python benchmarks/logs.py [--json]

Prints the ZSet of the textbook beside it. Starts its own Valkey on a unix socket, or takes the server at REDIS_URL.
Memory is `MEMORY USAGE` of all samples and the growth of `used_memory` over many keys; the time of a script is
`INFO commandstats`, the median of several keys.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import sys
import uuid
from pathlib import Path
from typing import Any

import redis

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.contenders import TEXTBOOK
from benchmarks.servers import server

SIZES = (100, 128, 129, 1_000, 10_000)
HOUR_US = 3_600_000_000
START_US = 1_800_000_000_000_000
UNITS, TRIES = 20_000, 9


def packed(limit: int) -> bytes:
    """Write the call for one unit of a sliding window of an hour."""
    return struct.pack("<BBBddddddd", 0, 0, 0, HOUR_US, limit, limit, 1, 0, 0, 0)


def fill(client: redis.Redis, sha: str, key: str, size: int) -> None:
    """Log so many units, a millisecond apart, as our script does."""
    for start in range(0, size, 1_000):
        pipe: Any = client.pipeline(transaction=False)
        for n in range(start, min(start + 1_000, size)):
            pipe.evalsha(sha, 1, key, packed(size), str(START_US + n * 1_000))
        if any(reply[0] for reply in pipe.execute()):
            sys.exit(f"a unit within the limit of {size} was denied: the figures would mean nothing")


def fill_textbook(client: redis.Redis, key: str, size: int) -> None:
    """Log the same as the textbook does: members made of the time and something random."""
    pipe: Any = client.pipeline(transaction=False)
    for n in range(size):
        now = START_US + n * 1_000
        pipe.zadd(key, {f"{now}-{uuid.uuid4().hex[:8]}": now})
    pipe.execute()


def spent(client: redis.Redis) -> int:
    """Give the microseconds that scripts have taken."""
    stats: Any = client.info("commandstats")
    return int(stats.get("cmdstat_evalsha", {}).get("usec", 0))


def used(client: redis.Redis) -> int:
    """Give the bytes that the server uses."""
    memory: Any = client.info("memory")
    return int(memory["used_memory"])


def measure(client: redis.Redis, sha: str, textbook: str, size: int) -> dict[str, float]:
    """Measure logs of one size: bytes for each unit, and the microseconds of a request that finds all expired."""
    prefix, row = uuid.uuid4().hex[:8], {"size": float(size)}
    late = START_US + HOUR_US + size * 1_000
    for name in ("ours", "textbook"):
        keys = [f"bench:{prefix}:{name}:{n}" for n in range(max(UNITS // size, TRIES))]
        before = used(client)
        for key in keys:
            if name == "ours":
                fill(client, sha, key, size)
            else:
                fill_textbook(client, key, size)
        usage: Any = client.memory_usage(keys[0], samples=0)
        row[f"{name} bytes"] = usage / size
        row[f"{name} used"] = (used(client) - before) / len(keys) / size
        times = []
        for key in keys:
            start = spent(client)
            if name == "ours":
                client.evalsha(sha, 1, key, packed(size), str(late))
            else:
                client.evalsha(textbook, 1, key, late, HOUR_US, size, f"{late}-x")
            times.append(spent(client) - start)
        row[f"{name} expiry us"] = statistics.median(times)
        client.delete(*keys)
    return row


def as_table(rows: list[dict[str, float]]) -> str:
    """Write the figures for people."""
    lines = [f"{'units':>7}{'B/unit':>9}{'used':>7}{'x':>7}{'all expire us':>15}{'x':>7}   promised"]
    for row in rows:
        size, each, stall = row["size"], row["ours used"], row["ours expiry us"]
        most = 24 + 200 / size
        kept = row["ours bytes"] <= most and stall <= 200
        lines.append(
            f"{size:7,.0f}{row['ours bytes']:9.1f}{each:7.1f}{each / row['textbook used']:7.2f}"
            f"{stall:15.0f}{stall / max(row['textbook expiry us'], 1):7.2f}"
            f"   at most {most:.1f} B, 200 us: {'yes' if kept else 'NO'}"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    # Found only when the checkout is on the path.
    from ratelimit_app.store.scripts import script  # noqa: PLC0415

    with server() as url:
        client = redis.Redis.from_url(url)
        sha, textbook = client.script_load(script("decide").text), client.script_load(TEXTBOOK)
        measure(
            client, str(sha), str(textbook), SIZES[0]
        )  # The first keys grow the tables of the server itself.
        rows = [measure(client, str(sha), str(textbook), size) for size in SIZES]
    print(json.dumps(rows, indent=2) if options.json else as_table(rows))


if __name__ == "__main__":
    main()
