"""Interleaved rounds: every contender beside a run of the baseline of its own, in an order that rotates."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.project import LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.servers import Meter

ADMITTED, DENIED, AGAIN = "admitted", "denied", "denied again"
OUTCOMES = (ADMITTED, DENIED, AGAIN)
MEASURES = ("wall", "cpu", "script", "server")


@dataclass(frozen=True, kw_only=True)
class Contender:
    """
    One way to decide. `make` gives what a try is made with, before the clock starts; `decide` makes the tries.

    `work`: what is decided, exactly or not. Those of a `group` answer the same question.
    """

    name: str
    group: str
    work: str
    make: Callable[[str, int], Any]
    decide: Callable[[list[Any]], list[bool]]
    ours: bool = False


@dataclass(frozen=True)
class Sample:
    """What one call cost in one round, in microseconds, and how many tries were admitted of `calls`."""

    wall: float
    cpu: float
    script: float
    server: float
    admitted: int = 0
    calls: int = 0


@dataclass
class Track:
    """The samples of one contender for one outcome, each with the baseline's of the same moment."""

    contender: Contender
    outcome: str
    samples: list[Sample] = field(default_factory=list)
    bases: list[Sample] = field(default_factory=list)

    def cost(self, what: str) -> float:
        """Give the median microseconds a call."""
        return float(statistics.median(getattr(sample, what) for sample in self.samples))

    def ratio(self, what: str) -> float:
        """Give the median of the rounds' ratios to the baseline."""
        pairs = zip(self.samples, self.bases, strict=True)
        ratios = [getattr(sample, what) / max(getattr(base, what), 0.001) for sample, base in pairs]
        return float(statistics.median(ratios))

    @property
    def wrong(self) -> int:
        """How many tries were admitted over the limit, or denied under it."""
        return sum(
            abs(sample.admitted - (sample.calls if self.outcome == ADMITTED else 0))
            for sample in self.samples
        )


def measure(meter: Meter, decide: Callable[[list[Any]], list[bool]], things: list[Any]) -> Sample:
    """Decide all of `things`, timed. The collector runs before, not during, as it would hit one run at random."""
    gc.collect()
    gc.disable()
    try:
        scripts, server = meter.scripts(), meter.cpu()
        wall, cpu = time.perf_counter(), time.process_time()
        answers = decide(things)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        server = meter.since(server)
        scripts = meter.scripts() - scripts
    finally:
        gc.enable()
    each = 1e6 / len(things)
    return Sample(wall * each, cpu * each, scripts * each, server * each, sum(answers), len(answers))


class Rounds:
    """Run all contenders in each round; a round before the first one warms up and does not count."""

    def __init__(self, meter: Meter, baseline: Contender, contenders: list[Contender], calls: int) -> None:
        self.meter, self.baseline, self.contenders = meter, baseline, contenders
        self.calls = max(calls - calls % LIMIT, LIMIT)
        self.failures: dict[str, str] = {}
        self.tracks = {(c.name, outcome): Track(c, outcome) for c in contenders for outcome in OUTCOMES}
        self._run = 0

    def run(self, rounds: int) -> list[Track]:
        """Run them and give the tracks. Exits when one of ours admits more or less than it should."""
        for number in range(-1, rounds):
            turn = max(number, 0) % max(len(self.contenders), 1)
            for contender in self.contenders[turn:] + self.contenders[:turn]:
                if contender.name not in self.failures:
                    self._pair(contender, counts=number >= 0, base_first=number % 2 == 0)
            self.meter.flush()
        tracks = self.tracks.values()
        return [track for track in tracks if track.samples and track.contender.name not in self.failures]

    def _pair(self, contender: Contender, *, counts: bool, base_first: bool) -> None:
        """Fill identities exactly to their limit, find them full once, and then as often again; each in turn."""
        order = [self.baseline, contender] if base_first else [contender, self.baseline]
        self._run += len(order)
        prefixes = {each: f"bench-r{self._run + place}" for place, each in enumerate(order)}
        for outcome in OUTCOMES:
            try:
                samples = {each: self._sample(each, prefixes[each], outcome) for each in order}
            except Exception as error:
                if contender.ours:
                    raise
                # A peer that breaks on this server or these versions is named, and the others are measured.
                self.failures[contender.name] = f"{type(error).__name__}: {error}"
                return
            if counts:
                self.tracks[contender.name, outcome].samples.append(samples[contender])
                self.tracks[contender.name, outcome].bases.append(samples[self.baseline])

    def _sample(self, contender: Contender, prefix: str, outcome: str) -> Sample:
        tries = 1 if outcome == DENIED else LIMIT
        things = [contender.make(prefix, n // tries) for n in range(self.calls * tries // LIMIT)]
        sample = measure(self.meter, contender.decide, things)
        if contender.ours or contender is self.baseline:
            _require(contender.name, outcome, sample)
        return sample


def _require(name: str, outcome: str, sample: Sample) -> None:
    wanted = sample.calls if outcome == ADMITTED else 0
    if sample.admitted != wanted:
        sys.exit(
            f"{name}: {sample.admitted} of {sample.calls} tries were admitted, expected {wanted} ({outcome})."
        )
