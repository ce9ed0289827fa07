"""An entry of a list, as it waits to be brought into the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from datetime import datetime


class Row(NamedTuple):
    """An entry to be: who in the one form that rows have, why, until when; None: for ever."""

    kind: str
    value: str
    reason: str
    expires_at: datetime | None

    def is_later(self, other: Row) -> bool:
        """Whether it holds longer than another."""
        if other.expires_at is None:
            return False
        return self.expires_at is None or self.expires_at > other.expires_at
