"""The deny cache: what Redis has denied, and until when nothing else can be true."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ratelimit_app.core.soonest_table import SoonestTable, anywhere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


class Denial(NamedTuple):
    """
    Say what was denied: a rule's answer for one identity, or a ban (`definition` empty, `until` inf: for good).

    `until` and `reset` are seconds on this process's monotonic clock, and `epoch_us` is what makes the server's
    microseconds of them, so that an instant of a local answer never comes after `until` by the server's clock. It
    holds for `cost` or a greater one, under the rule's `definition`, while none of `marks` (the blacklist marks found
    clean with it) is set, and beside rules that Redis has met as they are: `settled`, definitions by name.
    """

    until: float
    cost: float
    definition: bytes
    identity: str
    marks: frozenset[str]
    remaining: int
    reset: float
    epoch_us: float = 0.0
    settled: Mapping[bytes, bytes] = {}


class Counters(NamedTuple):
    """Count what a cache has done: look-ups, live entries lost to overflow, and the entries that it holds."""

    hits: int
    misses: int
    evictions: int
    size: int


class DenyCache(SoonestTable[Denial]):
    """
    Remember up to `size` denials by key, 0: none. An overflow loses denials, which costs a trip each.

    Read `generation` before you ask Redis, and give it back with the answer: what was asked before a `forget`,
    a `discard` or a `clear` is not remembered after it.
    """

    def __init__(self, size: int, draw: Callable[[], float] = anywhere) -> None:
        super().__init__(size, draw)
        self._hits = self._misses = 0

    def find(self, key: bytes, now: float) -> Denial | None:
        """Give the denial of a key that holds at `now` (seconds, monotonic). Takes no lock."""
        found = self._rows.get(key)
        if found is not None and found[0] > now:
            self._hits += 1
            return found
        self._misses += 1
        self._seen = now
        return None

    def peek(self, key: bytes, now: float) -> Denial | None:
        """Give the denial of a key that holds at `now`, and count nothing: the caller may have to ask on."""
        found = self._rows.get(key)
        return found if found is not None and found[0] > now else None

    def hit(self) -> None:
        """Count an answer from a denial that was only peeked at."""
        self._hits += 1

    def holds_any(self, keys: Iterable[bytes]) -> bool:
        """Whether any of these may be found: dearer questions need not be asked when none can. Takes no lock."""
        rows = self._rows
        for key in keys:
            if key in rows:
                return True
        self._misses += 1
        return False

    def put(self, key: bytes, denial: Denial, generation: int) -> None:
        """Remember a denial that was asked for in this `generation`; an older one is ignored."""
        with self._lock:
            if generation == self.generation and self._size:
                self._store(key, denial)

    def counters(self) -> Counters:
        """
        Give the counts since the cache was made; `size` holds what has ended and still lies in its slot.

        Without a GIL a look-up may go uncounted.
        """
        return Counters(self._hits, self._misses, self._evictions, len(self._rows) - self._empty)
