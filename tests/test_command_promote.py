"""`ratelimit_promote`: the promotion from the shell, and for cron."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from ratelimit_app.conf import conf
from ratelimit_app.models import BlacklistEntry
from tests.offending import make_policy, make_rule, offend

pytestmark = pytest.mark.django_db(transaction=True)

WHO = "ip:203.0.113.9"


def run(*args: str, out: StringIO | None = None) -> str:
    """Run the command and give what it printed."""
    out = out or StringIO()
    call_command("ratelimit_promote", *args, stdout=out)
    return out.getvalue()


def test_the_command_when_somebody_is_due_bans_and_says_whom() -> None:
    """One line for each ban, with its end, its level and its reason; one for each who is spared; a sum."""
    make_rule()
    make_policy()
    offend(WHO)
    offend("ip:127.0.0.1")
    lines = run().splitlines()
    assert lines[0].startswith(f"{WHO} banned until ")
    assert "level 1. Policy repeat: 3 offences (grab 3)" in lines[0]
    assert lines[1] == "ip:127.0.0.1 is never banned (loopback). Policy repeat"
    assert lines[2] == "1 promoted, 0 only found, 1 spared."
    assert BlacklistEntry.objects.get().identity == WHO
    assert run().endswith("0 promoted, 0 only found, 1 spared.\n")


def test_the_command_as_a_dry_run_says_it_and_bans_nobody() -> None:
    """--dry-run writes nothing; --json prints the whole report."""
    make_rule()
    make_policy()
    offend(WHO)
    assert f"{WHO} would be banned until" in run("--dry-run")
    report = json.loads(run("--dry-run", "--json"))
    assert [(item["identity"], item["level"], item["rules"]) for item in report["promoted"]] == [
        (WHO, 1, {"grab": 3})
    ]
    assert (report["dry_run"], report["announced"]) == (True, [])
    assert not BlacklistEntry.objects.exists()


def test_the_command_when_a_policy_stops_at_its_cap_exits_with_1() -> None:
    """That more were due than a run may ban is a finding."""
    make_rule()
    make_policy(max_blocks_per_run=1)
    offend(WHO)
    offend("ip:203.0.113.10", count=9)
    out = StringIO()
    with pytest.raises(SystemExit) as ending:
        run(out=out)
    assert ending.value.code == 1
    assert "stopped at 1 bans in one run and left 1 more" in out.getvalue()


def test_the_command_while_another_run_is_at_work_leaves_it_to_that(monkeypatch: Any, valkey: Any) -> None:
    """C108: a second run beside the first does nothing, and that is no error."""
    monkeypatch.setattr("ratelimit_app.store.turns.TURN_TTL", 0.1)
    monkeypatch.setattr("ratelimit_app.store.turns.WAIT_SLACK", 0)
    valkey.set(f"{conf.keys.root}:turn:promotion", "of another", ex=60)
    assert run().startswith("Another run")


def test_the_command_when_redis_is_away_exits_with_1(settings: Any) -> None:
    """That nobody could be judged is a finding."""
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/valkey.sock?db=0"}
    settings.CACHES = {"default": cache}
    with pytest.raises(CommandError, match="does not answer") as failure:
        run()
    assert failure.value.returncode == 1
