"""
Notices: whose remembered decisions every process must forget, in a stream that each reads beside its snapshot.

An entry names one identity; one that names none stands for everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratelimit_app.conf import conf
from ratelimit_app.store.connection import site, unavailable

if TYPE_CHECKING:
    from collections.abc import Collection

MAX_ENTRIES = 1_000
MAX_NAMED = 100
TTL = 24 * 3_600
_UNREAD = b"0-0"


def commit(pipe: Any, identities: Collection[str] | None) -> None:
    """
    Run a pipeline with the notice of what it changes; None, or more than 100 identities: one notice of everything.

    Raises what redis-py raises. A notice that another type's key takes the place of is no error: whoever reads
    that key forgets everything.
    """
    fields: list[dict[Any, Any]] = [{"everything": 1}]
    if identities is not None and len(identities) <= MAX_NAMED:
        fields = [{"identity": identity} for identity in identities]
    changes = len(pipe)
    for field in fields:
        pipe.xadd(conf.keys.notices, field, maxlen=MAX_ENTRIES, approximate=True)
    pipe.expire(conf.keys.notices, TTL)
    for place, reply in enumerate(pipe.execute(raise_on_error=False)):
        if isinstance(reply, Exception) and not (place >= changes and "WRONGTYPE" in str(reply)):
            raise reply


def send(identities: Collection[str] | None) -> None:
    """Have every process forget these, None: everything. Raises StoreUnavailable."""
    with unavailable():
        commit(site().pipeline(transaction=True), identities)


class Reader:
    """
    What one process has read of the notices.

    It asks for its last entry once more: when that is gone, the stream was trimmed, lost or replaced meanwhile, and
    what stood in between is unknown.
    """

    def __init__(self) -> None:
        self._last = _UNREAD

    def ask(self, pipe: Any) -> None:
        """Add the question to a pipeline."""
        pipe.xrange(conf.keys.notices, min=self._last)

    def take(self, reply: Any) -> set[str] | None:
        """Give whom the answer says to forget, None: everything."""
        if not isinstance(reply, list):
            return None
        found, missed = reply, len(reply) >= MAX_ENTRIES
        if self._last != _UNREAD:
            missed |= not reply or reply[0][0] != self._last
            found = reply[1:]
        self._last = reply[-1][0] if reply else _UNREAD
        if missed or not all(b"identity" in fields for _, fields in found):
            return None
        return {fields[b"identity"].decode("utf-8", "replace") for _, fields in found}
