"""CSV with a header row: ours, an export's, CrowdSec's, or whatever names a column `ip` or `network`."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from ratelimit_app.core.feeds.records import VALUE_NAMES, Listed, PassedOver, read_record
from ratelimit_app.core.feeds.writing import unguarded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratelimit_app.core.feeds.records import Terms
    from ratelimit_app.core.feeds.text import Text

NO_ROW = "is no row of a CSV file"
NO_HEADER = "names no column of values"

_DELIMITERS = ",;\t"
_COMMENTS = ("#", "//")


def is_header(head: str) -> bool:
    """Whether a text begins with a row of names, one of which is that of a column of values."""
    line = next((line for line in head.splitlines() if line.strip() and not _is_comment(line)), "")
    names = _names(line.split(_delimiter(line)))
    return not set(VALUE_NAMES).isdisjoint(names) and all(
        name.replace("_", "").replace(" ", "").isalnum() for name in names if name
    )


def read_csv(text: Text, terms: Terms) -> Iterator[Listed | PassedOver]:
    """Read rows by the names in the first one; the columns may come in any order."""
    numbers: list[int] = [0]
    lines = _counted(text, numbers)
    head = next(lines, "")
    names = _names(_cells(head))
    if set(VALUE_NAMES).isdisjoint(names):
        yield PassedOver(numbers[0] or 1, head.strip()[:200], NO_HEADER)
        return
    rows = csv.reader(lines, delimiter=_delimiter(head))
    while True:
        try:
            row = next(rows, None)
        except csv.Error:
            yield PassedOver(numbers[0], "", NO_ROW)
            continue
        if row is None:
            return
        if not any(row):
            continue
        if len(row) > len(names) and any(row[len(names) :]):
            yield PassedOver(numbers[0], ",".join(row)[:200], NO_ROW)
            continue
        yield read_record(dict(zip(names, map(unguarded, row), strict=False)), numbers[0], terms)


def _counted(text: Text, numbers: list[int]) -> Iterator[str]:
    for number, line in text.lines():
        if not _is_comment(line) and (numbers[0] or line.strip()):
            numbers[0] = number
            yield line


def _is_comment(line: str) -> bool:
    return line.startswith(_COMMENTS)


def _delimiter(head: str) -> str:
    return max(_DELIMITERS, key=head.count)


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=_delimiter(line)), [])
    except csv.Error:
        return []


def _names(row: list[str]) -> list[str]:
    return [name.strip().strip('"').lower() for name in row]
