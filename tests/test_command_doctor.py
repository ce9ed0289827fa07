"""`ratelimit_doctor`: for now, what a sale needs."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from ratelimit_app.core.capacity import Costs, Load, as_data
from ratelimit_app.core.snapshot import EMPTY
from ratelimit_app.snapshot_cache import override


def run(*args: str) -> str:
    """Run the command and give what it printed."""
    out = StringIO()
    call_command("ratelimit_doctor", *args, stdout=out)
    return out.getvalue()


def test_the_command_when_asked_for_capacity_measures_and_works_it_out(valkey: Any) -> None:
    """The report is of the load that was asked for, follows from what was measured, and no key stays."""
    override(EMPTY)
    try:
        report = json.loads(run("--capacity", "--users", "5000", "--rps", "700", "--rules", "2", "--json"))
    finally:
        override(None)
    assert {"users": 5_000, "rps": 700, "rules": 2} == report["load"]
    assert report["measured"]["decisions"] > 0
    assert as_data(Costs(**report["measured"]), Load(**report["load"])) == report
    assert [] == valkey.keys()


def test_the_command_when_redis_is_away_exits_with_1(settings: Any) -> None:
    """It says so politely, and why."""
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/valkey.sock?db=0"}
    settings.CACHES = {"default": cache}
    with pytest.raises(CommandError, match=r"does not answer.*nothing is known") as failure:
        run("--capacity")
    assert 1 == failure.value.returncode


@pytest.mark.parametrize(
    ("args", "said"),
    [((), "give --capacity"), (("--json",), "give --capacity"), (("--capacity", "--rules", "21"), "1 to 20")],
)
def test_the_command_when_misused_exits_with_2(args: tuple[str, ...], said: str) -> None:
    """What cannot be answered is said with what can be."""
    with pytest.raises(CommandError, match=said) as failure:
        run(*args)
    assert 2 == failure.value.returncode


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "many", "1_000"])
def test_the_command_when_a_number_is_none_refuses_it(number: str) -> None:
    """Users, requests and rules are whole numbers from 1."""
    with pytest.raises(CommandError, match=r"expected (a whole number from 1|one argument)"):
        run("--capacity", "--users", number)


def test_the_command_when_limits_are_switched_off_exits_with_2(settings: Any) -> None:
    """Where nothing is decided there is nothing to measure."""
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "ENABLED": False}
    with pytest.raises(CommandError, match="ENABLED") as failure:
        run("--capacity")
    assert 2 == failure.value.returncode
