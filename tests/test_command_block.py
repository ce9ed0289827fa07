"""`ratelimit_block`: a ban from the shell."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from ratelimit_app.conf import conf
from ratelimit_app.models import AllowlistEntry, BlacklistEntry

pytestmark = pytest.mark.django_db(transaction=True)


def run(*args: str) -> str:
    """Run the command and give what it printed."""
    out = StringIO()
    call_command("ratelimit_block", *args, stdout=out)
    return out.getvalue()


def test_the_command_when_given_an_identity_blocks_it(valkey: Any) -> None:
    """The entry has the reason, and Redis has the mark."""
    assert "is blocked for ever" in run("ip:203.0.113.9", "--reason", "scraping")
    assert ("scraping", None) == BlacklistEntry.objects.values_list("reason", "expires_at").get()
    assert b"0" == valkey.get(conf.keys.mark("ip:203.0.113.9"))


@pytest.mark.parametrize(("period", "seconds"), [("90", 90), ("10m", 600), ("2h", 7_200), ("1 day", 86_400)])
def test_the_command_when_given_a_period_blocks_for_it(period: str, seconds: int) -> None:
    """Seconds, or a number and a unit."""
    report = json.loads(run("user:42", "--period", period, "--json"))
    assert (seconds, True, "user:42") == (report["period"], report["published"], report["identity"])
    end = BlacklistEntry.objects.get().expires_at
    assert abs(end - timezone.now() - timedelta(seconds=seconds)) < timedelta(seconds=5)


def test_the_command_when_run_dry_writes_nothing(valkey: Any) -> None:
    """--dry-run says what would be done."""
    assert "Nothing was written" in run("user:42", "--dry-run")
    assert json.loads(run("user:42", "--dry-run", "--json"))["dry_run"]
    assert 0 == BlacklistEntry.objects.count()
    assert [] == valkey.keys()


@pytest.mark.parametrize(
    "args",
    [
        ("nobody",),
        ("ip:nowhere",),
        ("user:42", "--period", "soon"),
        ("user:42", "--period", "0"),
        ("user:42", "--period", "-1"),
        ("user:42", "--period", "0", "--dry-run"),
        ("user:42", "--period", "99999999999", "--dry-run"),
    ],
)
def test_the_command_when_misused_exits_with_2(args: tuple[str, ...]) -> None:
    """Misuse is told with the remedy and changes nothing."""
    with pytest.raises(CommandError, match="expected") as failure:
        run(*args)
    assert 2 == failure.value.returncode
    assert 0 == BlacklistEntry.objects.count()


@pytest.mark.parametrize("identity", ["ip:0.0.0.0/0", "ip:127.0.0.1", "ip:10.0.0.5"])
def test_the_command_when_it_would_break_the_site_asks_for_force(identity: str) -> None:
    """C114: refused without --force, done with it."""
    with pytest.raises(CommandError, match="--force") as failure:
        run(identity)
    assert 2 == failure.value.returncode
    run(identity, "--force")
    assert identity == BlacklistEntry.objects.get().identity


def test_the_command_when_given_a_secret_prints_its_digest() -> None:
    """C26: a secret is not echoed."""
    out = run("header:x-api-key:hunter2-hunter2")
    assert "hunter2" not in out
    assert BlacklistEntry.objects.get().identity in out


def test_the_command_when_redis_is_away_saves_and_exits_with_1(settings: Any) -> None:
    """The ban is listed; that it is not in force yet is a finding."""
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/valkey.sock?db=0"}
    settings.CACHES = {"default": cache}
    with pytest.raises(SystemExit) as ending:
        run("user:42")
    assert 1 == ending.value.code
    assert 1 == BlacklistEntry.objects.count()


def test_the_command_when_the_allowlist_makes_the_ban_void_says_so() -> None:
    """C102: allow wins; whoever blocks is told what lets the identity pass."""
    for value in ("203.0.113.0/24", "203.0.113.9"):
        AllowlistEntry.objects.create(kind="ip", value=value)
    AllowlistEntry.objects.create(kind="user", value="42", expires_at=timezone.now())
    assert "passes all the same: ip:203.0.113.0/24 is on the allowlist" in run("ip:203.0.113.9")
    report = json.loads(run("ip:203.0.113.9", "--json"))
    assert ["ip:203.0.113.0/24", "ip:203.0.113.9"] == report["allowlisted"]
    assert "allowlist" not in run("user:42")
