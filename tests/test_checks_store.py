"""Checks of the Redis that limits are kept in: what the alias says, and what the server says of itself."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.checks import run_checks
from django.core.management import call_command

from ratelimit_app.checks import store as checks
from ratelimit_app.store import inspection
from ratelimit_app.store.inspection import ServerFacts

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.django_db(
    databases="__all__"
)  # the checks of models look at the database where nobody has before
SHARED_BY_NOBODY = [
    "django.core.cache.backends.locmem.LocMemCache",
    "django.core.cache.backends.dummy.DummyCache",
    "django.core.cache.backends.filebased.FileBasedCache",
    "django.core.cache.backends.db.DatabaseCache",
]


def ids(check: Any) -> list[str]:
    """The ids that a check raises."""
    return [str(message.id).removeprefix("ratelimit_app.") for message in check()]


@pytest.fixture
def alias(settings: Any) -> Any:
    """Change the alias of the limits."""

    def change(query: str = "", **options: Any) -> None:
        cache = settings.CACHES["default"]
        changed = {**cache, "LOCATION": cache["LOCATION"].split("&")[0] + query, "OPTIONS": options}
        settings.CACHES = {**settings.CACHES, "default": changed}

    return change


@pytest.mark.parametrize("backend", SHARED_BY_NOBODY)
def test_a_cache_when_processes_do_not_share_it_is_an_error(settings: Any, backend: str) -> None:
    """E002: every process, or every machine, would count for itself."""
    settings.CACHES = {**settings.CACHES, "default": {"BACKEND": backend, "LOCATION": "x"}}
    assert ids(checks.check_cache) == ["E002"]
    assert ids(checks.check_pool) == ids(checks.check_timeouts) == ids(checks.check_server) == []


@pytest.mark.parametrize(
    ("most", "name", "told", "expected"),
    [
        (None, "GUNICORN_CMD_ARGS", "--threads 200", []),
        (16, "GUNICORN_CMD_ARGS", "--workers=2 --threads=16", []),
        (16, "GUNICORN_CMD_ARGS", "--workers=2 --threads=17", ["W030"]),
        (16, "GRANIAN_BLOCKING_THREADS", "32", ["W030"]),
        (16, "UWSGI_THREADS", "32", ["W030"]),
        (3, "UWSGI_THREADS", "", ["W030"]),
        (4, "UWSGI_THREADS", "nonsense", []),
    ],
)
def test_a_pool_when_smaller_than_the_servers_threads_is_told_of(
    alias: Any, monkeypatch: pytest.MonkeyPatch, most: int | None, name: str, told: str, expected: list[str]
) -> None:
    """W030: a request that finds no connection free would wait, and be degraded."""
    monkeypatch.setenv(name, told)
    alias(**({} if most is None else {"CONNECTION_POOL_KWARGS": {"max_connections": most}}))
    assert ids(checks.check_pool) == expected
    if most is not None:
        alias(f"&max_connections={most}")
        assert ids(checks.check_pool) == expected


@pytest.mark.parametrize(
    ("query", "options", "missing"),
    [
        ("", {}, "SOCKET_TIMEOUT and no SOCKET_CONNECT_TIMEOUT"),
        ("", {"SOCKET_TIMEOUT": 0.5}, "no SOCKET_CONNECT_TIMEOUT"),
        ("", {"SOCKET_TIMEOUT": 0.5, "SOCKET_CONNECT_TIMEOUT": 0.5}, ""),
        ("&socket_timeout=0.5&socket_connect_timeout=0.5", {}, ""),
        (
            "",
            {"CONNECTION_POOL_KWARGS": {"socket_timeout": 1, "socket_connect_timeout": 1}},
            "",
        ),
    ],
)
def test_an_alias_when_it_has_no_timeout_is_told_of_before_a_deployment(
    alias: Any, query: str, options: dict[str, Any], missing: str
) -> None:
    """W031: the limiter has its own, but what else uses the alias would wait for a Redis that hangs."""
    alias(query, **options)
    assert ids(checks.check_timeouts) == (["W031"] if missing else [])
    assert all(missing in message.msg for message in checks.check_timeouts())
    assert "ratelimit_app.W031" not in [message.id for message in run_checks()]


@pytest.fixture
def policy(valkey: Any) -> Iterator[Any]:
    """Set the server's policy, until the end of the test."""
    valkey.config_set("maxmemory", "1gb")
    yield lambda name: valkey.config_set("maxmemory-policy", name)
    valkey.config_set("maxmemory", 0)
    valkey.config_set("maxmemory-policy", "noeviction")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("noeviction", []), ("allkeys-lru", ["W032"]), ("volatile-ttl", ["W032"]), ("volatile-lru", ["W032"])],
)
def test_a_server_when_it_may_evict_is_told_of(policy: Any, name: str, expected: list[str]) -> None:
    """W032: limits have an end, so that a policy for volatile keys takes them first."""
    policy(name)
    assert ids(checks.check_server) == expected
    told = [str(message.id)[-4:] for message in run_checks(include_deployment_checks=True)]
    assert [each for each in told if each == "W032"] == expected


@pytest.mark.django_db(databases=["default", "other"])
def test_the_doctor_when_the_server_may_evict_says_so(policy: Any) -> None:
    """What asks the server is part of the doctor's round."""
    policy("allkeys-lru")
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("ratelimit_doctor", stdout=out)
    assert "ratelimit_app.W032" in out.getvalue()


@pytest.mark.parametrize(("version", "expected"), [((6, 0, 16), ["E031"]), ((6, 2, 0), []), ((7, 2, 4), [])])
def test_a_server_when_older_than_supported_is_an_error(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], expected: list[str]
) -> None:
    """C132: what it does not know would fail one request after the other."""
    (facts,) = inspection.server_facts()
    assert facts.version >= checks.OLDEST
    monkeypatch.setattr(checks, "server_facts", lambda: [facts._replace(version=version)])
    assert ids(checks.check_server) == expected


@pytest.mark.parametrize(("factory", "expected"), [(None, ["E030"]), (checks.CLUSTER, [])])
def test_a_node_of_a_cluster_when_the_alias_knows_of_no_others_is_an_error(
    alias: Any, monkeypatch: pytest.MonkeyPatch, factory: str | None, expected: list[str]
) -> None:
    """C129: said once, with the line to write, instead of a MOVED for each request."""
    (facts,) = inspection.server_facts()
    alias(**({"CONNECTION_FACTORY": factory} if factory else {}))
    monkeypatch.setattr(checks, "server_facts", lambda: [facts._replace(is_cluster=True)])
    assert ids(checks.check_server) == expected
    assert all(checks.CLUSTER in str(message.hint) for message in checks.check_server())


def test_a_server_when_away_or_silent_about_itself_is_not_judged(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that builds the site has no Redis, and a provider may hide INFO."""
    hidden = inspection._read({})
    assert hidden == ServerFacts((), "noeviction", is_cluster=False)
    with monkeypatch.context() as patched:
        patched.setattr(checks, "server_facts", lambda: [hidden])
        assert ids(checks.check_server) == []
    settings.CACHES = {
        "default": {**settings.CACHES["default"], "LOCATION": "unix:///nowhere/valkey.sock?db=0"}
    }
    assert ids(checks.check_server) == []
