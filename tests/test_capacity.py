"""Measuring what a decision costs: on a real server, without leaving anything there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ratelimit_app import capacity
from ratelimit_app.core.calls import StoreUnavailable
from ratelimit_app.core.snapshot import EMPTY
from ratelimit_app.snapshot_cache import override

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _no_rules() -> Iterator[None]:
    """Decide without waiting for a snapshot that nobody publishes here."""
    override(EMPTY)
    yield
    override(None)


@pytest.fixture
def without(settings: Any, valkey: Any) -> Iterator[Any]:
    """Reach the server as a user who may not run some commands: call it with their names."""
    location = settings.CACHES["default"]["LOCATION"]

    def use(*commands: str) -> None:
        refused = [f"-{command}" for command in commands]
        valkey.execute_command("ACL", "SETUSER", "narrow", "reset", "on", ">pass", "~*", "+@all", *refused)
        settings.CACHES = {
            "default": settings.CACHES["default"]
            | {"LOCATION": location.replace("unix://", "unix://narrow:pass@")}
        }

    yield use
    valkey.execute_command("ACL", "DELUSER", "narrow")


@pytest.mark.parametrize("rules", [1, 3])
def test_measure_when_redis_answers_gives_costs_and_leaves_no_key(valkey: Any, rules: int) -> None:
    """Every cost is there, whole clients were decided, a log has the size of five entries, and nothing stays."""
    valkey.set("of somebody else", 1)
    costs = capacity.measure(rules, seconds=0.2)
    assert min(costs.client_us, costs.wall_us) > 0
    assert costs.server_us >= 0
    assert costs.decisions > 0
    assert 100 < costs.log_bytes <= 24 * 5 + 200
    assert [b"of somebody else"] == valkey.keys()


def test_measure_when_the_server_says_no_sizes_raises_and_leaves_no_key(valkey: Any, without: Any) -> None:
    """What the decisions have left is deleted also when measuring fails after them."""
    without("memory|usage")
    with pytest.raises(StoreUnavailable, match="memory"):
        capacity.measure(1, seconds=0.1)
    assert [] == valkey.keys()


def test_measure_when_the_server_says_nothing_of_its_time_raises(valkey: Any, without: Any) -> None:
    """A server that hides its CPU time cannot be measured, and is not written to."""
    without("info")
    with pytest.raises(StoreUnavailable, match="info"):
        capacity.measure(1, seconds=0.1)
    assert [] == valkey.keys()


def test_measure_when_no_decision_is_made_raises(valkey: Any, without: Any) -> None:
    """Passing for want of an answer is no decision: the failure policy must not be measured as one."""
    without("evalsha", "eval")
    with pytest.raises(
        StoreUnavailable, match=r"5 decisions in a row were not charged \(store_unavailable\)"
    ):
        capacity.measure(1, seconds=0.1)
    assert [] == valkey.keys()
