"""Lists as others publish them, each form read from a file as its publisher writes it."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_app.core.feeds import Broken, Listed, PassedOver, Terms, read
from ratelimit_app.core.feeds import records as said
from ratelimit_app.core.feeds.json_values import DELETED, MAX_VALUE
from ratelimit_app.core.feeds.plain import NO_RANGE, TOO_LONG
from ratelimit_app.core.feeds.tables import NO_HEADER, NO_ROW
from ratelimit_app.core.feeds.text import MAX_LINE, Text

FEEDS = Path(__file__).resolve().parents[1] / "fixtures" / "feeds"
NOW = datetime(2026, 12, 1, 8, 0, tzinfo=UTC)
TERMS = Terms("ip", NOW)
DIGEST = "~0123456789abcdef0123456789abcdef"
EXPORTED = [
    ("ip", "203.0.113.7", "scraping, again", None),
    ("ip", "198.51.100.0/24", "", datetime(2126, 12, 1, tzinfo=UTC)),
    ("user", "42", 'said "no"\ntwice', datetime(2020, 1, 1, tzinfo=UTC)),
    ("header:x-api-key", DIGEST, "leaked", None),
]


class Dripping(io.StringIO):
    """A text that comes a few characters at a time, as from a pipe."""

    def __init__(self, text: str, drip: int) -> None:
        super().__init__(text)
        self.drip = drip

    def read(self, size: int | None = -1) -> str:
        return super().read(self.drip)


def rows_of(text: str, form: str = "auto", kind: str = "ip") -> list[Listed | PassedOver]:
    """Read a text."""
    return list(read(io.StringIO(text), Terms(kind, NOW), form)[1])


def file(name: str, form: str = "auto") -> tuple[str, list[Listed | PassedOver]]:
    """Read one of the files."""
    with (FEEDS / name).open(encoding="utf-8") as stream:
        found, rows = read(stream, TERMS, form)
        return found, list(rows)


def listed(rows: list[Listed | PassedOver]) -> list[tuple[str, str, str, datetime | None]]:
    """Give what rows list."""
    return [(row.kind, row.value, row.reason, row.expires_at) for row in rows if isinstance(row, Listed)]


def passed(rows: list[Listed | PassedOver]) -> list[tuple[int, str, bool]]:
    """Give where rows were passed over, why, and whether that is a fault."""
    return [(row.line, row.why, row.is_fault) for row in rows if isinstance(row, PassedOver)]


def values(rows: list[Listed | PassedOver]) -> list[str]:
    """Give whom rows list."""
    return [row.value for row in rows if isinstance(row, Listed)]


def test_a_netset_when_read_gives_its_networks_and_no_comment() -> None:
    """The header of an aggregator's file is skipped, also where it names an address."""
    form, rows = file("level1.netset")
    assert "plain" == form
    assert [
        "198.51.100.0/25", "198.51.100.128/26", "203.0.113.7", "203.0.113.128/25", "192.0.2.64/30",
    ] == values(rows)  # fmt: skip
    assert [15, 16, 17, 18, 19] == [row.line for row in rows]
    assert rows == file("level1.netset", "netset")[1]


def test_a_list_with_comments_behind_when_read_takes_them_as_reasons() -> None:
    """What a publisher says behind a network is why it is listed."""
    assert [
        ("ip", "198.51.100.0/24", "SBL000001", None),
        ("ip", "2001:db8:dead::/48", "SBL000002", None),
        ("ip", "203.0.113.0/24", "SBL000003", None),
    ] == listed(file("drop.txt")[1])


def test_a_list_with_counts_when_read_leaves_them_aside() -> None:
    """Columns of numbers behind an address are not part of it."""
    assert ["203.0.113.7", "203.0.113.8"] == values(file("counted.txt")[1])


def test_a_plain_list_when_mixed_gives_each_line_its_own_answer() -> None:
    """C100: values stay as they are typed for whoever judges them; ranges become networks; faults have their line."""
    rows = file("mixed.txt")[1]
    assert [
        ("ip", "192.0.2.121/24"), ("ip", "192.0.2.1"), ("ip", "2001:DB8::1"), ("ip", "::ffff:198.51.100.7"),
        ("ip", "198.51.100.16/28"), ("ip", "198.51.100.40/31"), ("user", "42"), ("header:x-api-key", "s3cret"),
        ("ip", "not an address"), ("ip", "192.0.2.256"),
    ] == [row[:2] for row in listed(rows)]  # fmt: skip
    assert [(13, NO_RANGE, True)] == passed(rows)
    assert "tor exit" in [row[2] for row in listed(rows)]


def test_a_plain_list_when_its_kind_is_said_holds_values_of_that_kind_only() -> None:
    """With a kind a line is a value as it is, whatever it looks like; a comment needs its space."""
    rows = rows_of("42\nuser:7\nip:1\na#b # why\n", kind="device")
    assert [
        ("device", "42", ""), ("device", "user:7", ""), ("device", "ip:1", ""), ("device", "a#b", "why"),
    ] == [row[:3] for row in listed(rows)]  # fmt: skip


@pytest.mark.parametrize("text", ["192.0.2.0 /24", "192.0.2.0 -", "192.0.2.0 24 x", "192.0.2.0,why"])
def test_a_plain_line_when_it_goes_on_is_not_cut_short(text: str) -> None:
    """Half a line would list somebody else."""
    assert [text] == values(rows_of(text, "plain"))


def test_a_line_when_endless_is_passed_over_and_the_next_one_counts() -> None:
    """A file without line ends takes no memory."""
    rows = rows_of("1" * (3 * MAX_LINE + 5) + "\n192.0.2.1")
    assert [(1, TOO_LONG, True)] == passed(rows)
    assert [2] == [row.line for row in rows if isinstance(row, Listed)]


@pytest.mark.parametrize("name", ["export.csv", "export.json"])
def test_an_export_when_read_back_says_what_it_said(name: str) -> None:
    """The rows of `ratelimit_export` come back with kind, value, reason and end."""
    assert EXPORTED == listed(file(name)[1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ip,reason\n192.0.2.1,why\n", ("ip", "192.0.2.1", "why")),
        ("Reason;Network\nwhy;192.0.2.0/24\n", ("ip", "192.0.2.0/24", "why")),
        ('"address"\t"comment"\n192.0.2.1\t"a\tb"\n', ("ip", "192.0.2.1", "a\tb")),
        ("# comment\n\nidentity,note\nuser:42,x\n", ("user", "42", "")),
        ("value,kind\n42,user\n", ("user", "42", "")),
    ],
)
def test_a_csv_when_it_names_its_columns_is_read_by_them(text: str, expected: tuple[str, str, str]) -> None:
    """Order, delimiter, case and further columns are the publisher's."""
    assert [expected] == [row[:3] for row in listed(rows_of(text))]


def test_a_csv_when_rows_are_faulty_passes_these_over() -> None:
    """No value, an end that is none, more columns than names: each with its line."""
    rows = rows_of("value,expires_at\n,\n,2026-01-01\n192.0.2.1,soon\n192.0.2.2,,why\n192.0.2.3\n")
    assert [
        (3, said.NO_VALUE, True), (4, said.NO_END, True), (5, NO_ROW, True),
    ] == passed(rows)  # fmt: skip
    assert ["192.0.2.3"] == values(rows)
    assert [(1, NO_HEADER, True)] == passed(rows_of("a,b\n1,2\n", "csv"))
    assert [] == rows_of("", "csv")[1:]


def test_decisions_of_crowdsec_when_listed_as_json_are_read_from_their_alerts() -> None:
    """Bans of Ip and Range, with scenario and end; what is no ban is left out, another scope is a fault."""
    form, rows = file("crowdsec_alerts.json", "crowdsec")
    assert "json" == form
    assert [
        ("ip", "203.0.113.7", "example/ssh-bf", NOW + timedelta(hours=3, minutes=59, seconds=49.264033)),
        ("ip", "198.51.100.0/24", "example/list", NOW + timedelta(hours=23, seconds=1)),
        ("ip", "203.0.113.10", "example/ssh-bf", NOW - timedelta(minutes=2, seconds=3)),
    ] == listed(rows)
    assert [(said.OTHER_SCOPE, True), (said.NOT_A_BAN, False), (said.SIMULATED, False)] == [
        row[1:] for row in passed(rows)
    ]


def test_decisions_of_crowdsec_when_streamed_are_the_new_ones() -> None:
    """What the local API says is deleted bans nobody."""
    rows = file("crowdsec_stream.json")[1]
    assert [("ip", "2001:db8::7", "example/http-probing", NOW + timedelta(hours=167))] == listed(rows)
    assert [(DELETED, False)] == [row[1:] for row in passed(rows)]


def test_decisions_of_crowdsec_when_csv_are_read_with_their_scope() -> None:
    """Both the raw listing, whose column holds scope and value, and the form that its import takes."""
    rows = file("crowdsec_raw.csv")[1]
    assert ["203.0.113.7", "198.51.100.0/24"] == values(rows)
    assert [said.NOT_A_BAN, said.SIMULATED, said.OTHER_SCOPE, said.NO_DURATION] == [
        why for _, why, _ in passed(rows)
    ]
    assert [
        ("ip", "203.0.113.7", "", NOW + timedelta(days=1)),
        ("ip", "198.51.100.0/24", "", NOW + timedelta(hours=1)),
    ] == listed(file("crowdsec_decisions.csv")[1])


def test_a_decision_when_it_says_until_when_is_believed_over_its_duration() -> None:
    """A file may be hours old: an instant still holds then. An IPv6 address has no scope before its first colon."""
    text = json.dumps({"value": "fd::1", "duration": "4h", "until": "2026-12-01T09:00:00Z"})
    assert [("ip", "fd::1", "", NOW + timedelta(hours=1))] == listed(rows_of(text))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("4h", 14_400),
        ("1h0m0.5s", 3_600.5),
        ("200ms", 0.2),
        ("-1m", -60),
        ("5\u00b5s", 5e-6),
        ("1.5h", 5_400),
    ],
)
def test_a_duration_when_go_wrote_it_is_read(text: str, seconds: float) -> None:
    """Every unit, fractions and signs."""
    assert pytest.approx(seconds) == said.read_go_duration(text)


@pytest.mark.parametrize("text", ["", "4", "h", "4 h", "4d", "--1h", "1h-2m", "nan", "infs"])
def test_a_duration_when_go_would_not_write_it_is_refused(text: str) -> None:
    """A guess could ban for ever."""
    with pytest.raises(ValueError, match="not a duration"):
        said.read_go_duration(text)


def test_json_when_its_values_follow_each_other_is_read_like_a_list() -> None:
    """JSON lines: texts, and objects of ours or with names that others use."""
    text = '"192.0.2.1"\n{"ip": "192.0.2.2", "comment": "why"}\n\n{"kind": "user", "value": 42}\n7\nnull\n'
    rows = rows_of('{"value": "192.0.2.0"}\n' + text)
    assert ["192.0.2.0", "192.0.2.1", "192.0.2.2", "42"] == values(rows)
    assert [1, 2, 3, 5] == [row.line for row in rows if isinstance(row, Listed)]
    assert [(6, said.NO_TEXT, True)] == passed(rows)


@pytest.mark.parametrize(
    "text", ["null", "[]", '{"entries": []}', '[{"decisions": null}]', " \n", "# nothing\n", "{}"]
)
def test_a_list_when_empty_gives_nothing(text: str) -> None:
    """Nobody is listed, and that is no fault."""
    assert [] == rows_of(text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[\n"a",\n', 3), ('[\n"a"\n"b"]', 3), ('[\n{"a": 1,\n,}]', 2), ('{"a"\n1}', 2), ('{"entries": ["a"\n', 2),
        ('{1: "a"}', 1), ('["a', 1), ('{"a": 1', 1), ("[" * 100_000, 1), ('{"a": ' + "9" * 5_000 + "}", 1),
    ],
)  # fmt: skip
def test_json_when_broken_says_where(text: str, line: int) -> None:
    """A list that ends too early must not pass for a whole one."""
    with pytest.raises(Broken, match=f"broken at line {line}:"):
        rows_of(text, "json")


def test_json_when_a_value_is_endless_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """One value at a time is held, and none of any size."""
    monkeypatch.setattr("ratelimit_app.core.feeds.json_values.MAX_VALUE", 1_000)
    assert MAX_VALUE > 1_000
    with pytest.raises(Broken):
        list(read(Dripping('["' + "a" * 10_000, 100), TERMS, "json")[1])


@pytest.mark.parametrize(
    ("head", "form"),
    [
        ("192.0.2.1\n", "plain"), ("[2001:db8::1]\n", "plain"), ("{}", "json"), (' [ {"a"', "json"), ("[", "json"),
        ("null", "json"), ("ip\n192.0.2.1", "csv"), ("192.0.2.1,ip\n", "plain"), ("a,b,c\n", "plain"), ("", "plain"),
        ("# ip,value\n192.0.2.1\n", "plain"), ("; x\nnullable\n", "plain"),
    ],
)  # fmt: skip
def test_a_form_when_not_said_is_seen(head: str, form: str) -> None:
    """What a text begins with tells its form."""
    assert form == read(io.StringIO(head), TERMS)[0]


plain_json = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 10**9) | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(plain_json, max_size=5), st.integers(1, 9), st.sampled_from([None, 2]), st.booleans())
def test_json_when_it_comes_in_drips_is_read_as_at_once(
    items: list[object], drip: int, indent: int | None, wrapped: bool
) -> None:
    """Wherever a read happens to end, the same values with the same lines come out, and no text is an exception."""
    text = json.dumps({"entries": items} if wrapped else items, indent=indent)
    assert rows_of(text, "json") == list(read(Dripping(text, drip), TERMS, "json")[1])


@given(st.text(max_size=200), st.integers(1, 9))
def test_lines_when_they_come_in_drips_are_those_of_the_text(text: str, drip: int) -> None:
    """The line reader loses nothing and numbers rightly."""
    expected = [(number, line) for number, line in enumerate(io.StringIO(text, newline="\n"), 1)]
    dripping = Dripping("", drip)
    io.StringIO.__init__(dripping, text, newline="\n")
    assert expected == list(Text(dripping).lines())


@given(st.text(max_size=100), st.sampled_from(["plain", "csv", "json", "auto"]))
def test_a_text_when_arbitrary_is_rows_or_broken(text: str, form: str) -> None:
    """No text of anybody's ends in another exception."""
    try:
        found = rows_of(text, form)
    except Broken:
        return
    assert all(row.line >= 1 for row in found)
