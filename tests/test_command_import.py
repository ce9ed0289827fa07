"""`ratelimit_import`: lists of others into the database and to Redis, all or nothing."""

from __future__ import annotations

import gzip
import io
import json
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from django.db import OperationalError, transaction
from django.test import Client
from django.utils import timezone

from ratelimit_app import block, importing, publishing, snapshot_cache
from ratelimit_app.conf import conf
from ratelimit_app.core.feeds import Listed, PassedOver
from ratelimit_app.core.identity import digest
from ratelimit_app.importing.report import MAX_SAMPLES, OTHER, Report
from ratelimit_app.models import AllowlistEntry, BlacklistEntry, PromotionPolicy, Rule
from ratelimit_app.publishing import ledger

pytestmark = pytest.mark.django_db(transaction=True)

FEEDS = Path(__file__).parent / "fixtures" / "feeds"
DEAD = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/v.sock?db=0"}}


@pytest.fixture
def make(tmp_path: Path):
    """Make a list of some lines, and give its path."""

    def write(*lines: str, name: str = "list.txt") -> str:
        path = tmp_path / name
        path.write_text("\n".join(lines))
        return str(path)

    return write


def status_of(*args: str, out: StringIO) -> int:
    """Run the command, and give its exit status."""
    try:
        call_command("ratelimit_import", *args, stdout=out)
    except SystemExit as ending:
        return int(ending.code or 0)
    return 0


def run(*args: str, status: int = 0) -> dict[str, Any]:
    """Run the command, and give its report."""
    out = StringIO()
    assert status == status_of(*args, "--json", out=out), out.getvalue()
    report: dict[str, Any] = json.loads(out.getvalue())
    return report


def counts(report: dict[str, Any], *names: str) -> tuple[int, ...]:
    """Give some counts of a report."""
    return tuple(report[name] for name in names)


def misuse(*args: str) -> str:
    """Run the command wrongly, and give what it says."""
    with pytest.raises(CommandError) as failure:
        call_command("ratelimit_import", *args, stdout=StringIO())
    assert 2 == failure.value.returncode
    return str(failure.value)


def values(source: str = "imported", model: Any = BlacklistEntry) -> list[str]:
    """Give the values of the entries of a source."""
    return sorted(model.objects.filter(source=source).values_list("value", flat=True))


def bans(*identities: str) -> list[int | None]:
    """Give the ends of bans in Redis."""
    held = publishing.read_bans(identities)
    return [held[identity].decides for identity in identities]


def test_a_list_when_imported_is_in_the_database_and_in_redis(make: Any, valkey: Any) -> None:
    """C100: canonical values, host bits cut off; marks for clients, networks for the rest; the sync finds nothing."""
    path = make("192.0.2.121/24", " 192.0.2.1 ", "2001:DB8::1", "user:42", "::ffff:198.51.100.7", "192.0.2.1")
    report = run(path, "--reason", "a list")
    assert ["192.0.2.0/24", "192.0.2.1", "198.51.100.7", "2001:db8::1", "42"] == values()
    assert (6, 1, 5, 0, 0, 0) == counts(
        report, "accepted", "repeated", "created", "updated", "unchanged", "removed"
    )
    assert report["published"] is True
    assert {"a list"} == set(BlacklistEntry.objects.values_list("reason", flat=True))
    assert [0, 0, 0, None] == bans("ip:192.0.2.0/24", "ip:198.51.100.7", "user:42", "ip:192.0.2.121")
    assert not publishing.sync(check=True).has_drifted
    assert valkey.pttl(conf.keys.mark("ip:192.0.2.1")) > 0
    snapshot = snapshot_cache.refresh()
    assert snapshot is not None
    assert {"ip", "user"} == set(snapshot.marked_kinds)
    assert 1 == len(snapshot.networks)


def test_a_list_when_imported_again_changes_nothing_or_what_has_changed(make: Any) -> None:
    """An imported entry is brought up to date; one that is as it was is not written again."""
    path = make("192.0.2.1", "192.0.2.2 # other words")
    run(path)
    before = dict(BlacklistEntry.objects.values_list("value", "pk"))
    assert (0, 0, 2) == counts(run(path), "created", "updated", "unchanged")
    report = run(path, "--expires", "2h")
    assert (0, 2, 0) == counts(report, "created", "updated", "unchanged")
    assert before == dict(BlacklistEntry.objects.values_list("value", "pk"))
    end = BlacklistEntry.objects.get(value="192.0.2.1").expires_at
    assert end is not None
    assert [int(end.timestamp() * 1_000_000 + 0.5)] == pytest.approx(bans("ip:192.0.2.1"), abs=1_000)


def test_a_list_when_it_replaces_removes_imported_entries_alone(make: Any) -> None:
    """What the list no longer names goes, in Redis too; manual and promoted entries are never touched."""
    run(make("192.0.2.1", "192.0.2.2", "198.51.100.0/24", "user:7"))
    block("ip:192.0.2.1", reason="by hand")
    policy = PromotionPolicy.objects.create(name="p")
    BlacklistEntry.objects.create(kind="ip", value="192.0.2.9", source="promoted", policy=policy, level=3)
    manual = BlacklistEntry.objects.filter(source="manual").values().get()
    report = run(make("192.0.2.2", "192.0.2.3", "192.0.2.9"), "--replace", "--expires", "1h")
    assert (2, 1, 3) == (report["created"], report["updated"], report["removed"])
    assert ["192.0.2.2", "192.0.2.3", "192.0.2.9"] == values()
    assert manual == BlacklistEntry.objects.filter(source="manual").values().get()
    assert 3 == BlacklistEntry.objects.get(source="promoted").level
    assert [0, None, None, 0] == bans("ip:192.0.2.1", "ip:198.51.100.0/24", "user:7", "ip:192.0.2.9")
    assert not publishing.sync(check=True).has_drifted


def test_a_list_when_nothing_of_it_can_be_taken_replaces_nothing(make: Any) -> None:
    """An empty download must not lift every ban; --force says that it is meant."""
    run(make("192.0.2.1"))
    path = make("# moved to another address", "<html>")
    assert "--force" in misuse(path, "--replace")
    assert ["192.0.2.1"] == values()
    run(path, "--replace", "--force", status=1)
    assert [] == values()
    assert [None] == bans("ip:192.0.2.1")


def test_a_row_when_dangerous_is_refused_unless_forced(make: Any) -> None:
    """C114: everything, what is too wide, loopback and trusted proxies need --force; the others are imported."""
    wide = ["0.0.0.0/0", "::/0", "198.0.0.0/7", "2001::/31"]
    near = ["127.0.0.1", "::1", "10.0.0.5", "10.1.0.0/16", "0.0.0.0/1", "8.0.0.0/6"]
    path = make(*wide, *near, "192.0.2.1", "nonsense")
    report = run(path, status=1)
    assert ["192.0.2.1"] == values()
    assert 11 == sum(report["refused"].values())
    assert [*range(1, 11), 12] == [row["line"] for row in report["samples"]]
    forced = run(path, "--force", status=1)
    assert {"is not an address or a network": 1} == forced["refused"]
    assert 11 == len(values())


def test_an_allowlist_when_imported_takes_its_kinds_and_refuses_what_is_too_wide(make: Any) -> None:
    """Allowing a proxy is nobody's loss; allowing everybody is."""
    report = run(make("10.0.0.5", "0.0.0.0/0", "user:42", "device:7"), "--list", "allowlist", status=1)
    assert ["10.0.0.5", "42"] == values(model=AllowlistEntry)
    assert 2 == sum(report["refused"].values())
    snapshot = snapshot_cache.refresh()
    assert snapshot is not None
    assert {"user:42": 0} == snapshot.allowed_users
    run(make("user:43"), "--list", "allowlist", "--replace")
    assert ["43"] == values(model=AllowlistEntry)
    assert [] == values()


def test_rows_when_they_say_their_own_end_and_reason_keep_them(make: Any) -> None:
    """--expires and --reason are for rows that say nothing; what has ended is left out, which is no finding."""
    later, past = timezone.now() + timedelta(days=9), timezone.now() - timedelta(seconds=1)
    path = make(
        "value,reason,expires_at", f"192.0.2.1,own,{later.isoformat()}", "192.0.2.2,,", f"192.0.2.3,,{past}"
    )
    report = run(path, "--expires", "2126-01-01", "--reason", "given")
    assert {"has ended": 1} == report["left_out"]
    assert [("192.0.2.1", "own", later), ("192.0.2.2", "given", datetime(2126, 1, 1, tzinfo=UTC))] == list(
        BlacklistEntry.objects.order_by("value").values_list("value", "reason", "expires_at")
    )


def test_rows_when_they_name_somebody_twice_keep_the_longest(make: Any, monkeypatch: Any) -> None:
    """Several decisions may ban one address: the order of the file does not decide, nor where a batch ends."""
    near, far = timezone.now() + timedelta(hours=1), timezone.now() + timedelta(hours=2)
    rows = [
        ("192.0.2.1", near),
        ("192.0.2.1", far),
        ("192.0.2.2", ""),
        ("192.0.2.2", far),
        ("192.0.2.1", near),
    ]
    path = make("value,expires_at", *(f"{value},{end}" for value, end in rows), "192.0.2.2,")
    for size in (1, 2, 3, 100):
        monkeypatch.setattr("ratelimit_app.importing.run.BATCH", size)
        BlacklistEntry.objects.all().delete()
        assert (6, 4, 2) == counts(run(path), "accepted", "repeated", "created")
        assert {"192.0.2.1": far, "192.0.2.2": None} == dict(
            BlacklistEntry.objects.values_list("value", "expires_at")
        )


def test_an_import_when_run_never_searches_the_keyspace(make: Any, monkeypatch: Any) -> None:
    """C104: importing, replacing and the sync behind it work with a client that raises on KEYS and SCAN."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(args)

    for name in ("keys", "scan", "scan_iter"):
        monkeypatch.setattr(redis.Redis, name, refuse)
    run(make("192.0.2.1", "198.51.100.0/24"))
    run(make("192.0.2.2"), "--replace")
    assert (1, False) == (publishing.sync().bans, publishing.sync().has_drifted)


def test_an_address_when_on_both_lists_passes(make: Any) -> None:
    """C102: an imported ban does not outdo the allowlist, whichever came first."""
    run(make("192.0.2.0/24", "192.0.2.9"))
    run(make("192.0.2.9"), "--list", "allowlist")
    run(make("192.0.2.0/24", "192.0.2.9", "192.0.2.8"), "--replace")
    snapshot_cache.refresh()
    assert [200, 403, 403] == [
        Client(REMOTE_ADDR=address).get("/plain/").status_code
        for address in ("192.0.2.9", "192.0.2.8", "192.0.2.7")
    ]


def test_secrets_when_imported_are_digested(make: Any) -> None:
    """No secret of a list reaches the database; a digest stays what it is."""
    known = digest(conf.key_secret, "header:x-api-key", "known")
    run(make("s3cret", known), "--kind", "header:X-API-Key")
    secret = digest(conf.key_secret, "header:x-api-key", "s3cret")
    assert sorted([known, secret]) == values()
    assert [0, 0] == bans(f"header:x-api-key:{secret}", f"header:x-api-key:{known}")


def test_an_account_when_imported_is_listed_in_the_form_in_which_it_counts(make: Any) -> None:
    """What folds the name that a login sends folds the name that a list holds."""
    run(make("kind,value", "field:username, ALICE ", "field:username,alice"))
    assert [digest(conf.key_secret, "field:username", "alice")] == values()


def test_secrets_when_refused_are_not_shown(make: Any) -> None:
    """A summary goes into logs and mails: where a secret stood is said, what it was is not."""
    path = make(
        "kind,value,expires_at", "header:x-api-key,s3cret,", "cookie:sid,s3cret,soon", "session,s3cret,"
    )
    for options in (("--list", "allowlist"), ()):
        report = run(path, *options, status=1)
        assert "s3cret" not in json.dumps(report)
    assert [3] == [row["line"] for row in report["samples"]]


def test_an_import_when_the_database_is_busy_says_so(make: Any, monkeypatch: Any) -> None:
    """Nothing is half done, and trying again is all that is needed: status 1."""

    def refuse(*_: Any) -> None:
        message = "database is locked"
        raise OperationalError(message)

    monkeypatch.setattr("ratelimit_app.importing.staging.Staging.merge", refuse)
    run(make("192.0.2.9"), "--dry-run")
    with pytest.raises(CommandError, match="database is locked") as failure:
        call_command("ratelimit_import", make("192.0.2.1"), stdout=StringIO())
    assert 1 == failure.value.returncode
    assert not BlacklistEntry.objects.exists()


@pytest.mark.parametrize("name", ["export.csv", "export.json"])
def test_an_export_when_imported_reads_back(name: str) -> None:
    """What `ratelimit_export` writes comes back, what has ended aside."""
    report = run(str(FEEDS / name))
    assert {"has ended": 1} == report["left_out"]
    assert ["198.51.100.0/24", "203.0.113.7", "~0123456789abcdef0123456789abcdef"] == values()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("level1.netset", 5), ("drop.txt", 3), ("counted.txt", 2), ("mixed.txt", 8), ("crowdsec_alerts.json", 2),
        ("crowdsec_stream.json", 1), ("crowdsec_raw.csv", 2), ("crowdsec_decisions.csv", 2),
    ],
)  # fmt: skip
def test_a_public_list_when_imported_is_taken_as_far_as_it_makes_sense(name: str, found: int) -> None:
    """Each public form ends in entries whose bans are in Redis."""
    out = StringIO()
    faults = {"mixed.txt", "crowdsec_alerts.json", "crowdsec_raw.csv"}
    assert (name in faults) == status_of(str(FEEDS / name), out=out)
    assert found == len(values())
    assert found == publishing.sync(check=True).bans
    assert not publishing.sync(check=True).has_drifted
    assert f"{found} entries were made" in out.getvalue()


def test_a_list_when_packed_or_piped_is_read(make: Any, monkeypatch: Any, tmp_path: Path) -> None:
    """A .gz by what it is, not by its name; - is the standard input; a byte order mark is no value."""
    packed = gzip.compress("\ufeff192.0.2.1\n192.0.2.2\n".encode())
    (tmp_path / "no-suffix").write_bytes(packed)
    assert 2 == run(str(tmp_path / "no-suffix"))["created"]
    for data in (packed, b"192.0.2.1\r\n192.0.2.2\r\n"):
        BlacklistEntry.objects.all().delete()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))
        assert 2 == run("-")["created"]
    assert {"imported from the standard input"} == set(
        BlacklistEntry.objects.values_list("reason", flat=True)
    )


def test_a_list_when_it_cannot_be_read_to_its_end_imports_nothing(make: Any, tmp_path: Path) -> None:
    """A torn download, broken JSON, a name that is none: status 2, and the database as it was."""
    packed = gzip.compress("\n".join(f"192.0.2.{n}" for n in range(200)).encode())
    for number, data in enumerate((packed[:-20], packed[:40] + b"\0" * 40, b'["192.0.2.1", "192.0.2.2"')):
        path = tmp_path / f"torn-{number}"
        path.write_bytes(data)
        assert "Nothing was imported" in misuse(str(path))
    assert "cannot be read" in misuse(str(tmp_path / "missing"))
    assert "cannot be read" in misuse(str(tmp_path))
    assert not BlacklistEntry.objects.exists()
    assert 1 == run(make("192.0.2.1"))["created"]


@pytest.mark.parametrize(
    "options",
    [
        ("--expires", "soon"), ("--expires", "2020-01-01"), ("--expires", "0"), ("--expires", "1.5.5"),
        ("--expires", "200000d"), ("--kind", "planet"), ("--kind", "device", "--list", "allowlist"),
    ],
)  # fmt: skip
def test_an_option_when_it_makes_no_sense_is_misuse(make: Any, options: tuple[str, ...]) -> None:
    """What was given and what was expected is said, before anything is read."""
    assert "expected" in misuse(make("192.0.2.1"), *options)
    assert not BlacklistEntry.objects.exists()


def test_a_dry_run_when_done_tells_what_would_change_and_changes_nothing(make: Any, valkey: Any) -> None:
    """Its counts are those of the real run after it."""
    run(make("192.0.2.1", "192.0.2.2", "192.0.2.3"))
    before, keys = list(BlacklistEntry.objects.order_by("pk").values()), sorted(valkey.keys())
    path = make("192.0.2.2", "192.0.2.3 # new words", "192.0.2.4")
    dry = run(path, "--replace", "--dry-run")
    assert before == list(BlacklistEntry.objects.order_by("pk").values())
    assert keys == sorted(valkey.keys())
    real = run(path, "--replace")
    assert (1, 1, 1, 1) == counts(real, "created", "updated", "unchanged", "removed")
    assert real | {"dry_run": True, "published": None} == dry


def test_an_import_when_redis_is_away_is_saved_and_published_by_the_sync(make: Any, settings: Any) -> None:
    """Status 1 says that Redis has not followed; the sync repairs it."""
    live = settings.CACHES
    settings.CACHES = DEAD
    assert run(make("192.0.2.1"), status=1)["published"] is False
    settings.CACHES = live
    assert ["192.0.2.1"] == values()
    assert [None] == bans("ip:192.0.2.1")
    publishing.sync()
    assert [0] == bans("ip:192.0.2.1")


def test_an_import_when_its_transaction_is_rolled_back_leaves_redis_untouched(make: Any, valkey: Any) -> None:
    """C98: inside somebody's transaction it is published when that commits, and not before."""
    path = make("192.0.2.1")
    keys = sorted(valkey.keys())
    with transaction.atomic():
        assert run(path)["published"] is None
        transaction.set_rollback(True)
    assert [] == values()
    assert keys == sorted(valkey.keys())
    with transaction.atomic():
        run(path)
        assert [None] == bans("ip:192.0.2.1")
    assert [0] == bans("ip:192.0.2.1")


def test_other_edits_when_a_list_is_on_its_way_to_redis_do_not_wait_for_it(monkeypatch: Any) -> None:
    """Between two parts of a long list the publishers' lock is free: rules and bans of others arrive."""
    monkeypatch.setattr(ledger, "CHUNK", 10)
    rows = (Listed(number, "ip", f"198.51.100.{number}") for number in range(40))
    seen: list[int] = []

    def edit(step: str, count: int) -> None:
        if step == importing.PUBLISH and count < 40:
            Rule.objects.create(name=f"during-{count}", rate="5/s")
            block(f"user:{count}", reason="")
            snapshot = snapshot_cache.refresh()
            assert snapshot is not None
            assert f"during-{count}" in [rule.name for rule in snapshot.rules]
            assert [0, None] == bans(f"user:{count}", "ip:198.51.100.39")
            seen.append(count)

    importing.import_rows(rows, importing.Terms(BlacklistEntry, timezone.now()), progress=edit)
    assert [10, 20, 30] == seen
    assert not publishing.sync(check=True).has_drifted


def test_a_reason_when_it_holds_anything_is_one_short_line(make: Any) -> None:
    """No control character of a stranger's file reaches a page or a terminal, and no database refuses it."""
    rows = [
        {"value": "192.0.2.1", "reason": "a\x00b\x1b[31m\ud800\nc" + "x" * 900},
        {"value": "192.0.2.2", "reason": 7},
    ]
    run(make(json.dumps(rows)))
    reason = BlacklistEntry.objects.get(value="192.0.2.1").reason
    assert reason.startswith("a b [31m cx")
    assert 500 == len(reason)
    assert "7" == BlacklistEntry.objects.get(value="192.0.2.2").reason


def test_values_when_hostile_are_refused_or_escaped(make: Any) -> None:
    """A list cannot break a statement, a key or a line."""
    hostile = ["'; DROP TABLE x; --", 'a"b\\', "%s", "a\tb", "x" * 5_000, "{tag}+user:1", "\u0000"]
    report = run(make(json.dumps(hostile)), "--kind", "device")
    assert len(hostile) == report["created"]
    assert all(len(value) <= 64 and value.isprintable() for value in values())
    assert not publishing.sync(check=True).has_drifted


def test_a_report_when_much_is_refused_stays_short() -> None:
    """The first lines are shown, the others counted; reasons beyond a hundred are one."""
    report = Report(name="blacklist")
    for number in range(500):
        report.pass_over(PassedOver(number, "x", f"why {number}"))
    assert MAX_SAMPLES == len(report.samples)
    assert 101 == len(report.refused)
    assert 400 == report.refused[OTHER]
    assert report.is_finding


def test_a_summary_when_printed_says_what_was_refused_and_where(make: Any) -> None:
    """People read counts by reason and the first lines."""
    out = StringIO()
    with pytest.raises(SystemExit) as ending:
        call_command("ratelimit_import", make("192.0.2.1", "oops", "192.0.2.1", "127.0.0.1"), stdout=out)
    assert 1 == ending.value.code
    for part in (
        "1 entries were made",
        "1 rows named somebody",
        "1 refused: it holds loopback",
        "line 2: 'oops'",
    ):
        assert part in out.getvalue()


def test_a_long_import_when_watched_shows_its_progress(make: Any, monkeypatch: Any) -> None:
    """On a terminal; nowhere else."""

    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    shown, piped = Terminal(), StringIO()
    path = make(*(f"192.0.2.{number}" for number in range(250)))
    call_command("ratelimit_import", path, stdout=StringIO(), stderr=shown)
    for part in ("250 rows read", "250 entries saved", "250 bans published", "100 %"):
        assert part in shown.getvalue()
    call_command("ratelimit_import", path, stdout=StringIO(), stderr=piped)
    assert "" == piped.getvalue()


def test_an_import_when_the_database_is_another_is_misuse(make: Any, monkeypatch: Any) -> None:
    """It says which databases it can write to."""
    monkeypatch.setattr("ratelimit_app.importing.dialects.DIALECTS", {})
    assert "cannot be imported into" in misuse(make("192.0.2.1"))
