"""`ratelimit_unblock`: letting somebody in again, from the shell."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from ratelimit_app import block
from ratelimit_app.conf import conf
from ratelimit_app.models import BlacklistEntry

pytestmark = pytest.mark.django_db(transaction=True)


def run(*args: str, out: StringIO | None = None) -> str:
    """Run the command and give what it printed."""
    out = out or StringIO()
    call_command("ratelimit_unblock", *args, stdout=out)
    return out.getvalue()


def test_the_command_when_given_an_identity_lifts_its_bans(valkey: Any) -> None:
    """C96: the row and the mark are gone."""
    block("ip:203.0.113.9", reason="")
    assert "1 entry ended" in run("ip:203.0.113.9")
    assert 0 == BlacklistEntry.objects.count()
    assert not valkey.exists(conf.keys.mark("ip:203.0.113.9"))
    assert 0 == json.loads(run("ip:203.0.113.9", "--json"))["ended"]


def test_the_command_when_run_dry_writes_nothing() -> None:
    """--dry-run says what would be done."""
    block("user:42", reason="")
    report = json.loads(run("user:42", "--dry-run", "--json"))
    assert report == {
        "identity": "user:42", "ended": 1, "covering": [], "dry_run": True, "published": False,
    }  # fmt: skip
    assert 1 == BlacklistEntry.objects.count()


def test_the_command_when_a_network_still_holds_it_exits_with_1() -> None:
    """Whoever asks for an address is told which network keeps it out."""
    block("ip:203.0.113.9", reason="")
    block("ip:203.0.113.0/24", reason="")
    out = StringIO()
    with pytest.raises(SystemExit) as ending:
        run("ip:203.0.113.9", out=out)
    assert 1 == ending.value.code
    assert "stays blocked by ip:203.0.113.0/24" in out.getvalue()


def test_the_command_when_redis_is_away_says_so_and_exits_with_1(settings: Any) -> None:
    """The ban is lifted in the list; that it may still be in force is a finding."""
    block("user:42", reason="")
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/valkey.sock?db=0"}
    settings.CACHES = {"default": cache}
    out = StringIO()
    with pytest.raises(SystemExit) as ending:
        run("user:42", out=out)
    assert (1, 0) == (ending.value.code, BlacklistEntry.objects.count())
    assert "1 entry ended.\nRedis does not know of it yet" in out.getvalue()
    run("user:42", "--dry-run")


def test_the_command_when_misused_exits_with_2() -> None:
    """What is no identity is told with the remedy."""
    with pytest.raises(CommandError, match="expected") as failure:
        run("203.0.113.9")
    assert 2 == failure.value.returncode
