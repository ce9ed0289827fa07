"""The penalty box: whoever is denied too often by one rule is answered by the process itself for a while."""

from __future__ import annotations

from typing import NamedTuple

from ratelimit_app.core.soonest_table import SoonestTable

PARTS = 10


class Terms(NamedTuple):
    """Say when the box closes: `after` denials within `window` seconds, for `period` seconds."""

    after: int
    window: float
    period: float


class Tally:
    """Count the denials of one key by parts of the window; `until` is when they are too old, or the box opens."""

    __slots__ = ("boxed", "counts", "identity", "newest", "until")
    marks = ()

    def __init__(self, identity: str, part: int) -> None:
        self.identity, self.newest = identity, part
        self.counts = [0] * PARTS
        self.until, self.boxed = 0.0, False

    def count(self, part: int) -> int:
        """Count one denial, and give how many came in this part of the window and the nine before it."""
        for passed in range(self.newest + 1, min(part, self.newest + PARTS) + 1):
            self.counts[passed % PARTS] = 0
        self.newest = max(part, self.newest)
        self.counts[self.newest % PARTS] += 1
        return sum(self.counts)


class PenaltyBox(SoonestTable[Tally]):
    """
    Box a key (one rule and one identity) that is denied too often; up to `size` keys are counted or boxed.

    The window is cut into ten parts. Nobody is boxed for fewer than `after` denials within `window` seconds; at the
    latest the one that makes them `after` within nine tenths of it does. What is denied while boxed does not count.
    """

    def __init__(self, size: int, terms: Terms) -> None:
        super().__init__(size)
        self._terms = terms

    def note(self, key: bytes, now: float, identity: str) -> None:
        """Count a denial of a key at `now` (seconds, monotonic)."""
        after, window, period = self._terms
        part = int(now * PARTS / window)
        with self._lock:
            self._seen = now
            tally = self._rows.get(key)
            if tally is None or tally.until <= now:
                tally = Tally(identity, part)
            elif tally.boxed:
                return
            full = tally.count(part) >= after
            tally.until = now + (period if full else window)
            tally.boxed = full
            if self._size:
                self._store(key, tally)

    def boxed_until(self, key: bytes, now: float) -> float | None:
        """Give the end (seconds, monotonic) of the box that a key is in at `now`, or None. Takes no lock."""
        tally = self._rows.get(key)
        if tally is not None and tally.boxed and tally.until > now:
            return tally.until
        return None
