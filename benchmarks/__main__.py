"""
What one decision costs, as ratios to a bare redis-py EVALSHA of the textbook script in the same run.

    python -m benchmarks [decisions] [growth] [drf] [--quick] [--json] [--rounds N] [--calls N]

Starts its own Valkey on a unix socket, or takes the empty database at REDIS_URL. Method and caveats: README.md,
beside this file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from benchmarks import drf, page, picture, results, tables
from benchmarks.contenders import ASYNC, THREE, Loop, baseline, ours
from benchmarks.drill import over_limit
from benchmarks.growth import Growth
from benchmarks.peers import peers, versions
from benchmarks.project import set_up
from benchmarks.rounds import Contender, Rounds
from benchmarks.servers import Meter, server

SECTIONS = ("decisions", "growth", "drf")


def main() -> None:
    """Measure, print, and unless it is only a try, write the results, their picture and their page."""
    options = _options()
    found: dict[str, Any] = {}
    with server() as url:
        set_up(url)
        meter = Meter(url)
        described = results.machine(meter.version(), versions())
        if "decisions" in options.sections:
            found["decisions"] = _decisions(url, meter, options)
        if "growth" in options.sections:
            found["growth"] = _growth(url, meter, options)
    if "drf" in options.sections:
        rounds, seconds = (1, 1) if options.quick else (max(options.rounds * 3 // 4, 1), 2)
        found["drf"] = drf.measured(rounds, seconds)
    print(json.dumps({"machine": described} | found, indent=2) if options.json else _text(found))
    if not options.quick:
        merged = results.merge(found, described)
        picture.draw(merged)
        page.write(merged)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help=f"some of {', '.join(SECTIONS)}; all of them"
    )
    parser.add_argument(
        "--quick", action="store_true", help="shows that it runs, and no more; writes no results"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=12, help="rounds (12)")
    parser.add_argument(
        "--calls", type=int, default=1_000, help="admitted tries of a contender in a round (1000)"
    )
    options = parser.parse_args()
    options.sections = options.sections or list(SECTIONS)
    if unknown := [name for name in options.sections if name not in SECTIONS]:
        parser.error(f"{unknown[0]!r} is no section: expected some of {', '.join(SECTIONS)}")
    if options.rounds < 1 or options.calls < 1:
        parser.error(f"--rounds {options.rounds} --calls {options.calls}: expected whole numbers from 1")
    if options.quick:
        options.rounds, options.calls = 1, 100
    return options


def _decisions(url: str, meter: Meter, options: argparse.Namespace) -> dict[str, Any]:
    others, skipped = peers(url)
    base = baseline(url)
    with asyncio.Runner() as runner:
        loop = Loop(url, runner)
        contenders = [*ours(), *others, *loop.contenders()]
        rounds = Rounds(meter, base, contenders, options.calls)
        tracks = rounds.run(options.rounds)
        loop.close()
    drilled = _drill([base, *contenders], rounds.failures, identities=5 if options.quick else 50)
    meter.flush()
    return {
        "baseline": base.name,
        "rounds": options.rounds,
        "calls": rounds.calls,
        "rows": results.rows_of(tracks, drilled),
        "skipped": skipped | rounds.failures,
    }


def _drill(contenders: list[Contender], failures: dict[str, str], identities: int) -> dict[str, int]:
    """Let threads meet on every contender that one call decides; a peer that breaks is named."""
    found = {}
    for number, contender in enumerate(contenders):
        is_peer_of_three = contender.group == THREE and not contender.ours
        if contender.name in failures or contender.group == ASYNC or is_peer_of_three:
            continue
        try:
            found[contender.name] = over_limit(contender, 50_000 + number, identities)
        except RuntimeError as error:
            if contender.ours:
                raise
            failures[f"{contender.name}, by threads"] = str(error)
    return found


def _growth(url: str, meter: Meter, options: argparse.Namespace) -> dict[str, Any]:
    rounds, calls = (1, 100) if options.quick else (max(options.rounds // 2, 1), 400)
    series = Growth(meter, baseline(url), quick=options.quick).run(rounds, calls)
    return {"rounds": rounds, "calls": calls, "series": series}


def _text(found: dict[str, Any]) -> str:
    lines: list[str] = []
    if decided := found.get("decisions"):
        lines += [f"{name} skipped: {why}" for name, why in decided["skipped"].items()]
        lines += [*tables.decisions(decided["rows"]), *tables.asked(decided["rows"])]
    if grown := found.get("growth"):
        lines += tables.growth(grown["series"])
    if served := found.get("drf"):
        lines += [f"{name} skipped: {why}" for name, why in served["skipped"].items()]
        lines += tables.drf(served["servers"])
    return "\n".join(lines)


if __name__ == "__main__":
    main()
