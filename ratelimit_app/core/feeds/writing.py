"""
Lists as they are written: CSV and JSON with all that an entry says, and files for the edge with addresses alone.

A file for the edge holds canonical networks and no text of anybody's, so that no value can end a line or a list of
its format. Everything is given in pieces, as it comes.
"""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime

COLUMNS = ("kind", "value", "reason", "source", "expires_at", "created_at")
SET_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,20}")
# What a spreadsheet would take for a formula; the mark before it is taken off again by whoever imports.
FORMULA, MARK = "=+-@\t\r", "'"

_IPSET_MOST = 2_097_152  # a bound, not a size: the same in every file, since a set's bound cannot be changed
_NFT_ELEMENTS = 500


class Written(NamedTuple):
    """An entry as a list has it; `expires_at`: None for never."""

    kind: str
    value: str
    reason: str
    source: str
    expires_at: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Stamp:
    """When a file was made, and until when it holds; None: until the list is edited."""

    made_at: datetime
    holds_until: datetime | None


def guarded(cell: str) -> str:
    """Give a cell that no spreadsheet takes for a formula."""
    return MARK + cell if cell[:1] in FORMULA + MARK and cell else cell


def unguarded(cell: str) -> str:
    """Give what `guarded` was given."""
    return cell[1:] if cell[:1] == MARK and len(cell) > 1 and cell[1] in FORMULA + MARK else cell


def csv_pieces(rows: Iterable[Written]) -> Iterator[str]:
    """Write entries as CSV with a header row."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow(
            [guarded(row.kind), guarded(row.value), guarded(row.reason), row.source, *_moments(row)]
        )
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()


def json_pieces(rows: Iterable[Written], made_at: datetime) -> Iterator[str]:
    """Write entries as one JSON object, one entry in a line."""
    yield '{"entries": ['
    lead = "\n"
    for row in rows:
        expires_at, created_at = _moments(row)
        record = {**row._asdict(), "expires_at": expires_at or None, "created_at": created_at}
        yield lead + json.dumps(record, ensure_ascii=False)
        lead = ",\n"
    yield f'\n], "exported_at": {json.dumps(made_at.isoformat())}}}\n'


def _moments(row: Written) -> tuple[str, str]:
    return row.expires_at.isoformat() if row.expires_at else "", row.created_at.isoformat()


def head(stamp: Stamp) -> str:
    """Write the comment with which a file for the edge begins."""
    until = stamp.holds_until.isoformat() if stamp.holds_until else "the list is edited"
    return f"# Made by ratelimit_export at {stamp.made_at.isoformat()}.\n# Holds until {until}.\n"


def _plain(networks: Iterable[str], _: str) -> Iterator[str]:
    for text in networks:
        yield f"{text}\n"


def _nginx(networks: Iterable[str], _: str) -> Iterator[str]:
    for text in networks:
        yield f"deny {text};\n"


def _geo(networks: Iterable[str], _: str) -> Iterator[str]:
    for text in networks:
        yield f"{text} 1;\n"


def _haproxy(networks: Iterable[str], _: str) -> Iterator[str]:
    for text in networks:
        yield f"{text} 1\n"


def _ipset(networks: Iterable[str], name: str) -> Iterator[str]:
    """Fill new sets and swap them with those in use, so that no packet meets a half-filled one."""
    families = (("4", "inet"), ("6", "inet6"))
    for digit, family in families:
        for part in (name + digit, f"{name}{digit}_new"):
            yield f"create {part} hash:net family {family} maxelem {_IPSET_MOST} -exist\n"
        yield f"flush {name}{digit}_new\n"
    for text in networks:
        # The kernel takes no network of length 0.
        halves = {"0.0.0.0/0": ("0.0.0.0/1", "128.0.0.0/1"), "::/0": ("::/1", "8000::/1")}.get(text, (text,))
        for half in halves:
            yield f"add {name}{_digit(text)}_new {half} -exist\n"
    for digit, _ in families:
        yield f"swap {name}{digit}_new {name}{digit}\ndestroy {name}{digit}_new\n"


def _nftables(networks: Iterable[str], name: str) -> Iterator[str]:
    """Empty and fill two sets of a table, in one transaction of `nft -f`."""
    yield f"table inet {name} {{\n"
    for digit in "46":
        yield f"\tset blocked{digit} {{\n\t\ttype ipv{digit}_addr; flags interval; auto-merge\n\t}}\n"
    yield "}\n"
    for digit in "46":
        yield f"flush set inet {name} blocked{digit}\n"
    waiting: dict[str, list[str]] = {"4": [], "6": []}
    for text in networks:
        some = waiting[_digit(text)]
        some.append(text)
        if len(some) == _NFT_ELEMENTS:
            yield _elements(name, _digit(text), some)
            some.clear()
    for digit, some in waiting.items():
        if some:
            yield _elements(name, digit, some)


def _elements(name: str, digit: str, networks: list[str]) -> str:
    return f"add element inet {name} blocked{digit} {{ {', '.join(networks)} }}\n"


def _digit(text: str) -> str:
    return "6" if ":" in text else "4"


EDGE: dict[str, Callable[[Iterable[str], str], Iterator[str]]] = {
    "plain": _plain,
    "nginx": _nginx,
    "nginx-geo": _geo,
    "haproxy": _haproxy,
    "ipset": _ipset,
    "nftables": _nftables,
}
