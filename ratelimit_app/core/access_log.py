"""
Access logs of web servers (common and combined format, plain or gzip) as entries with a time.

Nothing in a log is trusted: a line is any bytes, and what cannot be read gives `None` or `Unreadable`, never an
exception. Lines may come in any order.
"""

from __future__ import annotations

import re
import zlib
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import lru_cache
from gzip import BadGzipFile, GzipFile
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_to_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

MAX_LINE = 65_536

_GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_ABSENT = (b"", b"-", b'""')
_LEAP_SECOND = 60
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MONTHS = {
    month: number
    for number, month in enumerate(b"jan feb mar apr may jun jul aug sep oct nov dec".split(), start=1)
}
_QUOTED = rb'"((?:[^"\\]|\\.)*+)"'
# The user may hold spaces; its length is bounded so that a hostile line costs no more than its length.
_LINE = re.compile(
    rb"(\S{1,512}) \S{1,256} (.{0,256}?) ?\[([^\]]{20,40})\] " + _QUOTED + rb" \d{3} (?:\d+|-)(?: (.*))?",
    re.DOTALL,
)
_TAIL = re.compile(_QUOTED + rb" " + _QUOTED, re.DOTALL)
_TIME = re.compile(rb"(\d\d)/([A-Za-z]{3})/(\d{4}):(\d\d):(\d\d):(\d\d) ([+-])([01]\d|2[0-3])([0-5]\d)")
_REQUEST = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}) (\S.*?)(?: HTTP/[0-9.]{1,8})?", re.DOTALL)
_ORIGIN = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
_ESCAPE = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_CONTROLS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"v": b"\v", b"f": b"\f"}


class Unreadable(Enum):
    """Stand for a piece of a log that gave no line."""

    TOO_LONG = "too long"
    DAMAGED = "damaged"


class Entry(NamedTuple):
    """
    One request, as an access log tells it.

    `at_us`: the line's own time, microseconds since the epoch. `client`: an address or a host name. `method` and
    `path` (percent-decoded, without the query) are None when what was asked is no HTTP request; `user` and
    `user_agent` are None when the line has none.
    """

    at_us: int
    client: str
    user: str | None
    method: str | None
    path: str | None
    user_agent: str | None


def read_lines(stream: BufferedReader) -> Iterator[bytes | Unreadable]:
    """
    Give the lines of a log, with their ends, unpacking gzip wherever its first bytes say so.

    A line over `MAX_LINE` bytes comes as `TOO_LONG`; compressed data that breaks off or makes no sense comes as
    `DAMAGED`, after the lines before it, and ends the log.
    """
    packed = stream.peek(2)[:2] == _GZIP_MAGIC
    source: BufferedReader | GzipFile = GzipFile(fileobj=stream) if packed else stream
    try:
        while line := source.readline(MAX_LINE):
            if len(line) < MAX_LINE or line.endswith(b"\n"):
                yield line
            else:
                _skip_line(source)
                yield Unreadable.TOO_LONG
    except (BadGzipFile, EOFError, zlib.error):
        yield Unreadable.DAMAGED


def _skip_line(source: BufferedReader | GzipFile) -> None:
    while (rest := source.readline(MAX_LINE)) and not rest.endswith(b"\n"):
        pass


def parse_line(line: bytes) -> Entry | None:
    """Read one line in common or combined format; None when it is broken. Takes any bytes."""
    match = _LINE.fullmatch(line.removeprefix(_BOM).rstrip(b"\r\n"))
    if match is None:
        return None
    client, user, time, request, tail = match.groups()
    at_us = _parse_time(time)
    if at_us is None:
        return None
    method, path = _parse_request(_unescape(request))
    return Entry(at_us, _text(client), _parse_user(user), method, path, _parse_agent(tail or b""))


@lru_cache(maxsize=4_096)
def _parse_time(text: bytes) -> int | None:
    """Read `17/May/2015:10:05:03 +0000`, whatever the locale, as microseconds since the epoch."""
    match = _TIME.fullmatch(text)
    month = _MONTHS.get(match[2].lower()) if match else None
    if match is None or month is None:
        return None
    day, year, hour, minute, second = (int(match[group]) for group in (1, 3, 4, 5, 6))
    leap = int(second == _LEAP_SECOND)
    try:
        since = datetime(year, month, day, hour, minute, second - leap, tzinfo=UTC) - _EPOCH
    except ValueError:
        return None
    offset = timedelta(hours=int(match[8]), minutes=int(match[9]))
    since += timedelta(seconds=leap) + (-offset if match[7] == b"+" else offset)
    return since // timedelta(microseconds=1)


def _parse_request(request: bytes) -> tuple[str | None, str | None]:
    match = _REQUEST.fullmatch(request)
    if match is None:
        return None, None
    target = _ORIGIN.sub(b"", match[2], count=1) if match[2][:4].lower() == b"http" else match[2]
    path = target.partition(b"?")[0].partition(b"#")[0]
    return match[1].decode("ascii").upper(), _text(unquote_to_bytes(path)) or "/"


def _parse_user(user: bytes) -> str | None:
    return None if user in _ABSENT else _text(_unescape(user))


def _parse_agent(tail: bytes) -> str | None:
    match = _TAIL.match(tail)
    if match is None or match[2] in _ABSENT:
        return None
    # Headers reach Django as Latin-1 text: the same text gives the same digest.
    return _unescape(match[2]).decode("latin-1")


def _unescape(field: bytes) -> bytes:
    return _ESCAPE.sub(_unescaped, field) if b"\\" in field else field


def _unescaped(match: re.Match[bytes]) -> bytes:
    if match[1]:
        return bytes.fromhex(match[1].decode("ascii"))
    return _CONTROLS.get(match[2], match[2])


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")
