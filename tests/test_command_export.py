"""`ratelimit_export`: what is active, in every form, whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from io import StringIO
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratelimit_app import block, exporting
from ratelimit_app.core.feeds import Listed, Terms, read, writing
from ratelimit_app.models import AllowlistEntry, BlacklistEntry
from tests.beside import child_environment
from tests.cases import HOSTILE_TEXTS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.django_db(transaction=True)

EDGE = ["plain", "nginx", "nginx-geo", "haproxy", "ipset", "nftables"]
SOON = datetime(2126, 1, 1, tzinfo=UTC)
ADDRESSES = ["198.51.100.0/24", "2001:db8::/64", "203.0.113.7"]


def ban(value: str, kind: str = "ip", **fields: Any) -> BlacklistEntry:
    """Put somebody on the blacklist."""
    entry: BlacklistEntry = BlacklistEntry.objects.create(kind=kind, value=value, **fields)
    return entry


@pytest.fixture
def some() -> None:
    """Three networks, one of them until a time; somebody else; and one whose ban has ended."""
    for value in ADDRESSES:
        ban(value, reason="=scraping; deny all;\n}", expires_at=SOON if value == "203.0.113.7" else None)
    ban("42", "user", reason="bots")
    ban("192.0.2.1", expires_at=timezone.now() - timedelta(seconds=1))


def run(*args: str, status: int = 0) -> tuple[str, str]:
    """Run the command; give what it wrote to the standard output and to the standard error."""
    out, err, found = StringIO(), StringIO(), 0
    try:
        call_command("ratelimit_export", *args, stdout=out, stderr=err)
    except SystemExit as ending:
        found = int(ending.code or 0)
    assert status == found, err.getvalue()
    return out.getvalue(), err.getvalue()


def misuse(*args: str) -> str:
    """Run the command wrongly, and give what it says."""
    with pytest.raises(CommandError) as failure:
        call_command("ratelimit_export", *args, stdout=StringIO(), stderr=StringIO())
    assert failure.value.returncode == 2
    return str(failure.value)


def networks_in(text: str) -> list[str]:
    """Give every network that a file for the edge names, comments aside."""
    body = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    words = re.findall(r"[0-9a-f.:]*[.:][0-9a-f.:]+(?:/\d+)?", body)
    return sorted(word for word in words if _is_network(word))


def _is_network(word: str) -> bool:
    try:
        ip_network(word)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("form", EDGE)
def test_a_file_for_the_edge_when_written_holds_active_addresses_alone(form: str, some: None) -> None:
    """No reason, no user, nobody whose ban has ended; when it was made and until when it holds stand above."""
    text, report = run("--format", form, "--json")
    assert sorted(ADDRESSES) == networks_in(text)
    assert "scraping" not in text
    assert re.match(
        r"# Made by ratelimit_export at \d{4}-.*\n# Holds until 2126-01-01T00:00:00\+00:00\.\n", text
    )
    found = json.loads(report)
    assert (3, {"user": 1}, SOON.isoformat()) == (found["written"], found["left_out"], found["holds_until"])


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("plain", "203.0.113.7"),
        ("nginx", "deny 203.0.113.7;"),
        ("nginx-geo", "203.0.113.7 1;"),
        ("haproxy", "203.0.113.7 1"),
        ("ipset", "add ratelimit4_new 203.0.113.7 -exist"),
        ("nftables", "add element inet ratelimit blocked4 { 198.51.100.0/24, 203.0.113.7 }"),
    ],
)
def test_a_line_when_written_is_what_the_edge_reads(form: str, line: str, some: None) -> None:
    """Each format in its own words."""
    assert line in run("--format", form)[0].splitlines()


def test_the_sets_of_ipset_when_filled_are_swapped() -> None:
    """No packet meets a half-filled set; each family has its own, of the name that was asked for."""
    ban("2001:db8::1")
    ban("0.0.0.0/0", reason="all")
    lines = run("--format", "ipset", "--set-name", "shop")[0].splitlines()[2:]
    assert "create shop4 hash:net family inet maxelem 2097152 -exist" in lines
    assert ["add shop4_new 0.0.0.0/1 -exist", "add shop4_new 128.0.0.0/1 -exist"] == [
        line for line in lines if line.startswith("add shop4")
    ]
    assert (
        lines.index("flush shop6_new")
        < lines.index("add shop6_new 2001:db8::1 -exist")
        < lines.index("swap shop6_new shop6")
    )
    assert lines[-1] == "destroy shop6_new"


def test_the_longest_of_several_bans_when_written_counts() -> None:
    """One network once, until its longest ban ends."""
    ban("203.0.113.7", source="manual", expires_at=SOON)
    ban("203.0.113.7", source="imported", expires_at=SOON + timedelta(days=1))
    ban("203.0.113.8", source="manual", expires_at=SOON)
    ban("203.0.113.8", source="imported")
    text, report = run("--format", "plain", "--json")
    assert ["203.0.113.7", "203.0.113.8"] == networks_in(text)
    assert (SOON + timedelta(days=1)).isoformat() == json.loads(report)["holds_until"]


def test_who_is_on_the_allowlist_when_the_edge_is_written_is_left_out() -> None:
    """The allowlist beats all, at the edge too: its addresses are cut out of what is banned."""
    ban("203.0.113.0/24")
    ban("198.51.100.7")
    ban("192.0.2.1")
    AllowlistEntry.objects.create(kind="ip", value="203.0.113.9")
    AllowlistEntry.objects.create(kind="ip", value="198.51.100.0/24")
    AllowlistEntry.objects.create(kind="ip", value="192.0.2.1", expires_at=timezone.now() - timedelta(1))
    text, report = run("--format", "plain", "--json")
    found = [ip_network(word) for word in networks_in(text)]
    assert not any(ip_address("203.0.113.9") in network for network in found)
    assert not any(ip_address("198.51.100.7") in network for network in found)
    assert 255 + 1 == sum(network.num_addresses for network in found)
    assert json.loads(report)["spared"] == 2


@pytest.mark.parametrize(
    ("banned", "allowed"),
    [("::/0", "::1"), ("::/64", "::fffe:0:1"), ("::/64", "::ffff:0:0:1"), ("2000::/3", "2002::1")],
)
def test_ipv6_when_it_is_cut_bans_nobody_of_ipv4(banned: str, allowed: str) -> None:
    """A part of a network that holds what counts as IPv4 is written as it is, not as what it carries."""
    ban(banned)
    AllowlistEntry.objects.create(kind="ip", value=allowed)
    found = [ip_network(word) for word in networks_in(run("--format", "plain")[0])]
    assert {network.version for network in found} == {6}
    assert not any(ip_address(allowed) in network for network in found)


@pytest.mark.parametrize("form", ["csv", "json"])
@pytest.mark.parametrize("name", ["blacklist", "allowlist"])
def test_a_list_when_exported_and_imported_is_the_same(
    form: str, name: str, tmp_path: Path, some: None
) -> None:
    """Kind, value, reason and end come back; entries that were not active are not written."""
    AllowlistEntry.objects.create(kind="ip", value="203.0.113.0/24", reason="-office", expires_at=SOON)
    AllowlistEntry.objects.create(kind="user", value="-7", reason="'=x")
    model: Any = exporting.LISTS[name]
    active = [row for row in model.objects.all() if row.is_active()]
    before = sorted((row.kind, row.value, row.reason, row.expires_at) for row in active)
    path = tmp_path / f"list.{form}"
    run("--format", form, "--list", name, "--output", str(path))
    model.objects.all().delete()
    call_command("ratelimit_import", str(path), "--list", name, "--reason", "", stdout=StringIO())
    lines = [(kind, value, " ".join(reason.split()), end) for kind, value, reason, end in before]
    after = sorted((row.kind, row.value, row.reason, row.expires_at) for row in model.objects.all())
    assert lines == after
    assert len(active) > 1


hostile = st.text(min_size=1, max_size=20).filter(str.strip) | st.sampled_from(HOSTILE_TEXTS)


@given(st.lists(st.tuples(hostile, hostile), max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_when_written_as_csv_or_json_reads_back(texts: list[tuple[str, str]]) -> None:
    """Quotes, line ends, formulas and control characters of clients end no cell and no record."""
    whole = [(_spoken(value), _spoken(reason)) for value, reason in texts]
    rows = [writing.Written("user", value, reason, "manual", None, SOON) for value, reason in whole]
    for form, pieces in (("csv", writing.csv_pieces(rows)), ("json", writing.json_pieces(rows, SOON))):
        _, found = read(io.StringIO("".join(pieces), newline=""), Terms("ip", SOON), form)
        read_back = [(one.value, one.reason) for one in found if isinstance(one, Listed)]
        assert [(value.strip(), reason.strip()) for value, reason in whole] == read_back


def _spoken(text: str) -> str:
    """Give a text as rows hold it: one line of what can be printed."""
    return "".join(char if char.isprintable() else "_" for char in text).strip() or "_"


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@x", "\tx", "\rx", "'=x", "''", "'", "x", ""])
def test_a_cell_when_it_looks_like_a_formula_is_none_in_a_spreadsheet(cell: str) -> None:
    """It is marked as text, and the mark is taken off again."""
    assert cell == writing.unguarded(writing.guarded(cell))
    assert not writing.guarded(cell).startswith(("=", "+", "-", "@", "\t", "\r"))


def test_csv_when_written_has_the_columns_that_are_documented(some: None) -> None:
    """A header row, and one row for each active entry."""
    rows = list(csv.reader(StringIO(run("--format", "csv")[0])))
    assert ["kind", "value", "reason", "source", "expires_at", "created_at"] == rows[0]
    assert 4 == len(rows) - 1
    assert {"manual"} == {row[3] for row in rows[1:]}


def test_a_file_when_it_is_replaced_keeps_its_permissions(tmp_path: Path, some: None) -> None:
    """A new one gets those of the umask; a link stays a link; nothing else is left in the directory."""
    path, link = tmp_path / "deny.conf", tmp_path / "link.conf"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    out, _ = run("--format", "nginx", "--output", str(link))
    assert "3 networks written as nginx" in out
    assert link.is_symlink()
    assert "deny 203.0.113.7;" in path.read_text()
    assert 0o640 == stat.S_IMODE(path.stat().st_mode)
    run("--format", "nginx", "--output", str(tmp_path / "new.conf"))
    mask = os.umask(0)
    os.umask(mask)
    assert 0o666 & ~mask == stat.S_IMODE((tmp_path / "new.conf").stat().st_mode)
    assert {"deny.conf", "link.conf", "new.conf"} == {found.name for found in tmp_path.iterdir()}


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("disk full"), RuntimeError])
def test_a_file_when_writing_fails_is_as_it_was(
    tmp_path: Path, error: Any, monkeypatch: Any, some: None
) -> None:
    """Interrupted or out of room: the old file stays whole, and no other is left beside it."""
    path = tmp_path / "deny.conf"
    path.write_text("old")

    def fail(*_: Any) -> Any:
        yield "deny 203.0.113.7;\n"
        raise error

    monkeypatch.setitem(writing.EDGE, "nginx", fail)
    with pytest.raises((CommandError, RuntimeError)) as failure:
        call_command("ratelimit_export", "--format", "nginx", "--output", str(path))
    if isinstance(failure.value, CommandError):
        assert "as it was" in str(failure.value)
        assert failure.value.returncode in (2, 130)
    assert path.read_text() == "old"
    assert [path] == list(tmp_path.iterdir())


def test_a_process_when_it_is_killed_while_writing_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """A file is renamed into its place when it is whole: -9 leaves the old one."""
    BlacklistEntry.objects.bulk_create(
        [BlacklistEntry(kind="ip", value=str(ip_address(0x0B000000 + number))) for number in range(20_000)]
    )
    path = tmp_path / "deny.conf"
    path.write_text("old")
    code = (
        "from tests.beside import set_up; set_up()\n"
        "from django.core.management import call_command\n"
        f"call_command('ratelimit_export', '--format', 'csv', '--output', {str(path)!r})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env=child_environment())
    while process.poll() is None and len(list(tmp_path.iterdir())) < 2:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert path.read_text() == "old" or path.read_text().count("\n") == 20_001


def test_a_pipe_when_it_is_the_output_is_written_to(tmp_path: Path, some: None) -> None:
    """What is no file is not replaced by one."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True)
    run("--format", "plain", "--output", str(pipe))
    text, _ = reader.communicate(timeout=30)
    assert sorted(ADDRESSES) == networks_in(text)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--format", "nginx", "--set-name", "a b"), "expected a letter"),
        (("--format", "nftables", "--set-name", "x;flush"), "expected a letter"),
        (("--format", "nginx", "--list", "allowlist"), "turns away whom it lists"),
        (("--format", "plain", "--output", "/nowhere/deny.conf"), "cannot be written"),
    ],
)
def test_the_command_when_misused_says_what_was_expected(args: tuple[str, ...], said: str) -> None:
    """Exit status 2, and nothing is written."""
    assert said in misuse(*args)


def test_a_value_when_raw_sql_made_it_unreadable_is_counted(some: None) -> None:
    """Nothing that is no network goes to the edge; exit status 1."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE ratelimit_app_blacklistentry SET value = %s WHERE value = %s",
            ["1.2.3.4; x", "203.0.113.7"],
        )
    text, said = run("--format", "nginx", status=1)
    assert "1.2.3.4" not in text
    assert "1 cannot be read" in said


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_entries_when_on_two_databases_are_written_once() -> None:
    """What counts is what acts: the rows of every database, the longest end of each identity."""
    ban("203.0.113.7", expires_at=SOON)
    BlacklistEntry.objects.using("other").create(kind="ip", value="203.0.113.7")
    BlacklistEntry.objects.using("other").create(kind="ip", value="203.0.113.8")
    text, report = run("--format", "plain", "--json")
    assert ["203.0.113.7", "203.0.113.8"] == networks_in(text)
    assert json.loads(report)["holds_until"] is None


def test_the_ban_of_somebody_when_made_and_lifted_comes_and_goes() -> None:
    """What `block` does is in the next file."""
    block("ip:203.0.113.7", reason="r", period=100)
    assert ["203.0.113.7"] == networks_in(run("--format", "haproxy")[0])
    BlacklistEntry.objects.all().delete()
    text, _ = run("--format", "haproxy")
    assert [] == networks_in(text)
    assert "Holds until the list is edited" in text
