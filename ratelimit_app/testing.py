"""
Helpers for the tests of projects that use the app: decorators, context managers and pytest fixtures.

They act on the process that uses them, and work in `TestCase`, where nothing commits. For the fixtures, write
`pytest_plugins = ["ratelimit_app.testing"]` into the project's `conftest.py`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from django.conf import settings
from django.test.utils import TestContextDecorator, override_settings

from ratelimit_app import local_cache, offences, snapshot_cache
from ratelimit_app.conf import conf
from ratelimit_app.core.groups import share
from ratelimit_app.core.rules import rule_from_dict
from ratelimit_app.core.snapshot import EMPTY
from ratelimit_app.store.connection import client, unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ratelimit_app.core.rules import Rule, RuleError

_FIELDS = (
    "name",
    "rate",
    "key",
    "scope",
    "route",
    "methods",
    "algorithm",
    "burst",
    "cost",
    "mode",
    "on_failure",
    "group",
    "reserve",
    "lease",
)
_TIMES = {"starts_at": "starts_us", "ends_at": "ends_us"}


class override_rules(TestContextDecorator):  # noqa: N801 - used like a function, as override_settings is
    """
    Decide by these rules alone, instead of the database's.

    Each is a dict with the fields of a Rule (`rate` is needed; `key` is `ip` unless given), or a Rule, saved or
    not. By keyword: a name and its rate. Raises ValueError for a rule that cannot be.
    """

    def __init__(self, *rules: Any, **rates: str) -> None:
        super().__init__()
        rows = [_row(rule, n) for n, rule in enumerate(rules)]
        rows += [{"name": name, "rate": rate, "key": "ip"} for name, rate in rates.items()]
        made = [rule_from_dict(row) for row in rows]
        self._rules = share([rule for rule in made if rule.mode != "off"], _refuse)
        self._before: list[Any] = []

    def enable(self) -> None:
        """Begin."""
        self._before.append(snapshot_cache.override(replace(EMPTY, version="override", rules=self._rules)))

    def disable(self) -> None:
        """End; rules overridden around these ones count again."""
        snapshot_cache.override(self._before.pop())


def _refuse(_: Rule, error: RuleError) -> NoReturn:
    raise error


def _row(rule: Any, number: int) -> dict[str, Any]:
    if isinstance(rule, dict):
        row = {"name": f"rule-{number}", "key": "ip"} | rule
    else:
        row = {name: getattr(rule, name) for name in (*_FIELDS, *_TIMES)}
    unknown = sorted(row.keys() - {*_FIELDS, *_TIMES})
    if unknown:
        msg = f"{unknown[0]!r} is no field of a rule: expected some of {', '.join((*_FIELDS, *_TIMES))}."
        raise ValueError(msg)
    times = {_TIMES[name]: _microseconds(row.pop(name, None)) for name in _TIMES}
    return row | times


def _microseconds(instant: Any) -> int:
    return 0 if instant is None else round(instant.timestamp() * 1_000_000)


class disable_limits(TestContextDecorator):  # noqa: N801
    """Let every request pass, without a call to Redis."""

    def __init__(self) -> None:
        super().__init__()
        self._overrides: list[override_settings] = []

    def enable(self) -> None:
        """Begin."""
        given = {**getattr(settings, "RATELIMIT_APP", {}), "ENABLED": False}
        self._overrides.append(override_settings(RATELIMIT_APP=given))
        self._overrides[-1].enable()

    def disable(self) -> None:
        """End."""
        self._overrides.pop().disable()


class clear_limits(TestContextDecorator):  # noqa: N801
    """
    Delete the app's keys, and no others, from Redis: at once when called, and around what it decorates.

    Rules and lists come back by themselves: a process that finds none has them published.
    """

    def __init__(self) -> None:
        super().__init__()
        self.enable()

    def enable(self) -> None:
        """Delete our keys."""
        offences.discard()
        local_cache.forget(None)
        with suppress(Exception), unavailable():
            for key in client().scan_iter(match=f"{conf.keys.root}:*", count=1_000):
                client().unlink(key)

    def disable(self) -> None:
        """Delete them again."""
        self.enable()


class travel(TestContextDecorator):  # noqa: N801
    """Move the store's clock by some seconds, for the decisions of this process."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def enable(self) -> None:
        """Go there."""
        snapshot_cache.travel(self._seconds)
        local_cache.forget(None)

    def disable(self) -> None:
        """Come back."""
        snapshot_cache.travel(-self._seconds)
        local_cache.forget(None)


try:
    import pytest
except ImportError:  # pragma: no cover - the fixtures are for those who have pytest
    pass
else:

    @pytest.fixture(name="override_rules")
    def override_rules_fixture() -> Iterator[Callable[..., None]]:
        """Call it with rules, as often as needed; undone after the test."""
        active: list[override_rules] = []

        def use(*rules: Any, **rates: str) -> None:
            active.append(override_rules(*rules, **rates))
            active[-1].enable()

        yield use
        while active:
            active.pop().disable()

    @pytest.fixture(name="disable_limits")
    def disable_limits_fixture() -> Iterator[None]:
        """No limits during the test."""
        with disable_limits():
            yield

    @pytest.fixture(name="clear_limits")
    def clear_limits_fixture() -> Iterator[None]:
        """A store without keys of ours, before the test and after it."""
        with clear_limits():
            yield

    @pytest.fixture(name="travel")
    def travel_fixture() -> Iterator[Callable[[float], None]]:
        """Call it with seconds, as often as needed; the clock is back after the test."""
        journeys: list[travel] = []

        def go(seconds: float) -> None:
            journeys.append(travel(seconds))
            journeys[-1].enable()

        yield go
        while journeys:
            journeys.pop().disable()
