"""`ratelimit_prune`: deleting what is over, from the shell and for cron."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from ratelimit_app.models import BlacklistEntry

pytestmark = pytest.mark.django_db(transaction=True)


class Terminal(StringIO):
    """A stream that claims to be watched."""

    def isatty(self) -> bool:
        """Say yes."""
        return True


def run(*args: str, err: StringIO | None = None) -> str:
    """Run the command and give what it printed."""
    out = StringIO()
    call_command("ratelimit_prune", *args, stdout=out, stderr=err or StringIO())
    return out.getvalue()


@pytest.fixture(autouse=True)
def entries() -> None:
    """Two entries that are over and one that is not."""
    for number, hours in enumerate((-2, -1, 1)):
        end = timezone.now() + timedelta(hours=hours)
        BlacklistEntry.objects.create(kind="ip", value=f"203.0.113.{number}", expires_at=end)


def test_the_command_when_entries_are_over_deletes_and_counts_them() -> None:
    """It says how many went, and finds none the second time."""
    assert run() == "2 entries were deleted.\n"
    assert json.loads(run("--json")) == {"pruned": 0, "dry_run": False}
    assert BlacklistEntry.objects.count() == 1


def test_the_command_as_a_dry_run_counts_and_deletes_nothing() -> None:
    """--dry-run only counts."""
    assert run("--dry-run") == "2 entries would be deleted.\n"
    assert BlacklistEntry.objects.count() == 3


def test_the_command_when_it_is_watched_shows_its_progress(monkeypatch: Any) -> None:
    """Long work shows how far it is, on a terminal only."""
    monkeypatch.setattr("ratelimit_app.promotion.pruning.BATCH", 1)
    terminal, pipe = Terminal(), StringIO()
    run(err=terminal)
    assert "1 entries deleted" in terminal.getvalue()
    assert "2 entries deleted" in terminal.getvalue()
    run(err=pipe)
    assert pipe.getvalue() == ""


def test_the_command_when_redis_is_away_exits_with_1(settings: Any) -> None:
    """Without the clock of Redis nobody knows what is over."""
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/valkey.sock?db=0"}
    settings.CACHES = {"default": cache}
    with pytest.raises(CommandError, match="does not answer") as failure:
        run()
    assert failure.value.returncode == 1
