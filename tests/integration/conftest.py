"""What several integration tests need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.watchers import STARTING, WATCHERS, Watcher, expect

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def watchers(request: pytest.FixtureRequest) -> Iterator[list[Watcher]]:
    """Two processes that serve under a rule of 9000/s, with nobody banned."""
    from ratelimit_app.models import Rule

    Rule.objects.create(name="a", rate="9000/s")
    found = [Watcher(*getattr(request, "param", ())) for _ in range(WATCHERS)]
    try:
        expect(found, {"limit": "9000", "client": 200, "neighbour": 200}, within=STARTING)
        yield found
    finally:
        for watcher in found:
            watcher.stop()
