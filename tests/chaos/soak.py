"""Ten minutes of a busy site, with memory, file descriptors and latency plotted: `make soak`."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.picture import FAINT, INK, LINE, OURS, STYLE
from tests.chaos.drills_crash import children
from tests.chaos.drinker import memory
from tests.chaos.findings import Finding, exactness, statuses
from tests.chaos.ground import ground
from tests.chaos.shop import Shop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.chaos.ground import Ground
    from tests.chaos.shoppers import Note

PICTURE = Path(__file__).resolve().parents[2] / "docs/soak.svg"
RATE, PASSERS_BY = 800, 1_000_000
EVERY = 5.0  # seconds between two samples
MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen at one time: bytes of the two web processes and of Redis, and open file descriptors."""

    at: float
    web: int
    redis: int
    descriptors: int


def sample(shop: Shop, ground: Ground) -> Sample:
    """Look at the processes now."""
    pids = children(shop.process.pid)
    used = int(ground.redis.admin.info("memory")["used_memory"])
    descriptors = sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)
    return Sample(time.time(), sum(map(memory, pids)), used, descriptors)


def soak(ground: Ground, seconds: float) -> tuple[list[Sample], list[Note]]:
    """Keep a site busy, with a million addresses that come by chance beside those that are over their limits."""
    shop, samples = Shop(ground), list[Sample]()
    with shop.crowd(RATE, PASSERS_BY) as crowd:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(EVERY)
            samples.append(sample(shop, ground))
    return samples, crowd.notes


def judge(samples: Sequence[Sample], notes: Sequence[Note]) -> list[Finding]:
    """Compare the last quarter with the second: what grows without bound grows between them."""
    quarter = len(samples) // 4
    before, after = samples[quarter : 2 * quarter], samples[-quarter:]
    found = list(statuses(notes))
    found += exactness(notes, notes[0].began, notes[0].began + 2)
    for name, most, unit in (("web", 1.10, MEGABYTE), ("redis", 1.25, MEGABYTE), ("descriptors", 1.05, 1)):
        early, late = (statistics.mean(getattr(one, name) for one in part) / unit for part in (before, after))
        asked = f"{name}: the last quarter at most {most} of the second"
        found.append(Finding(asked, f"{early:.1f}, then {late:.1f}", late <= early * most))
    times = sorted(note.took for note in notes)
    middle, high = (times[int(len(times) * part)] * 1_000 for part in (0.5, 0.99))
    without = sum(note.degraded for note in notes)
    found.append(
        Finding("latency of the whole site", f"median {middle:.1f} ms, 99th {high:.1f} ms", held=True)
    )
    found.append(Finding("decided by Redis", f"{len(notes) - without:,} of {len(notes):,}", held=True))
    return found


def draw(samples: Sequence[Sample], notes: Sequence[Note], file: Path) -> None:
    """Draw memory, file descriptors and latency over time."""
    matplotlib = import_module("matplotlib")  # of the benchmarks' environment alone
    matplotlib.use("svg")
    with matplotlib.rc_context(STYLE):
        pyplot = import_module("matplotlib.pyplot")
        figure, (upper, middle, lower) = pyplot.subplots(
            3, 1, figsize=(10, 7), sharex=True, layout="constrained"
        )
        began = samples[0].at
        minutes = [(one.at - began) / 60 for one in samples]
        upper.plot(minutes, [one.web / MEGABYTE for one in samples], color=OURS, label="two web processes")
        upper.plot(minutes, [one.redis / MEGABYTE for one in samples], color=LINE, label="Redis")
        middle.plot(minutes, [one.descriptors for one in samples], color=OURS, label="web file descriptors")
        for share, colour in ((0.5, OURS), (0.99, LINE)):
            lower.plot(
                *_latency(notes, share, began), color=colour, label=f"{share:.0%} of the answers within"
            )
        for axes, title in ((upper, "Memory, MB"), (middle, "Open file descriptors"), (lower, "Latency, ms")):
            axes.set_title(title, color=INK)
            axes.set_ylim(bottom=0)
            axes.grid(color=FAINT)
            axes.legend(loc="lower right", frameon=False)
        lower.set_xlabel("minutes")
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)


def _latency(notes: Sequence[Note], share: float, began: float) -> tuple[list[float], list[float]]:
    spells: dict[int, list[float]] = {}
    for note in notes:
        spells.setdefault(int((note.began - began) // EVERY), []).append(note.took * 1_000)
    rows: list[Any] = sorted((spell, sorted(times)) for spell, times in spells.items() if spell >= 0)
    return [spell * EVERY / 60 for spell, _ in rows], [times[int(len(times) * share)] for _, times in rows]


def main() -> int:
    """Soak, print what was found, draw."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--picture", type=Path, default=PICTURE, metavar="FILE")
    options = parser.parse_args()
    with ground(Path(tempfile.mkdtemp(prefix="soak-")), short=False) as place:
        samples, notes = soak(place, options.minutes * 60)
    draw(samples, notes, options.picture)
    findings = judge(samples, notes)
    for one in findings:
        sys.stdout.write(f"{'ok  ' if one.held else 'FAIL'} {one.asked}: {one.seen}\n")
    return int(not all(one.held or one.timed for one in findings))


if __name__ == "__main__":
    sys.exit(main())
