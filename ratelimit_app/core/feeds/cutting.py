"""What is left of a network when addresses are cut out of it."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from ratelimit_app.core.networks import LENGTHS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Numbers = tuple[int, int, int]  # version, prefix length and number, as `read_network` gives them


class Spared:
    """
    Addresses that are left out, as ranges in order: a cut looks at those alone that it needs.

    It works on numbers throughout. Read again as text, a part such as `::100:0/104` would be one of IPv4.
    """

    def __init__(self, networks: Iterable[Numbers] = ()) -> None:
        self._firsts: dict[int, list[int]] = {version: [] for version in LENGTHS}
        self._lasts: dict[int, list[int]] = {version: [] for version in LENGTHS}
        for version, first, end in sorted(
            (v, number, _end(v, prefix, number)) for v, prefix, number in networks
        ):
            lasts = self._lasts[version]
            if lasts and first <= lasts[-1] + 1:
                lasts[-1] = max(lasts[-1], end - 1)
            else:
                self._firsts[version].append(first)
                lasts.append(end - 1)

    def overlaps(self, version: int, prefix: int, number: int) -> bool:
        """Whether some of them lie in a network."""
        firsts = self._firsts[version]
        index = bisect_left(self._lasts[version], number)
        return index < len(firsts) and firsts[index] < _end(version, prefix, number)

    def left_of(self, version: int, prefix: int, number: int) -> Iterator[Numbers]:
        """Cut them out of a network: give what is left, in order, as few networks as hold it."""
        firsts, lasts = self._firsts[version], self._lasts[version]
        at, end = number, _end(version, prefix, number)
        for index in range(bisect_left(lasts, number), len(lasts)):
            if firsts[index] >= end:
                break
            yield from _holding(version, at, firsts[index])
            at = lasts[index] + 1
        yield from _holding(version, at, end)


def _end(version: int, prefix: int, number: int) -> int:
    return number + (1 << LENGTHS[version] - prefix)


def _holding(version: int, at: int, end: int) -> Iterator[Numbers]:
    """Give the fewest networks that hold the numbers from one up to another, that one excluded."""
    while at < end:
        bits = (end - at).bit_length() - 1
        if at:
            bits = min(bits, (at & -at).bit_length() - 1)
        yield version, LENGTHS[version] - bits, at
        at += 1 << bits
