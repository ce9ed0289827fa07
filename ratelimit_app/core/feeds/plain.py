"""Plain lists and netset files: one address, network, range or value in a line, with comments."""

from __future__ import annotations

import re
from ipaddress import ip_address, summarize_address_range
from typing import TYPE_CHECKING

from ratelimit_app.core.feeds.records import Listed, PassedOver, identity_in
from ratelimit_app.core.feeds.text import MAX_LINE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratelimit_app.core.feeds.records import Terms
    from ratelimit_app.core.feeds.text import Text

TOO_LONG = "is too long for a line of a list"
NO_RANGE = "is no range of addresses"

_COMMENT = re.compile(r"(?:^|\s+)(?:#|;|//)(.*)", re.DOTALL)
# No address holds one of these, so here a comment needs no space before it.
_ADDRESS_COMMENT = re.compile(r"\s*(?:#|;|//)(.*)", re.DOTALL)
_COUNTED = re.compile(r"(\S+)(?:\s+\d+)+")
_RANGE = re.compile(r"([0-9A-Fa-f.:]+)\s*-\s*([0-9A-Fa-f.:]+)")


def read_plain(text: Text, terms: Terms) -> Iterator[Listed | PassedOver]:
    """
    Read a list of one value in a line. What a comment behind a value says is its reason.

    Columns of numbers behind an address are left aside.
    """
    comment = _ADDRESS_COMMENT if terms.kind == "ip" else _COMMENT
    for number, line in text.lines():
        if len(line) >= MAX_LINE:
            yield PassedOver(number, line[:80], TOO_LONG)
            continue
        found = comment.search(line)
        value = (line[: found.start()] if found else line).strip()
        if value:
            yield from _read_value(value, number, found[1].strip() if found else "", terms)


def _read_value(value: str, line: int, reason: str, terms: Terms) -> Iterator[Listed | PassedOver]:
    kind, value = identity_in(value, terms)
    if kind != "ip":
        yield Listed(line, kind, value, reason)
        return
    if between := _RANGE.fullmatch(value):
        yield from _read_range(between, line, reason)
        return
    counted = _COUNTED.fullmatch(value)
    yield Listed(line, "ip", counted[1] if counted else value, reason)


def _read_range(between: re.Match[str], line: int, reason: str) -> Iterator[Listed | PassedOver]:
    try:
        first, last = ip_address(between[1]), ip_address(between[2])
        networks = list(summarize_address_range(first, last))
    except (ValueError, TypeError):
        yield PassedOver(line, between[0], NO_RANGE)
        return
    for network in networks:
        yield Listed(line, "ip", str(network), reason)
