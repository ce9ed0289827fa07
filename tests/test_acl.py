"""The ACL user of docs/redis.md: with it everything works, and nothing that it does not need."""

from __future__ import annotations

import re
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from django.core.management import call_command

from ratelimit_app import (
    aacquire,
    acquire,
    block,
    explain,
    offences,
    refund,
    reset,
    sightings,
    snapshot_cache,
    unblock,
)
from ratelimit_app.core.algorithms import ALGORITHMS
from ratelimit_app.promotion import promote_repeat_offenders, prune_expired
from ratelimit_app.publishing import sync
from ratelimit_app.store.gateway import warm_up
from tests.offending import make_policy, make_rule, offend

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCUMENTED = Path(__file__).resolve().parent.parent / "docs/redis.md"
pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


def documented() -> list[str]:
    """Give the words of the rule that the documentation tells people to write."""
    found = re.search(r"^ACL SETUSER limiter (.+)$", DOCUMENTED.read_text(), re.MULTILINE)
    assert found is not None
    return found[1].split()


@pytest.fixture
def limited(valkey: Any, settings: Any) -> Iterator[redis.Redis]:
    """Be the documented user, at the tests' own server."""
    valkey.execute_command("ACL", "SETUSER", "limiter", "reset", *documented())
    cache = dict(settings.CACHES["default"])
    password = next(word[1:] for word in documented() if word.startswith(">"))
    cache["OPTIONS"] = {"USERNAME": "limiter", "PASSWORD": password}
    settings.CACHES = {**settings.CACHES, "default": cache}
    socket = str(settings.VALKEY_SOCKET)
    with redis.Redis(unix_socket_path=socket, username="limiter", password=password) as one:
        yield one
    settings.CACHES = {**settings.CACHES, "default": {**cache, "OPTIONS": {}}}
    valkey.execute_command("ACL", "DELUSER", "limiter")


def test_the_documented_user_when_everything_is_done_is_refused_nothing(
    limited: redis.Redis, valkey: Any
) -> None:
    """Decisions by every algorithm, lists, offences, promotion, warm-up, explanations, the doctor."""
    valkey.execute_command("ACL", "LOG", "RESET")
    make_rule()
    make_policy()
    snapshot_cache.refresh()
    for algorithm in ALGORITHMS:
        for _ in range(3):
            decision = acquire("user:1", "2/m;200/h", group=algorithm, algorithm=algorithm)
            assert not decision.degraded
        assert refund(acquire("user:2", "300/m", group=algorithm, algorithm=algorithm, cost=150)) == 150
    block("ip:203.0.113.9", reason="r")
    block("ip:198.51.100.0/22", reason="r")
    offend("ip:203.0.113.7")
    offences.flush()
    assert {"ip:203.0.113.7", "user:1"} == {one.identity for one in promote_repeat_offenders().promoted}
    assert sync().to_dict()
    unblock("ip:203.0.113.9")
    prune_expired()
    sightings.note("ip:203.0.113.9", "user:1")
    sightings.note("ip:203.0.113.9", "user:2")
    sightings.flush()
    assert 1 == sightings.active()
    assert () == explain("ip:203.0.113.9").unknown
    assert reset("user:1") > 0
    assert warm_up(2) == 2
    with suppress(SystemExit):  # no process of a site is there to be counted
        call_command("ratelimit_warmup", stdout=StringIO())
    call_command("ratelimit_doctor", "--capacity", stdout=StringIO())
    refused = [entry["object"] for entry in valkey.execute_command("ACL", "LOG")]
    assert [] == refused


async def test_the_documented_user_when_async_is_refused_nothing(limited: redis.Redis) -> None:
    """The loop's connection signs in too."""
    assert not (await aacquire("user:1", "5/m", group="g")).degraded


@pytest.mark.parametrize(
    "command",
    [
        ("FLUSHALL",),
        ("CONFIG", "GET", "maxmemory"),
        ("KEYS", "*"),
        ("SHUTDOWN",),
        ("GET", "somebody:else"),
        ("SET", "somebody:else", "1"),
        ("ACL", "LIST"),
        ("REPLICAOF", "NO", "ONE"),
    ],
)
def test_the_documented_user_when_it_wants_more_is_refused(
    limited: redis.Redis, command: tuple[str, ...]
) -> None:
    """No command that harms the server, and no key of others."""
    with pytest.raises(redis.exceptions.NoPermissionError):
        limited.execute_command(*command)  # type: ignore[no-untyped-call]
