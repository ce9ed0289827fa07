"""
Forwarding headers: the hops that proxies have written down, from the nearest to the farthest.

The nearest stands last, and only what stands right of an attacker's text is the proxies' own: every header is read
from its end, so that nothing in the left part can hide or move what comes after it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

UNREADABLE = ""  # stands for a hop that says nothing
FORWARDED = "forwarded"
# An edge writes one address into these, in place of whatever came; two of them are not its work.
SINGLE_VALUED = frozenset(
    {
        "cf-connecting-ip", "cf-connecting-ipv6", "cf-pseudo-ipv4", "fastly-client-ip",
        "fly-client-ip", "client-ip", "true-client-ip", "x-appengine-user-ip", "x-azure-clientip", "x-azure-socketip",
        "x-client-ip", "x-cluster-client-ip", "x-envoy-external-address", "x-nf-client-connection-ip", "x-real-ip",
        "x-vercel-forwarded-for",
    }
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_PARAMETER = re.compile(r'[ \t]*([A-Za-z0-9!#$%&\'*+.^_`|~-]+)=("(?:[^"\\]|\\.)*"|[^";,\s]*)[ \t]*(?:;|$)')
_ESCAPED = re.compile(r"\\(.)")
# RFC 7239 lets a proxy hide its client's port and name the address all the same.
_HIDDEN_PORT = re.compile(r"(\[[^\]]*\]|[^:\[]+):_[A-Za-z0-9._-]+")


def is_header(name: str) -> bool:
    """Whether a header can have this name by RFC 9110."""
    return _NAME.fullmatch(name) is not None


def travelling(name: str) -> str:
    """Give the name of a header as it travels, of one that may be written as WSGI does: `HTTP_X_REAL_IP`."""
    name = name.replace("_", "-")
    return name[5:] if name[:5].upper() == "HTTP-" else name


def hops(header: str, value: str) -> Iterator[str]:
    """
    Give what a header says of each hop, the nearest first; blank: a hop that it says nothing usable of.

    `header`: its name, in any case. `Forwarded` is read by RFC 7239, the headers of edges hold one address, and any
    other is a list as `X-Forwarded-For` is. Several lines of a header arrive joined by commas.
    """
    name = header.lower()
    if name == FORWARDED:
        yield from map(_for, _elements(value))
    elif name in SINGLE_VALUED:
        yield UNREADABLE if "," in value else value
    else:
        yield from reversed(value.split(","))


def _elements(value: str) -> Iterator[str]:
    """Cut at the commas that no quotes enclose, from the end: a quote that opens further left encloses nothing here."""
    if '"' not in value:
        yield from reversed(value.split(","))
        return
    end, is_quoted = len(value), False
    for place in range(len(value) - 1, -1, -1):
        char = value[place]
        if char == '"' and not _is_escaped(value, place):
            is_quoted = not is_quoted
        elif char == "," and not is_quoted:
            yield value[place + 1 : end]
            end = place
    yield value[:end]


def _is_escaped(value: str, place: int) -> bool:
    """Whether an odd number of backslashes stands before a place; only these are looked at, however long the text."""
    start = place
    while start and value[start - 1] == "\\":
        start -= 1
    return (place - start) % 2 == 1


def _for(element: str) -> str:
    """Give the one `for` of an element of `Forwarded`; what is not written as the standard says is unreadable."""
    found, place = [], 0
    while place < len(element):
        match = _PARAMETER.match(element, place)
        if match is None:
            return UNREADABLE
        if match[1].lower() == "for":
            found.append(match[2])
        place = match.end()
    if len(found) != 1:
        return UNREADABLE
    text = found[0]
    if text.startswith('"'):
        text = _ESCAPED.sub(r"\1", text[1:-1])
    hidden = _HIDDEN_PORT.fullmatch(text) if ":_" in text else None
    return hidden[1] if hidden else text
