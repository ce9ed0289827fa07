"""Run drills, print what each has found, and exit with 1 when something did not hold: `make chaos`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos import (
    drills_clock,
    drills_crash,
    drills_load,
    drills_network,
    drills_orders,
    drills_outage,
    drills_topology,
    page,
)
from tests.chaos.findings import Finding
from tests.chaos.ground import ground

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.chaos.ground import Ground

DRILLS: dict[str, Callable[[Ground], Iterator[Finding]]] = {
    "refused": drills_outage.refused,
    "killed": drills_outage.killed,
    "emptied": drills_outage.emptied,
    "hung": drills_outage.hung,
    "late": drills_network.late,
    "too_late": drills_network.too_late,
    "thin": drills_network.thin,
    "cut": drills_network.cut,
    "orders": drills_orders.orders,
    "sentinel": drills_topology.sentinel,
    "cluster": drills_topology.cluster,
    "moved": drills_topology.moved,
    "clock": drills_clock.clock,
    "crash": drills_crash.crash,
    "million": drills_load.million,
    "exact": drills_load.exact,
}


def drill(name: str, *, short: bool) -> list[Finding]:
    """Run one drill in a directory of its own; one that cannot go on ends with a finding that says why."""
    found: list[Finding] = []
    try:
        with ground(Path(tempfile.mkdtemp(prefix=f"chaos-{name}-")), short=short) as place:
            found.extend(DRILLS[name](place))
    except (OSError, EOFError, subprocess.SubprocessError) as error:
        found.append(
            Finding("the drill goes on to its end", f"{type(error).__name__}: {error}"[:300], held=False)
        )
    return found


def title(name: str) -> str:
    """Say what a drill does."""
    return (DRILLS[name].__doc__ or name).strip()


def main() -> int:
    """Run the drills that were named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("drills", nargs="*", metavar="DRILL", help=f"one of: {', '.join(DRILLS)}; none: all")
    parser.add_argument(
        "--short", action="store_true", help="cut the waits, as CI does; times are told, not judged"
    )
    parser.add_argument("--page", action="store_true", help="write what was found into docs/reliability.md")
    options = parser.parse_args()
    if unknown := set(options.drills) - set(DRILLS):
        parser.error(f"no drill is named {', '.join(sorted(unknown))}: expected one of {', '.join(DRILLS)}")
    found: dict[str, tuple[str, list[Finding]]] = {}
    for name in options.drills or DRILLS:
        began = time.monotonic()
        found[name] = title(name), drill(name, short=options.short)
        show(name, found[name], time.monotonic() - began)
    if options.page:
        page.write(found, short=options.short)
    judged = [one for _, findings in found.values() for one in findings if not (options.short and one.timed)]
    return int(not all(one.held for one in judged))


def show(name: str, found: tuple[str, list[Finding]], took: float) -> None:
    """Print what a drill has found."""
    sys.stdout.write(f"\n{name} ({took:.0f} s): {found[0]}\n")
    for one in found[1]:
        sys.stdout.write(f"  {'ok  ' if one.held else 'FAIL'} {one.asked}: {one.seen}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
