"""`ratelimit_sync`: comparing and repairing, from the shell."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command

from ratelimit_app import block
from ratelimit_app.models import Rule

pytestmark = pytest.mark.django_db(transaction=True)


def run(*args: str, out: StringIO | None = None) -> str:
    """Run the command and give what it printed."""
    out = out or StringIO()
    call_command("ratelimit_sync", *args, stdout=out)
    return out.getvalue()


def test_the_command_when_all_is_well_says_so() -> None:
    """No drift: status 0, checked or not."""
    Rule.objects.create(name="a", rate="5/s")
    block("user:42", reason="")
    assert "1 bans" in run("--check")
    report = json.loads(run("--json"))
    assert (False, 1) == (report["drift"], report["bans"])


def test_the_command_when_it_checks_and_finds_drift_exits_with_1(valkey: Any) -> None:
    """--check writes nothing and exits with 1; the repair exits with 0, and then there is nothing to find."""
    Rule.objects.create(name="a", rate="5/s")
    block("user:42", reason="")
    valkey.flushall()
    for option in ("--check", "--dry-run"):
        out = StringIO()
        with pytest.raises(SystemExit) as ending:
            run(option, "--json", out=out)
        assert 1 == ending.value.code
        report = json.loads(out.getvalue())
        assert (True, True, 1, False) == (
            report["drift"], report["snapshot_differs"], report["missing"], report["repaired"],
        )  # fmt: skip
        assert [] == valkey.keys()
    assert "Repaired" in run()
    assert "says what the database says" in run("--check")


def test_the_command_when_redis_is_away_exits_with_1(settings: Any) -> None:
    """That nothing could be compared is a finding."""
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/valkey.sock?db=0"}
    settings.CACHES = {"default": cache}
    with pytest.raises(CommandError, match="does not answer") as failure:
        run()
    assert 1 == failure.value.returncode


def test_the_commands_when_run_never_search_the_keyspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """C104: sync, block and unblock work with a client that raises on KEYS and SCAN."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(args)

    for name in ("keys", "scan", "scan_iter"):
        monkeypatch.setattr(redis.Redis, name, refuse)
    for network in ("203.0.113.9", "203.0.113.0/24"):
        call_command("ratelimit_block", f"ip:{network}", stdout=StringIO())
    assert "2 bans" in run()
    call_command("ratelimit_unblock", "ip:203.0.113.0/24", stdout=StringIO())
    assert "1 bans" in run("--check")
