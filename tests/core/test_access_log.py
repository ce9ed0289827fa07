"""Access logs are read whatever bytes they hold."""

from __future__ import annotations

import gzip
import io
import locale
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_app.core.access_log import MAX_LINE, Entry, Unreadable, parse_line, read_lines

TIME = b"[17/May/2015:10:05:03 +0000]"
AT_US = int(datetime(2015, 5, 17, 10, 5, 3, tzinfo=UTC).timestamp()) * 1_000_000
GOOD = b'203.0.113.9 - - %b "GET /a HTTP/1.1" 200 12 "-" "Browser/1"' % TIME
FRAGMENTS = [
    b" ",
    b'"',
    b"[",
    b"]",
    b"\\",
    b"\\x",
    b"-",
    b"\r",
    b"\n",
    TIME,
    b"GET / HTTP/1.1",
    b"200",
    GOOD,
    b"\xff",
]
hostile = st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=40), max_size=20).map(b"".join)


def line(*, client=b"203.0.113.9", user=b"-", time=TIME, request=b"GET /a HTTP/1.1", rest=b"200 12") -> bytes:
    """Write a line in common format, or in combined with a longer rest."""
    return b'%b - %b %b "%b" %b' % (client, user, time, request, rest)


def parsed(raw: bytes) -> Entry:
    """Read a line that must be readable."""
    entry = parse_line(raw)
    assert entry is not None, raw
    return entry


def read(raw: bytes) -> list[bytes | Unreadable]:
    """Read a whole log."""
    return list(read_lines(io.BufferedReader(io.BytesIO(raw))))


def test_parse_line_of_the_combined_format_gives_every_field():
    """A combined line gives time, client, user, method, path and user agent."""
    raw = line(
        user=b"alice", request=b"POST /a/b?c=1 HTTP/2.0", rest=b'201 5 "https://example.org/" "Browser/1"'
    )
    assert Entry(AT_US, "203.0.113.9", "alice", "POST", "/a/b", "Browser/1") == parse_line(raw)


def test_parse_line_of_the_common_format_has_no_user_agent():
    """A common line is read like a combined one, without user agent."""
    assert Entry(AT_US, "203.0.113.9", None, "GET", "/a", None) == parse_line(line())


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_parse_line_with_any_line_end_gives_the_same(end):
    """CRLF, LF and no end at all make no difference."""
    assert parse_line(GOOD) == parse_line(GOOD + end)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"17/May/2015:18:05:03 +0800", AT_US),
        (b"17/May/2015:04:35:03 -0530", AT_US),
        (b"17/may/2015:10:05:03 +0000", AT_US),
        (b"16/May/2015:23:59:60 +0000", int(datetime(2015, 5, 17, tzinfo=UTC).timestamp()) * 1_000_000),
        (b"16/May/2015:23:59:60 -0000", int(datetime(2015, 5, 17, tzinfo=UTC).timestamp()) * 1_000_000),
        (b"31/Dec/1969:23:59:59 +0000", -1_000_000),
    ],
)
def test_parse_line_with_a_time_zone_gives_the_instant(text, expected):
    """A line's time is its own, whatever zone it is written in; a leap second is the one after 59."""
    assert expected == parsed(line(time=b"[%b]" % text)).at_us


@pytest.mark.parametrize(
    "text",
    [
        b"30/Feb/2015:10:05:03 +0000",
        b"17/Mai/2015:10:05:03 +0000",
        b"17/May/2015:24:05:03 +0000",
        b"17/May/2015:10:05:61 +0000",
        b"17/May/2015:10:05:03 +2500",
        b"17/May/2015:10:05:03 +0099",
        b"17/May/0000:10:05:03 +0000",
        b"17/May/2015:10:05:03",
        b"2015-05-17T10:05:03+00:00",
    ],
)
def test_parse_line_with_an_impossible_time_is_broken(text):
    """A time that does not exist makes the line broken, not an error."""
    assert parse_line(line(time=b"[%b]" % text)) is None


def test_parse_line_in_another_locale_still_reads_english_months():
    """Months are English whatever the locale of the process."""
    before = locale.setlocale(locale.LC_TIME)
    try:
        for name in ("de_DE.UTF-8", "C.UTF-8"):
            try:
                locale.setlocale(locale.LC_TIME, name)
            except locale.Error:
                continue
            assert AT_US == parsed(line(time=b"[17/May/2015:12:05:03 +0200]")).at_us
    finally:
        locale.setlocale(locale.LC_TIME, before)


@pytest.mark.parametrize(
    "client", ["2001:db8:1:2::9", "::ffff:203.0.113.9", "host.example.com", "unix:", "-"]
)
def test_parse_line_with_any_client_keeps_it_as_text(client):
    """IPv6 addresses, host names and sockets are clients too."""
    assert client == parsed(line(client=client.encode())).client


@pytest.mark.parametrize(
    ("request_", "method", "path"),
    [
        (b"GET /a%20b/%C3%A9 HTTP/1.1", "GET", "/a b/é"),
        (b"get /%6Cogin?next=/x HTTP/1.0", "GET", "/login"),
        (b"GET http://example.org/a?b HTTP/1.1", "GET", "/a"),
        (b"GET http://example.org HTTP/1.1", "GET", "/"),
        (b"OPTIONS * HTTP/1.1", "OPTIONS", "*"),
        (rb"GET /say/\"hi\" HTTP/1.1", "GET", '/say/"hi"'),
        (rb"GET /\xc3\xa9 HTTP/1.1", "GET", "/é"),
        (b"GET /\xff HTTP/1.1", "GET", "/\\xff"),
        (b"GET /two words HTTP/1.1", "GET", "/two words"),
        (b"GET /old", "GET", "/old"),
        (rb"\x16\x03\x01\x00\xee\x01", None, None),
        (b"\x16\x03\x01\x00\xee", None, None),
        (b"-", None, None),
        (b"", None, None),
    ],
)
def test_parse_line_with_any_request_gives_method_and_path_or_none(request_, method, path):
    """Escapes and percent-encoding are undone (C145), the query is cut (C147), garbage is no request."""
    entry = parsed(line(request=request_))
    assert (method, path) == (entry.method, entry.path)


def test_parse_line_with_escaped_quotes_in_the_user_agent_reads_all_of_it():
    """An escaped quote does not end a field, an escaped backslash does not escape the quote after it."""
    assert 'a "b" c' == parsed(line(rest=rb'200 - "-" "a \"b\" c"')).user_agent
    assert "a\\" == parsed(line(rest=rb'200 - "-" "a\\" 0.1')).user_agent


@pytest.mark.parametrize("agent", [b"-", b""])
def test_parse_line_without_a_user_agent_gives_none(agent):
    """An absent header is absent, not a value that clients share."""
    assert parsed(line(rest=b'200 - "-" "%b"' % agent)).user_agent is None


@pytest.mark.parametrize(
    "rest", [b"200 -", b"200 12 ", b'200 12 "-" "cut off', b"200 12 rt=0.1", b'408 0 "-" "-" "x"']
)
def test_parse_line_with_an_odd_tail_is_still_read(rest):
    """What follows the size may be missing, cut off, or more than the format knows."""
    assert AT_US == parsed(line(rest=rest)).at_us


def test_parse_line_with_spaces_in_the_user_reads_the_user():
    """Servers write a user's name as it is."""
    assert "alice b" == parsed(line(user=b"alice b")).user


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\r\n",
        b"garbage",
        b"\x00" * 100,
        GOOD[:40],
        GOOD.replace(b'" 200', b" 200"),
        GOOD.replace(b'"GET', b"GET"),
        b'203.0.113.9 - - %b "GET / HTTP/1.1"-"-" "Bot' % TIME,
        GOOD.replace(b"200", b"2xx"),
        GOOD.replace(TIME, b""),
        b'{"time": "2015-05-17", "client": "203.0.113.9"}',
    ],
)
def test_parse_line_that_is_broken_gives_none(raw):
    """Empty, cut off, unquoted and foreign lines are broken."""
    assert parse_line(raw) is None


@given(hostile)
def test_parse_line_of_any_bytes_never_raises(raw):
    """No bytes raise; what is read has a time and text that can be encoded."""
    entry = parse_line(raw)
    if entry is not None:
        assert isinstance(entry.at_us, int)
        assert entry.client.encode()


def test_parse_line_of_a_hostile_length_is_fast():
    """A line made to backtrack costs no more than a few passes over its length."""
    raw = b"a a " + (b" " + TIME + b' "\\') * (MAX_LINE // 34)
    start = datetime.now(tz=UTC)
    assert parse_line(raw) is None
    assert (datetime.now(tz=UTC) - start).total_seconds() < 1


def test_read_lines_of_a_gzip_log_gives_the_same_as_plain():
    """Gzip is recognised by its first bytes, and may hold several members."""
    plain = GOOD + b"\n" + GOOD + b"\r\n" + GOOD
    packed = gzip.compress(plain[:50]) + gzip.compress(plain[50:])
    assert [GOOD + b"\n", GOOD + b"\r\n", GOOD] == read(plain) == read(packed)


@pytest.mark.parametrize("cut", [15, 8, 1])
def test_read_lines_of_a_gzip_log_that_breaks_off_gives_the_lines_before(cut):
    """A log that was cut off in transport is read as far as it goes, and says so at its end."""
    lines = [b"%06d %b\n" % (number, GOOD) for number in range(5_000)]
    found = read(gzip.compress(b"".join(lines))[:-cut])
    assert Unreadable.DAMAGED == found.pop()
    assert lines[: len(found)] == found
    assert len(found) > 4_990


def test_read_lines_of_corrupt_gzip_data_ends_with_damaged():
    """Bytes that only look like gzip end the log without an exception."""
    assert [Unreadable.DAMAGED] == read(b"\x1f\x8b" + b"\xff" * 500)
    packed = bytearray(gzip.compress(GOOD * 2_000))
    packed[len(packed) // 2] ^= 0xFF
    assert Unreadable.DAMAGED == read(bytes(packed))[-1]
    assert [GOOD + b"\n", Unreadable.DAMAGED] == read(gzip.compress(GOOD + b"\n") + b"trailing")


def test_read_lines_with_a_line_over_the_bound_skips_that_line_alone():
    """A line longer than the bound is never held whole, and those around it are read."""
    longest = b"x" * (MAX_LINE - 1) + b"\n"
    found = read(GOOD + b"\n" + b"y" * (3 * MAX_LINE) + b"\n" + longest + b"z" * MAX_LINE)
    assert [GOOD + b"\n", Unreadable.TOO_LONG, longest, Unreadable.TOO_LONG] == found


@given(st.binary(max_size=200), st.booleans(), st.booleans())
def test_read_lines_of_any_bytes_never_raises(raw, packed, marked):
    """No bytes raise, packed or not, nor behind the mark of gzip; plain bytes come back whole."""
    data = gzip.compress(raw) if packed else raw
    found = read(b"\x1f\x8b\x08\x00" + data if marked else data)
    if not marked and not raw.startswith(b"\x1f\x8b"):
        assert raw == b"".join(piece for piece in found if isinstance(piece, bytes))
