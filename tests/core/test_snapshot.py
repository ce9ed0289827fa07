"""Snapshots: plain JSON both ways; a bad entry is left out, the others count."""

from __future__ import annotations

import json
from ipaddress import ip_address
from typing import Any

import pytest

from ratelimit_app.core.access_lists import NEVER, NetworkTable
from ratelimit_app.core.snapshot import DEFAULT_OFFENCE_TTL, EMPTY, SCHEMA, Snapshot, dump, load

NOW = 1_000


def written(**changes: Any) -> str:
    """Give a snapshot's text with one rule and two allowed identities."""
    fields: dict[str, Any] = {
        "version": "e:7",
        "rules": [{"name": "grab", "rate": "5/s", "key": "ip"}],
        "allowlist": {"ip:203.0.113.0/24": 5_000, "user:42": NEVER},
        "kinds": ["ip", "header:x-api-key"],
        "offence_ttl": 7_200,
    }
    return dump(**(fields | changes))


def read(text: str | bytes) -> tuple[Snapshot, list[str]]:
    """Read a snapshot and what was reported."""
    reports: list[str] = []
    made = load(text, NetworkTable(), lambda what, error: reports.append(f"{what}: {error}"))
    return made, reports


def test_a_snapshot_when_written_and_read_is_complete() -> None:
    """Rules, allowlist, kinds, version and offence time survive the way through Redis."""
    made, reports = read(written().encode())
    assert [] == reports
    assert ("e:7", 7_200, ["grab"]) == (made.version, made.offence_ttl, [rule.name for rule in made.rules])
    assert made.allows_address(ip_address("203.0.113.9"), NOW)
    assert made.allows_user("user:42", NOW)
    assert [True, True, False] == [(kind in made.marked_kinds) for kind in ("ip", "header:x-api-key", "user")]


def test_a_snapshot_when_read_holds_the_networks_that_it_is_given() -> None:
    """Networks have a version of their own: a new snapshot keeps the table."""
    table = NetworkTable()
    assert table is load(written(), table, lambda *_: None).networks


@pytest.mark.parametrize(("expires", "expected"), [(NEVER, True), (NOW + 1, True), (NOW, False), (1, False)])
def test_an_allowed_identity_when_its_time_is_over_is_none(expires: int, expected: bool) -> None:
    """An allowlist entry ends at its instant, without a new snapshot."""
    made, _ = read(written(allowlist={"ip:203.0.113.9": expires, "user:42": expires}))
    assert expected == made.allows_address(ip_address("203.0.113.9"), NOW)
    assert expected == made.allows_user("user:42", NOW)


def test_nobody_when_asked_for_is_not_allowlisted() -> None:
    """An unknown address and an anonymous user are on no list."""
    made, _ = read(written())
    assert not made.allows_address(None, NOW)
    assert not made.allows_user(None, NOW)
    assert not made.allows_user("user:43", NOW)


def test_a_rule_when_off_is_not_kept() -> None:
    """A rule that is off costs a process nothing."""
    rows = [{"name": "a", "rate": "5/s", "key": "ip", "mode": mode} for mode in ("off", "shadow")]
    assert ["shadow"] == [rule.mode for rule in read(written(rules=rows))[0].rules]


@pytest.mark.parametrize(
    "row",
    [
        {"name": "bad", "rate": "5/x", "key": "ip"},
        {"name": "bad", "rate": "5/s", "key": "usr"},
        {"name": "bad", "rate": "5/s"},
        {"name": "bad", "rate": "5/s", "key": "ip", "cost": "many"},
    ],
)
def test_a_rule_when_it_became_invalid_is_left_out_and_reported(row: dict[str, Any]) -> None:
    """A row broken by raw SQL disables itself, never the whole list (C136)."""
    made, reports = read(written(rules=[row, {"name": "good", "rate": "5/s", "key": "ip"}]))
    assert ["good"] == [rule.name for rule in made.rules]
    assert 1 == len(reports)
    assert reports[0].startswith("rule 'bad': ")


def test_a_rule_when_its_group_cannot_take_it_is_left_out_and_reported() -> None:
    """A group that raw SQL has made disagree goes on with its first rule (C136)."""
    row = {"rate": "9/s", "key": "ip", "group": "shop"}
    rows = [
        row | {"name": "pay", "reserve": 4},
        row | {"name": "browse"},
        row | {"name": "late", "key": "user"},
    ]
    made, reports = read(written(rules=rows))
    assert {"pay": 0, "browse": 4} == {rule.name: rule.held for rule in made.rules}
    assert 1 == len(reports)
    assert reports[0].startswith("rule 'late': 'late' cannot share")


def test_a_rule_of_a_group_when_off_reserves_nothing() -> None:
    """Switching a rule off gives the others its share at once."""
    row = {"rate": "9/s", "key": "ip", "group": "shop"}
    rows = [row | {"name": "browse"}, row | {"name": "pay", "reserve": 4, "mode": "off"}]
    assert [("browse", 0)] == [(rule.name, rule.held) for rule in read(written(rules=rows))[0].rules]


def test_an_allowed_entry_when_it_became_invalid_is_left_out_and_reported() -> None:
    """A network that is none, and an expiry that is none, are two reports; the good entry counts."""
    made, reports = read(written(allowlist={"ip:x": 0, "ip:10.0.0.1": "x", "user:1": None, "user:2": 0}))
    assert {"user:2": 0} == made.allowed_users
    expected = ["'ip:10.0.0.1'", "'ip:x'", "'user:1'"]
    assert expected == [report.split()[2].rstrip(":") for report in sorted(reports)]


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '"x"', "{}", json.dumps({"schema": SCHEMA + 1})])
def test_a_text_when_no_snapshot_of_this_schema_is_a_value_error(text: str) -> None:
    """A process does not swap in what it cannot read."""
    with pytest.raises(ValueError, match=r".+"):
        read(text)


def test_a_snapshot_when_written_twice_is_the_same_text() -> None:
    """The sync compares texts: equal content is equal text, and carries its schema."""
    assert written() == written()
    assert json.loads(written())["schema"] == SCHEMA


def test_the_empty_snapshot_when_used_limits_nobody_and_reads_the_usual_marks() -> None:
    """Before the first snapshot there are no rules, and marks of the common kinds are looked for."""
    assert ((), 0, DEFAULT_OFFENCE_TTL) == (EMPTY.rules, len(EMPTY.networks), EMPTY.offence_ttl)
    assert "ip" in EMPTY.marked_kinds
    assert "session" not in EMPTY.marked_kinds
