"""
What the two transports cost, as ratios to a bare redis-py EVALSHA of the textbook script in the same run.

    python -m benchmarks.transport [--rounds N] [--calls N] [--json]

Every case runs the same script over the same unix socket and checks the replies. No decision is made here, only
calls: `python -m benchmarks` measures the whole. Method and caveats: README.md, beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import socket
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import redis

from benchmarks.contenders import PERIOD_US, TEXTBOOK
from benchmarks.project import LIMIT, set_up
from benchmarks.servers import server

BASELINE = "redis-py textbook"
FLOOR = "one raw blocking socket"
TASKS = (1, 20, 200)

Run = Callable[[list[str]], list[bool]]


@dataclass
class Sample:
    """What a case cost in one round, in microseconds a call."""

    wall: float
    cpu: float


class Raw:
    """The floor: a socket, no deadline, no failure handled, no reply that is not an integer."""

    def __init__(self, url: str, sha: bytes) -> None:
        self._sha, self._socket = sha, socket.socket(socket.AF_UNIX)
        self._socket.connect(urlsplit(url).path)

    def call(self, key: str) -> bool:
        """Run the textbook script."""
        words = [b"EVALSHA", self._sha, b"1", *_words(key)]
        packed = b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])
        self._socket.sendall(b"*%d\r\n%b" % (len(words), packed))
        return self._socket.recv(4_096) == b":1\r\n"


def _words(key: str) -> list[bytes]:
    now = b"%d" % (time.time_ns() // 1_000)
    return [key.encode(), now, b"%d" % PERIOD_US, b"%d" % LIMIT, now + b"-" + os.urandom(4).hex().encode()]


def cases(url: str, runner: asyncio.Runner) -> dict[str, Run]:
    """Give every case by its name, the baseline first. Django is set up by now."""
    from ratelimit_app.core.calls import ScriptCall  # noqa: PLC0415
    from ratelimit_app.store import scripts  # noqa: PLC0415
    from ratelimit_app.store.gateway import async_gateway, gateway  # noqa: PLC0415

    client = redis.Redis.from_url(url)
    sha = str(client.script_load(TEXTBOOK))
    raw = Raw(url, sha.encode())
    # The textbook script in the place of ours, so that the transports alone differ.
    known = scripts.script
    scripts.script = lambda name: (  # type: ignore[assignment]
        scripts.Script(TEXTBOOK.encode(), sha.encode()) if name == "textbook" else known(name)
    )

    def script_call(key: str) -> ScriptCall:
        first, *args = _words(key)
        return ScriptCall("textbook", [first], args)

    def bare(key: str) -> bool:
        first, *args = _words(key)
        return bool(client.evalsha(sha, 1, first, *args))

    async def work(keys: list[str]) -> list[bool]:
        return [bool(await async_gateway().call(script_call(key))) for key in keys]

    def together(tasks: int) -> Run:
        async def all_of(keys: list[str]) -> list[bool]:
            parts = await asyncio.gather(*(work(keys[start::tasks]) for start in range(tasks)))
            return [answer for part in parts for answer in part]

        return lambda keys: runner.run(all_of(keys))

    return {
        BASELINE: lambda keys: [bare(key) for key in keys],
        FLOOR: lambda keys: [raw.call(key) for key in keys],
        "ours, sync": lambda keys: [bool(gateway().call(script_call(key))) for key in keys],
    } | {f"ours, async, {tasks} tasks": together(tasks) for tasks in TASKS}


def measure(run: Run, keys: list[str]) -> Sample:
    """Run a case once. Exits when it admitted more or less than it should."""
    gc.collect()
    gc.disable()
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        answers = run(keys)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    finally:
        gc.enable()
    if not all(answers) or len(answers) != len(keys):
        sys.exit(f"{sum(answers)} of {len(keys)} were admitted")
    return Sample(wall / len(keys) * 1e6, cpu / len(keys) * 1e6)


def rounds_of(all_cases: dict[str, Run], rounds: int, calls: int) -> dict[str, list[Sample]]:
    """Run all cases in each round, in rotated order; the first round only warms up."""
    samples: dict[str, list[Sample]] = {name: [] for name in all_cases}
    names, run_id = list(all_cases), uuid.uuid4().hex[:8]
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            keys = [f"transport:{run_id}:{number}:{name}:{n // LIMIT}" for n in range(calls)]
            sample = measure(all_cases[name], keys)
            if number:
                samples[name].append(sample)
    return samples


def figures(samples: dict[str, list[Sample]]) -> dict[str, dict[str, float]]:
    """Give medians, and medians of the rounds' ratios to the baseline."""
    found = {}
    for name, ours in samples.items():
        row = {}
        for what in ("wall", "cpu"):
            pairs = zip(ours, samples[BASELINE], strict=True)
            row[what] = statistics.median(getattr(sample, what) for sample in ours)
            row[f"{what}_ratio"] = statistics.median(getattr(a, what) / getattr(b, what) for a, b in pairs)
        found[name] = row
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=15, help="rounds (15)")
    parser.add_argument("--calls", type=int, default=4_000, help="calls of each case in a round (4000)")
    options = parser.parse_args()
    with server() as url, asyncio.Runner() as runner:
        set_up(url)
        rows = figures(rounds_of(cases(url, runner), options.rounds, options.calls))
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'':28}{'wall us':>9}{'x':>7}{'CPU us':>9}{'x':>7}{'calls/s':>10}{'x':>7}")
    for name, row in rows.items():
        wall = f"{row['wall']:9.1f}{row['wall_ratio']:7.2f}{row['cpu']:9.1f}{row['cpu_ratio']:7.2f}"
        print(f"{name:28}{wall}{1e6 / row['wall']:10,.0f}{1 / row['wall_ratio']:7.2f}")


if __name__ == "__main__":
    main()
