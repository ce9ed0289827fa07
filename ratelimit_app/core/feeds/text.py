"""A text that is read a piece at a time, whatever its size, with the number of the line that is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

MAX_LINE = 65_536
_PIECE = 65_536


class Text:
    """
    What is read of a stream: by lines, or as a buffer from which values are taken.

    A reader uses one of both ways. `buffer[at:]` is what was not taken yet.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.buffer, self.at = stream.read(_PIECE), 0
        self._line, self._counted = 1, 0

    def head(self) -> str:
        """Give the beginning, without taking it."""
        return self.buffer

    def lines(self) -> Iterator[tuple[int, str]]:
        """Give each line with its number; of one that is longer than 64 KiB the first 64 Ki characters alone."""
        number = 0
        while line := self._readline():
            number += 1
            yield number, line
            while len(line) == MAX_LINE and not line.endswith("\n"):
                line = self._readline()

    def _readline(self) -> str:
        end = self.buffer.find("\n", self.at, self.at + MAX_LINE) + 1
        if not end:
            if len(self.buffer) - self.at < MAX_LINE and self.fill():
                return self._readline()
            end = min(len(self.buffer), self.at + MAX_LINE)
        line, self.at = self.buffer[self.at : end], end
        return line

    def fill(self) -> bool:
        """Read on, keeping what was not taken; whether there was more."""
        left = len(self.buffer) - self.at
        # Ever larger pieces, so that what needs many of them is not read over and over.
        piece = self._stream.read(max(_PIECE, left))
        if not piece:
            return False
        self._count()
        self.buffer, self.at, self._counted = self.buffer[self.at :] + piece, 0, 0
        return True

    def place(self) -> int:
        """Number the line of what comes next."""
        self._count()
        return self._line

    def _count(self) -> None:
        self._line += self.buffer.count("\n", self._counted, self.at)
        self._counted = self.at
