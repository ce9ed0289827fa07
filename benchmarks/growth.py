"""How the cost of a decision grows: with keys on the server, rules, entries of a log, and known offenders."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import each, plain_request
from benchmarks.project import LIMIT
from benchmarks.rounds import ADMITTED, DENIED, MEASURES, Contender, Sample, Track, measure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.servers import Meter

SPARE = 4
PREFIX = "grown"
Decide = Callable[[list[Any]], list[bool]]


@dataclass(frozen=True)
class Series:
    """One thing that grows. `batches(x, calls)` yields lists of things to decide, each list made anew."""

    name: str
    label: str
    sizes: Sequence[int]
    decide: Callable[[int], Decide]
    batches: Callable[[int, int], Iterator[list[Any]]]
    outcome: str = ADMITTED


def limited(limit: int) -> Decide:
    """Decide one rate in code for names of identities."""
    from ratelimit_app import acquire  # noqa: PLC0415 - Django is set up by now

    return each(lambda name: acquire(f"user:{name}", f"{limit}/h", group="growth").allowed)


def ruled(rules: int) -> Decide:
    """Decide requests by so many rules of the snapshot."""
    from ratelimit_app import check  # noqa: PLC0415 - Django is set up by now

    return each(lambda request: check(request, scope=str(rules)).allowed)


class Growth:
    """Our decisions at every size of every series, each sample beside one of the baseline."""

    def __init__(self, meter: Meter, baseline: Contender, *, quick: bool = False) -> None:
        self.meter, self.baseline = meter, baseline
        self.many = 1_000 if quick else 100_000
        self._run = 0
        self._offending = 0

    def series(self) -> list[Series]:
        """Give what is measured."""
        from ratelimit_app.core.algorithms import MAX_LIMITS  # noqa: PLC0415 - Django is set up by now

        most = MAX_LIMITS["sliding_window"]
        entries = [size for size in (10, 100, 1_000, 10_000) if size <= most]
        keys = [10, 1_000, self.many] if self.many > 1_000 else [10, 1_000]

        def of_five(_: int) -> Decide:
            return limited(LIMIT)

        return [
            Series("keys", "keys on the server", keys, of_five, self._keys),
            Series("rules", "rules of one request", range(1, 11), ruled, self._rules),
            Series("entries", "entries in the log", entries, limited, self._entries),
            Series("offenders", "offenders, denied again", keys, of_five, self._offenders, DENIED),
        ]

    def run(self, rounds: int, calls: int) -> dict[str, Any]:
        """Measure every size of every series; gives for each the sizes, microseconds and ratios."""
        found = {}
        for series in self.series():
            tracks = [self.track(series, size, rounds=rounds, calls=calls) for size in series.sizes]
            found[series.name] = {
                "label": series.label,
                "sizes": list(series.sizes),
                "us": {what: [round(track.cost(what), 2) for track in tracks] for what in MEASURES},
                "ratio": {what: [round(track.ratio(what), 3) for track in tracks] for what in MEASURES},
            }
            self.meter.flush()
        return found

    def track(self, series: Series, size: int, *, rounds: int, calls: int) -> Track:
        """Pair `rounds` samples with the baseline's; the first pair warms up."""
        track = Track(self.baseline, series.outcome)
        for _ in range(rounds + 1):
            self._run += 1
            things = [self.baseline.make(f"bench-r{self._run}b", n // LIMIT) for n in range(calls)]
            track.bases.append(measure(self.meter, self.baseline.decide, things))
            decide = series.decide(size)
            parts = [measure(self.meter, decide, batch) for batch in series.batches(size, calls)]
            track.samples.append(_mean(parts))
        if track.wrong:
            sys.exit(f"{track.wrong} wrong decisions with {size:,} {series.label}.")
        del track.samples[0], track.bases[0]
        return track

    def _keys(self, size: int, calls: int) -> Iterator[list[str]]:
        """Try logs of one entry each, picked at random among `size` of them, until they would be full."""
        done = 0
        while done < calls:
            self.meter.flush()
            names = self._copies(size, entries=1, limit=LIMIT)
            batch = names * SPARE if size * SPARE <= calls else random.sample(names, min(calls, size))
            random.shuffle(batch)
            done += len(batch)
            yield batch

    def _entries(self, size: int, calls: int) -> Iterator[list[str]]:
        """Try logs of nearly `size` entries."""
        done = 0
        while done < calls:
            self.meter.flush()
            batch = self._copies(20, entries=size - SPARE, limit=size) * SPARE
            done += len(batch)
            yield batch

    def _rules(self, _: int, calls: int) -> Iterator[list[Any]]:
        self._run += 1
        yield [plain_request(f"bench-r{self._run}", n // LIMIT) for n in range(calls)]

    def _offenders(self, size: int, calls: int) -> Iterator[list[str]]:
        """Deny identities once, which this process may remember, until `size` are; then some of them again."""
        if self._offending < size:
            fresh = self._copies(size, entries=LIMIT, limit=LIMIT, start=self._offending)
            limited(LIMIT)(fresh)
            self._offending = size
        yield random.choices([f"{PREFIX}-{n}" for n in range(size)], k=calls)

    def _copies(self, count: int, *, entries: int, limit: int, start: int = 0) -> list[str]:
        """Make one log by `acquire` and give it to `count` identities, in a few commands."""
        from ratelimit_app import acquire  # noqa: PLC0415 - Django is set up by now

        self._run += 1
        seed = f"seed-{self._run}"
        key = acquire(f"user:{seed}", f"{limit}/h", group="growth", cost=entries).charges[0].key
        names = [f"{PREFIX}-{n}" for n in range(start, count)]
        for at in range(0, len(names), 1_000):
            with self.meter.admin.pipeline(transaction=False) as pipe:
                for name in names[at : at + 1_000]:
                    copy = key.replace(seed.encode(), name.encode())
                    pipe.execute_command("COPY", key, copy, "REPLACE")  # type: ignore[no-untyped-call]
                pipe.execute()
        return names


def _mean(parts: list[Sample]) -> Sample:
    """Give the mean of samples, each weighted by its calls."""
    calls = sum(part.calls for part in parts)
    means = {what: sum(getattr(part, what) * part.calls for part in parts) / calls for what in MEASURES}
    return Sample(**means, admitted=sum(part.admitted for part in parts), calls=calls)
