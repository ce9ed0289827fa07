"""Networks with an end each, found by address: the heads of the address say which prefix lengths are worth a look."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING

from ratelimit_app.core.networks import LENGTHS, read_network

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratelimit_app.core.addresses import Address

    _Lengths = tuple[tuple[int, int], ...]
    _Reader = tuple[int, int, Callable[[int, tuple[()]], _Lengths], Callable[[int], int | None]]

NEVER = 0

_KINDS: tuple[type[Address], ...] = (IPv4Address, IPv6Address)
# Networks are sorted by the longest of these heads that they fill: few lengths share one, whatever the list.
_HEADS = {4: (0, 16), 6: (0, 16, 32, 48, 64)}


class NetworkTable:
    """
    A list of networks, fast at 100,000 of them and changed in place, one network at a time.

    Expiries are microseconds since the epoch by the Redis clock; `NEVER` (0) does not end.
    Reads need no lock: a network is there or not by one assignment in a dict.
    """

    def __init__(self) -> None:
        self._levels = {
            version: [_Level(LENGTHS[version], head) for head in heads] for version, heads in _HEADS.items()
        }
        self._has_some = False
        self._readers: dict[type[Address], tuple[_Reader, ...]] = {IPv4Address: (), IPv6Address: ()}

    def set(self, text: str, expires_us: int) -> None:
        """Add a network or change its expiry. Raises ValueError when the text is none."""
        version, prefix, number = read_network(text)
        level = self._level(version, prefix)
        was_empty = not level.ends
        level.set(prefix, number, expires_us)
        if was_empty:
            self._look_at_levels()

    def discard(self, text: str) -> None:
        """Take a network out, if it is there. Raises ValueError when the text is none."""
        version, prefix, number = read_network(text)
        level = self._level(version, prefix)
        level.discard(prefix, number)
        if not level.ends:
            self._look_at_levels()

    def apply(self, text: str, expires_us: int | None) -> None:
        """Set a network, or discard it where there is no expiry. Raises ValueError when the text is none."""
        if expires_us is None:
            self.discard(text)
        else:
            self.set(text, expires_us)

    def find(self, address: Address, now_us: int) -> int | None:
        """Give the latest expiry of the networks that hold this address, None when no live one does."""
        return latest(self.ends(address), now_us)

    def ends(self, address: Address) -> list[int]:
        """Give the expiries of all networks that hold this address, over or not."""
        number, found = int(address), []
        for cut, mark, lengths, ends in self._readers[type(address)]:
            for shift, bit in lengths(number >> cut | mark, ()):
                if (end := ends(number >> shift | bit)) is not None:
                    found.append(end)
        return found

    def _level(self, version: int, prefix: int) -> _Level:
        return next(level for level in reversed(self._levels[version]) if level.head <= prefix)

    def _look_at_levels(self) -> None:
        """Have lookups pass by the levels that are empty: they are made for every request."""
        for kind, levels in zip(_KINDS, self._levels.values(), strict=True):
            self._readers[kind] = tuple(level.reader for level in levels if level.ends)
        self._has_some = any(self._readers.values())

    def __bool__(self) -> bool:
        return self._has_some

    def __len__(self) -> int:
        return sum(len(level.ends) for levels in self._levels.values() for level in levels)


def latest(ends: list[int], now_us: int) -> int | None:
    """Give the latest of some expiries, None when all are over."""
    if NEVER in ends:
        return NEVER
    return max((end for end in ends if end > now_us), default=None)


class _Level:
    """
    The networks of one IP version that are as long as their head, or longer, and shorter than the next level's.

    The first bits of an address, with a bit set above them for their number, are one key: `ends` by network,
    `lengths` by head. `shared` counts the networks beyond the first that have a head and a length in common.
    """

    __slots__ = ("_length", "_shared", "_tuples", "ends", "head", "lengths", "reader")

    def __init__(self, length: int, head: int) -> None:
        self.head, self._length = head, length
        self.ends: dict[int, int] = {}
        self.lengths: dict[int, _Lengths] = {}
        self.reader: _Reader = (length - head, 1 << head, self.lengths.get, self.ends.get)
        self._shared: dict[tuple[int, int], int] = {}
        self._tuples: dict[_Lengths, _Lengths] = {}

    def set(self, prefix: int, number: int, expires_us: int) -> None:
        """Add a network or change its expiry."""
        shift, bit = self._length - prefix, 1 << prefix
        key = number >> shift | bit
        if key not in self.ends:
            head = self._head(number)
            known = self.lengths.get(head, ())
            if (shift, bit) in known:
                self._shared[head, shift] = self._shared.get((head, shift), 0) + 1
            else:
                self.lengths[head] = self._interned(tuple(sorted((*known, (shift, bit)))))
        self.ends[key] = expires_us

    def discard(self, prefix: int, number: int) -> None:
        """Take a network out, if it is there."""
        shift, bit = self._length - prefix, 1 << prefix
        if self.ends.pop(number >> shift | bit, None) is None:
            return
        head = self._head(number)
        if others := self._shared.pop((head, shift), 0):
            if others > 1:
                self._shared[head, shift] = others - 1
        elif left := tuple(pair for pair in self.lengths[head] if pair[0] != shift):
            self.lengths[head] = self._interned(left)
        else:
            del self.lengths[head]

    def _head(self, number: int) -> int:
        return number >> self._length - self.head | 1 << self.head

    def _interned(self, pairs: _Lengths) -> _Lengths:
        return self._tuples.setdefault(pairs, pairs)
