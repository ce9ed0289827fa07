"""The least that the limiter must be allowed: what docs/redis.md says is enough, and none of it is too much."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import NoPermissionError

from ratelimit_app.store.gateway import gateway
from tests.store.servers import HOST, Server
from tests.store.tour import tour

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[2] / "docs" / "redis.md"
# What the test itself asks as another user, and what every user may do.
ASIDE = {"acl|setuser", "acl|log", "acl", "config|resetstat", "config", "auth", "hello", "client"}


def documented(*, of_cluster: bool = False) -> list[str]:
    """Read the rules of the user, for the doctor and of a cluster, from the page that people copy them from."""
    found = re.findall(r"^ACL SETUSER limiter (.+?)\n```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == 3, f"{PAGE} shows no ACL"
    return " ".join(found if of_cluster else found[:2]).replace("\\\n", " ").split()


@pytest.fixture(scope="module")
def started() -> Iterator[Server]:
    """A server whose user `limiter` has the documented rules."""
    made = Server()
    made.ask("ACL", "SETUSER", "limiter", *documented())
    yield made
    made.kill()
    shutil.rmtree(made.home)


@pytest.fixture
def server(started: Server, settings: Any) -> Iterator[Server]:
    """The server, and the alias of that user."""
    alias = {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": f"redis://{HOST}:{started.port}/0",
        "OPTIONS": {"USERNAME": "limiter", "PASSWORD": "secret"},
    }
    settings.CACHES = {**settings.CACHES, "acl": alias}
    settings.RATELIMIT_APP = {**settings.RATELIMIT_APP, "CACHE": "acl"}
    yield started
    gateway().close()


@pytest.mark.django_db(transaction=True)
def test_a_user_when_allowed_what_is_documented_can_do_everything_and_no_more(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C125: nothing is refused, no key outside the prefix is touched, and no command is allowed in vain."""
    server.ask("CONFIG", "RESETSTAT")
    tour(monkeypatch)
    with server.admin() as one:
        log = one.execute_command("ACL", "LOG")
        used = {name.removeprefix("cmdstat_") for name in one.info("commandstats")}
    assert log == []
    allowed = {word[1:] for word in documented() if word.startswith("+")}
    # A server before 7 counts commands without their subcommands.
    names = {name.partition("|")[0] for name in used} if not any("|" in name for name in used) else used
    spelled = allowed if names is used else {name.partition("|")[0] for name in allowed}
    assert names - ASIDE == spelled - ASIDE


@pytest.mark.parametrize(
    "command",
    [
        ("FLUSHALL",),
        ("CONFIG", "GET", "maxmemory"),
        ("KEYS", "*"),
        ("SHUTDOWN",),
        ("GET", "somebody:else"),
        ("SET", "somebody:else", "1"),
        ("EVAL", "return redis.call('GET', KEYS[1])", "1", "somebody:else"),
        ("ACL", "LIST"),
        ("REPLICAOF", "NO", "ONE"),
    ],
)
def test_a_user_when_it_wants_more_than_is_documented_is_refused(
    server: Server, command: tuple[str, ...]
) -> None:
    """No command that harms the server, and no key of others, whoever has its password."""
    with server.admin(username="limiter", password="secret") as one, pytest.raises(NoPermissionError):
        one.execute_command(*command)
