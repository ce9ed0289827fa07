"""A table of rows that end: bounded; when it is full, the soonest to end of four gives way."""

from __future__ import annotations

import random
import threading
from array import array
from math import inf
from time import sleep
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

NEIGHBOURS = 4
anywhere = random.random  # noqa: S311 - who gives way is no secret
CHUNK = 2_000
PAUSE_S = 0.0001


class Ending(Protocol):
    """What a row must say: when it ends (seconds, monotonic), and whose it is."""

    @property
    def until(self) -> float: ...
    @property
    def identity(self) -> str: ...
    @property
    def marks(self) -> Collection[str]: ...


Row = TypeVar("Row", bound=Ending)


class SoonestTable(Generic[Row]):
    """
    Hold at most `size` rows by key; reading takes no lock, everything else takes one for an instant.

    `generation` grows whenever rows are taken out on demand. `draw` gives random floats from 0 to 1.

    Each key of the dict has one slot in the list, from which victims are drawn, and the array holds their ends: four
    of them in a row cost one visit to memory, where four rows cost a dozen. A row that is taken out leaves its key and
    slot behind, empty, to be used again, so that nothing has to be searched or moved.
    """

    def __init__(self, size: int, draw: Callable[[], float] = anywhere) -> None:
        self.generation = 0
        self._size, self._draw = size, draw
        self._lock = threading.Lock()
        self._rows: dict[bytes, Row | None] = {}
        self._slots: list[bytes] = []
        self._ends = array("d")
        self._empty = self._evictions = 0
        self._seen = -inf  # an instant lately asked about: what ended before it is no loss

    def discard(self, key: bytes) -> None:
        """Take out the row of a key."""
        with self._lock:
            self.generation += 1
            if self._rows.get(key) is not None:
                self._rows[key] = None
                self._empty += 1

    def forget(self, identities: Collection[str]) -> None:
        """
        Take out every row of one of these identities: as a whole, as a part joined by `+`, or as a mark.

        It walks through all rows, and lets other threads run again and again.
        """
        names = frozenset(identities)
        with self._lock:
            self.generation += 1
            rows, slots = self._rows, self._slots
        for start in range(0, len(slots), CHUNK):
            if start:
                sleep(PAUSE_S)
            for key in slots[start : start + CHUNK]:
                row = rows.get(key)
                if row is not None and _concerns(row, names):
                    self._take_out(key, row)

    def clear(self) -> None:
        """Take out everything."""
        with self._lock:
            self.generation += 1
            self._rows, self._slots, self._ends, self._empty = {}, [], array("d"), 0

    def after_fork(self) -> None:
        """Begin empty in a child, with a lock of its own: a thread that it does not have may have been at work."""
        self._lock = threading.Lock()
        self.clear()

    def _take_out(self, key: bytes, row: Row) -> None:
        with self._lock:
            if self._rows.get(key) is row:
                self._rows[key] = None
                self._empty += 1

    def _store(self, key: bytes, row: Row) -> None:
        """
        Put a row in, under the lock.

        In this order an exception from outside (a signal's) leaves at worst a slot without a row, which is used again.
        """
        rows, slots = self._rows, self._slots
        if key in rows:
            self._empty -= rows[key] is None
        elif len(slots) < self._size:
            self._ends[len(slots) :] = array("d", (row.until,))
            slots.append(key)
        else:
            place = self._victim()
            self._count_out(rows.pop(slots[place], None))
            slots[place], self._ends[place] = key, row.until
        rows[key] = row

    def _victim(self) -> int:
        """
        Give the place, among four neighbours drawn at random, of the row that ends soonest.

        An end in the array may be that of an earlier row of the same key: whoever is chosen by it is looked at.
        """
        ends, get, slots = self._ends, self._rows.get, self._slots
        while True:
            start = int(self._draw() * self._size)
            if self._empty and get(slots[start]) is None:
                return start
            near = ends[start : start + NEIGHBOURS]
            end = min(near)
            place = start + near.index(end)
            row = get(slots[place])
            if row is None or row.until <= end:
                return place
            ends[place] = row.until

    def _count_out(self, row: Row | None) -> None:
        if row is None:
            self._empty -= 1
        elif row.until > self._seen:
            self._evictions += 1


def _concerns(row: Ending, names: frozenset[str]) -> bool:
    identity = row.identity
    if identity in names or not names.isdisjoint(row.marks):
        return True
    return "+" in identity and not names.isdisjoint(identity.split("+"))
