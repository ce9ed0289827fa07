"""The networks in Redis, read a slice at a time: all of them, or what has changed since a version."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ratelimit_app.conf import conf
from ratelimit_app.store.connection import site

if TYPE_CHECKING:
    from collections.abc import Iterator

Slice = list[tuple[str, Any]]

# So much is worked off in less than a millisecond, in which no other thread of the process runs.
SLICE = 250
_SCANNED = 1_000
_CHANGES_AT_ONCE = 8


class Missed(Exception):
    """What has changed is not known any more, or makes no sense: all networks are to be read."""


def whole() -> Iterator[Slice]:
    """
    Give all networks with their end, some at a time. Raises what redis-py raises.

    What changes meanwhile may be among them or not: the changes since the version before say it again.
    """
    cursor = None
    while cursor != 0:
        reply: Any = site().hscan(conf.keys.networks, cursor or 0, count=_SCANNED)
        cursor, rows = reply
        yield from _slices([(text.decode("utf-8", "replace"), end) for text, end in rows.items()])


def changes(ours: str, theirs: str) -> Iterator[Slice]:
    """
    Give what leads from our version to theirs, in order, some at a time; the end None: no network any more.

    Raises Missed, and what redis-py raises.
    """
    epoch, _, counter = theirs.partition(":")
    our_epoch, _, known = ours.partition(":")
    if epoch != our_epoch or not (known.isdigit() and counter.isdigit()) or int(counter) <= int(known):
        raise Missed
    first = _number(site().lindex(conf.keys.network_changes, 0))
    for start in range(int(known) + 1, int(counter) + 1, _CHANGES_AT_ONCE):
        wanted = range(start, min(start + _CHANGES_AT_ONCE, int(counter) + 1))
        if start < first:
            raise Missed
        rows: Any = site().lrange(conf.keys.network_changes, start - first, wanted[-1] - first)
        if len(rows) != len(wanted):
            raise Missed
        for row, number in zip(rows, wanted, strict=True):
            yield from _slices(_change(row, number))


def _number(row: Any) -> int:
    try:
        number = json.loads(row or b"null")["n"]
    except (ValueError, KeyError, TypeError) as error:
        raise Missed from error
    if type(number) is not int:
        raise Missed
    return number


def _change(row: bytes, number: int) -> Slice:
    try:
        change = json.loads(row)
        found = [*change["set"].items(), *((text, None) for text in change["del"])]
        makes_sense = change["n"] == number and all(
            type(text) is str and (end is None or type(end) is int) for text, end in found
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Missed from error
    if not makes_sense:
        raise Missed
    return found


def _slices(rows: Slice) -> Iterator[Slice]:
    for start in range(0, len(rows), SLICE):
        yield rows[start : start + SLICE]
