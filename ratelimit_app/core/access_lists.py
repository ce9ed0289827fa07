"""Networks with an end each, found by address: the heads of the address say which prefix lengths are worth a look."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any

from ratelimit_app.core.networks import LENGTHS, read_network

if TYPE_CHECKING:
    from ratelimit_app.core.addresses import Address

NEVER = 0

# Networks are sorted by the longest of these heads that they fill: few lengths share one, whatever the list.
_HEADS = {4: (0, 16), 6: (0, 16, 32, 48, 64)}


_KINDS: tuple[type[Address], ...] = (IPv4Address, IPv6Address)


class NetworkTable:
    """
    A list of networks, fast at 100,000 of them and changed in place, one network at a time.

    Expiries are microseconds since the epoch by the Redis clock; `NEVER` (0) does not end.
    Reads need no lock: a network is there or not by one assignment in a dict.
    """

    def __init__(self) -> None:
        self._families = {version: _Family(length, _HEADS[version]) for version, length in LENGTHS.items()}
        # What a lookup needs of them: it is made for every request.
        self._readers: dict[type[Address], Any] = {
            kind: (family.heads, family.lengths.get, family.ends.get)
            for kind, family in zip(_KINDS, self._families.values(), strict=True)
        }

    def set(self, text: str, expires_us: int) -> None:
        """Add a network or change its expiry. Raises ValueError when the text is none."""
        version, prefix, number = read_network(text)
        self._families[version].set(prefix, number, expires_us)

    def discard(self, text: str) -> None:
        """Take a network out, if it is there. Raises ValueError when the text is none."""
        version, prefix, number = read_network(text)
        self._families[version].discard(prefix, number)

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
        heads, lengths, ends = self._readers[type(address)]
        number, found = int(address), []
        for cut, mark in heads:
            for shift, bit in lengths(number >> cut | mark, ()):
                if (end := ends(number >> shift | bit)) is not None:
                    found.append(end)
        return found

    def __bool__(self) -> bool:
        return bool(self._families[4].ends or self._families[6].ends)

    def __len__(self) -> int:
        return sum(len(family.ends) for family in self._families.values())


def latest(ends: list[int], now_us: int) -> int | None:
    """Give the latest of some expiries, None when all are over."""
    if NEVER in ends:
        return NEVER
    return max((end for end in ends if end > now_us), default=None)


class _Family:
    """
    The networks of one IP version.

    The first bits of an address, with a bit set above them for their number, are one key: `ends` by network,
    `lengths` by head. `shared` counts the networks beyond the first that have a head and a length in common.
    """

    __slots__ = ("_length", "_shared", "_tuples", "ends", "heads", "lengths")

    def __init__(self, length: int, heads: tuple[int, ...]) -> None:
        self.ends: dict[int, int] = {}
        self.lengths: dict[int, tuple[tuple[int, int], ...]] = {}
        self.heads = tuple((length - head, 1 << head) for head in heads)
        self._length = length
        self._shared: dict[tuple[int, int], int] = {}
        self._tuples: dict[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]] = {}

    def set(self, prefix: int, number: int, expires_us: int) -> None:
        """Add a network or change its expiry."""
        shift, bit = self._length - prefix, 1 << prefix
        key = number >> shift | bit
        if key not in self.ends:
            head = self._head(prefix, number)
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
        head = self._head(prefix, number)
        if others := self._shared.pop((head, shift), 0):
            if others > 1:
                self._shared[head, shift] = others - 1
        elif left := tuple(pair for pair in self.lengths[head] if pair[0] != shift):
            self.lengths[head] = self._interned(left)
        else:
            del self.lengths[head]

    def _head(self, prefix: int, number: int) -> int:
        cut, mark = next(pair for pair in reversed(self.heads) if pair[1] <= 1 << prefix)
        return number >> cut | mark

    def _interned(self, pairs: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        return self._tuples.setdefault(pairs, pairs)
