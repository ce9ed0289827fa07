"""
What finding the rules of a request costs: decisions under 500 rules beside decisions under 5, as a ratio.

    python -m benchmarks.matching [--rounds N] [--calls N] [--quick] [--json]

Each round decides the same requests under both sets, one set first and then the other, in CPU time of this process
and in wall time; the ratio is the median over the rounds. The promise: at most 1.05. Whatever is decided wrongly
ends the run with an error. Starts its own Valkey on a unix socket, or takes the server at REDIS_URL.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import redis

from benchmarks import project
from benchmarks.servers import server

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FEW, MANY = 5, 500
PROMISED = 1.05
VIEWS = 100
# Of both sets: what the measured requests meet.
MET = (
    {"name": "all", "rate": "10/m"},
    {"name": "place", "route": "shop:r1", "rate": "10/m"},
    {"name": "below", "route": "/shop/", "rate": "10/m"},
    {"name": "nowhere", "route": "/nowhere/here/", "rate": "10/m"},
    {"name": "closed", "route": "/closed/", "rate": "0/s"},
)


@dataclass(frozen=True)
class Case:
    """Requests of one kind: `path` gives that of a number, `met` the rules that decide it."""

    name: str
    path: Callable[[int], str]
    met: frozenset[str]
    allowed: bool = True


CASES = (
    Case("one path", lambda _: "/shop/r1/7/", frozenset({"all", "place", "below"})),
    Case("a path for each request", lambda n: f"/shop/r1/{n}/", frozenset({"all", "place", "below"})),
    Case("paths that lead nowhere", lambda n: f"/nowhere/here/{n}", frozenset({"all", "nowhere"})),
    Case("below 50 nested prefixes", lambda n: f"{'/deep' * 50}/{n}", frozenset({"all"})),
    Case("denied at once", lambda n: f"/closed/{n}", frozenset({"all", "closed"}), allowed=False),
)


@dataclass
class Costs:
    """Microseconds a decision, by round, under few and under many rules."""

    cpu: dict[int, list[float]] = field(default_factory=lambda: {FEW: [], MANY: []})
    wall: dict[int, list[float]] = field(default_factory=lambda: {FEW: [], MANY: []})

    def row(self, name: str) -> dict[str, Any]:
        """Give the medians, and the median ratio of the rounds."""
        found: dict[str, Any] = {"case": name}
        for what, times in (("cpu", self.cpu), ("wall", self.wall)):
            found[f"{what} us"] = {count: round(statistics.median(times[count]), 2) for count in (FEW, MANY)}
            pairs = zip(times[FEW], times[MANY], strict=True)
            found[f"{what} ratio"] = round(statistics.median(many / few for few, many in pairs), 3)
        return found


def rows(total: int) -> list[dict[str, str]]:
    """Give so many rules: those that are met, and others by view, by prefix and by method that are not."""
    found = [dict(row) for row in MET]
    for n in range(total - len(found)):
        route = (f"shop:r{2 + n % (VIEWS - 2)}", f"/shop/r{2 + n}/", "/deep" * (1 + n % 50) + "/x/")[n % 3]
        found.append({"name": f"other-{n}", "route": route, "rate": "9/m", "methods": ("", "POST")[n % 2]})
    return [{"key": "ip"} | row for row in found]


def snapshots() -> dict[int, Any]:
    """Make what a process holds of each set of rules."""
    from ratelimit_app.core.rules import rule_from_dict  # noqa: PLC0415 - useful only once Django is set up
    from ratelimit_app.core.snapshot import Snapshot  # noqa: PLC0415

    return {
        total: Snapshot(
            version=f"bench:{total}",
            rules=tuple(rule_from_dict(row) for row in rows(total)),
            marked_kinds=frozenset(),
        )
        for total in (FEW, MANY)
    }


def requests(case: Case, start: int, count: int) -> list[Any]:
    """Make requests, each of a client of its own; a path that has a number of its own is new to the process."""
    made = []
    for n in range(start, start + count):
        request = project.request_of(f"r{n >> 16}", n & 0xFFFF, signed_in=False)
        request.path = request.path_info = case.path(n)
        made.append(request)
    return made


def measure(decide: Callable[[Any], Any], made: Sequence[Any]) -> tuple[float, float, list[Any]]:
    """Decide these requests; gives CPU and wall time of one in microseconds, and the decisions."""
    gc.collect()
    gc.disable()
    wall, cpu = time.perf_counter(), time.process_time()
    decisions = [decide(request) for request in made]
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    gc.enable()
    return cpu * 1e6 / len(made), wall * 1e6 / len(made), decisions


def require_right(case: Case, total: int, decisions: Sequence[Any]) -> None:
    """Exit unless each decision is the one that the rules of the case make."""
    for decision in decisions:
        met = {result.rule for result in decision.results}
        if decision.allowed is not case.allowed or not met <= case.met or (case.allowed and met != case.met):
            sys.exit(
                f"{case.name}, {total} rules: met {sorted(met)}, allowed={decision.allowed}; "
                f"expected {sorted(case.met)}, allowed={case.allowed}."
            )


def run(rounds: int, calls: int, flush: Callable[[], object]) -> list[dict[str, Any]]:
    """Measure every case; a round before the first one warms up and does not count."""
    from ratelimit_app import check, snapshot_cache  # noqa: PLC0415 - useful only once Django is set up

    held, found, used = snapshots(), [], 0
    for case in CASES:
        costs = Costs()
        for number in range(-1, rounds):
            for total in (FEW, MANY) if number % 2 else (MANY, FEW):
                snapshot_cache.override(held[total])
                flush()
                made = requests(case, used, calls)
                used += calls
                cpu, wall, decisions = measure(check, made)
                require_right(case, total, decisions)
                if number >= 0:
                    costs.cpu[total].append(cpu)
                    costs.wall[total].append(wall)
        found.append(costs.row(case.name))
    snapshot_cache.override(None)
    return found


def as_table(found: list[dict[str, Any]]) -> str:
    """Write the figures for people."""
    lines = [f"{'':<28}{'CPU us, 5':>11}{'500':>9}{'ratio':>8}{'wall us, 5':>12}{'500':>9}{'ratio':>8}"]
    for row in found:
        cpu, wall = row["cpu us"], row["wall us"]
        lines.append(
            f"{row['case']:<28}{cpu[FEW]:11.1f}{cpu[MANY]:9.1f}{row['cpu ratio']:8.3f}"
            f"{wall[FEW]:12.1f}{wall[MANY]:9.1f}{row['wall ratio']:8.3f}"
        )
    return "\n".join([*lines, f"promised: a ratio of at most {PROMISED}"])


def views() -> list[Any]:
    """Give the URLs that are measured."""
    from django.http import HttpResponse  # noqa: PLC0415 - the script's own help needs no Django
    from django.urls import include, path  # noqa: PLC0415

    shop = [path(f"r{n}/<int:number>/", HttpResponse, name=f"r{n}") for n in range(VIEWS)]
    return [path("shop/", include((shop, "shop")))]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--calls", type=int, default=1_000)
    parser.add_argument("--quick", action="store_true", help="shows that it runs, and no more")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with server() as url:
        project.urlpatterns[:] = views()
        project.set_up(url)
        rounds, calls = (2, 20) if options.quick else (options.rounds, options.calls)
        found = run(rounds, calls, redis.Redis.from_url(url).flushdb)
    print(json.dumps(found, indent=2) if options.json else as_table(found))


if __name__ == "__main__":
    main()
