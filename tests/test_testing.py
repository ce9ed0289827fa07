"""The helpers for users' own tests: in every kind of test, as decorator, context manager and fixture."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache as django_cache
from django.test import (
    AsyncClient,
    Client,
    RequestFactory,
    SimpleTestCase,
    TestCase,
    TransactionTestCase,
    override_settings,
)
from django.utils import timezone

from ratelimit_app import acquire, check, snapshot_cache, testing
from ratelimit_app.conf import conf
from ratelimit_app.core.rates import RateError
from ratelimit_app.core.rules import RuleError
from tests.test_snapshot_cache import OFFLINE


def statuses(times: int = 3, path: str = "/plain/") -> list[int]:
    """Ask a page some times."""
    return [Client().get(path).status_code for _ in range(times)]


class InTestCase(TestCase):
    """Where nothing commits, so that saved rules would not be published."""

    def test_rules_when_overridden_in_a_test_case_decide(self) -> None:
        """A context manager around a part of a test."""
        with testing.override_rules({"rate": "2/m"}):
            assert [200, 200, 429] == statuses()
        assert [200] == statuses(1)

    @testing.override_rules(all="1/m")
    def test_rules_when_given_by_keyword_decide(self) -> None:
        """A decorator, with a name and its rate."""
        assert [200, 429] == statuses(2)

    @testing.override_rules(all="0/m")
    @testing.disable_limits()
    def test_limits_when_disabled_let_all_pass(self) -> None:
        """Whatever the rules say."""
        assert [200] * 3 == statuses()

    @testing.override_rules(all="1/m")
    def test_time_when_travelled_is_the_stores(self) -> None:
        """A limit is over without sleeping, and back when the journey is (C64)."""
        assert [200, 429] == statuses(2)
        with testing.travel(61):
            assert [200, 429] == statuses(2)
            with testing.travel(61):
                assert [200] == statuses(1)
        assert [429] == statuses(1)

    @testing.clear_limits()
    @testing.override_rules(all="1/m")
    def test_counts_when_cleared_begin_anew(self) -> None:
        """Called in the middle of a test, it clears at once."""
        assert [200, 429] == statuses(2)
        testing.clear_limits()
        assert [200, 429] == statuses(2)

    def test_a_saved_rule_when_given_decides_with_its_own_fields(self) -> None:
        """A model instance stands for itself, saved or not."""
        from ratelimit_app.models import Rule

        rule = Rule(name="saved", key="ip", rate="1/m", route="plain")
        with testing.override_rules(rule):
            assert [200, 429] == statuses(2)
            assert [200, 200] == statuses(2, "/public/")


@testing.override_rules(all="1/m")
class DecoratedTestCase(TestCase):
    """The decorator on a whole class."""

    def test_a_class_when_decorated_has_the_rules(self) -> None:
        """Each of its tests decides by them."""
        assert [200, 429] == statuses(2)


class InTransactionTestCase(TransactionTestCase):
    """Where rows are committed, and the database is flushed afterwards."""

    @testing.override_rules(all="1/m")
    def test_rules_when_overridden_in_a_transaction_test_case_decide(self) -> None:
        """The same helpers work where things commit."""
        assert [200, 429] == statuses(2)


class InSimpleTestCase(SimpleTestCase):
    """Where no database may be touched."""

    @testing.override_rules(all="1/m")
    async def test_rules_when_overridden_in_an_async_test_decide(self) -> None:
        """Async tests and the async client too."""
        client = AsyncClient()
        assert [200, 429] == [(await client.get("/aplain/")).status_code for _ in range(2)]


def test_rules_when_they_share_a_limit_hold_their_reserves() -> None:
    """Groups mean the same as in the database, and what cannot share is refused at once."""
    from ratelimit_app.models import Rule

    group = {"rate": "9/m", "key": "ip", "group": "shop"}
    with testing.override_rules(group | {"name": "browse"}, Rule(name="pay", reserve=4, **group)):
        snapshot = snapshot_cache.known()
        assert snapshot is not None
        assert {"browse": 4, "pay": 0} == {rule.name: rule.held for rule in snapshot.rules}
    with pytest.raises(RuleError, match="cannot share"):
        testing.override_rules(group, group | {"key": "user"})
    testing.override_rules(group, group | {"key": "user", "mode": "off"})


def test_rules_when_overridden_twice_nest() -> None:
    """The inner rules count alone, and the outer ones again after them."""
    with testing.override_rules(all="0/m"):
        with testing.override_rules(all="9/m"):
            assert [200] == statuses(1)
        assert [429] == statuses(1)


def test_a_helper_when_used_twice_works_twice() -> None:
    """One object can be entered again, and inside itself."""
    rules, off = testing.override_rules(all="0/m"), testing.disable_limits()
    for _ in range(2):
        with rules:
            assert [429] == statuses(1)
            with rules, off, off:
                assert [200] == statuses(1)
            assert [429] == statuses(1)


def test_rules_when_the_test_fails_are_undone() -> None:
    """An exception leaves no rules behind (C87)."""
    with pytest.raises(ZeroDivisionError), testing.override_rules(all="0/m"), testing.travel(5):
        raise ZeroDivisionError
    with testing.override_rules():
        assert [200] == statuses(1)


def test_rules_when_off_or_shadow_are_as_in_the_admin() -> None:
    """`mode` means what it means there."""
    off, shadow = {"rate": "0/m", "mode": "off"}, {"rate": "0/m", "mode": "shadow"}
    with testing.override_rules(off, shadow):
        assert [200] == statuses(1)


@pytest.mark.parametrize(
    ("row", "error"),
    [({"rate": "5/x"}, RateError), ({"rate": "5/s", "mode": "on"}, RuleError), ({}, RuleError)],
)
def test_a_rule_when_it_cannot_be_is_refused_at_once(row: dict[str, Any], error: type[Exception]) -> None:
    """The mistake is in the test's first line, not in a later 200."""
    with pytest.raises(error):
        testing.override_rules(row)


def test_limits_when_disabled_make_no_call(rules: Any) -> None:
    """Redis need not be there; the other settings stay."""
    rules({"rate": "0/m"})
    with override_settings(CACHES=OFFLINE), testing.disable_limits():
        assert [200] == statuses(1)
        assert acquire("user:1", "0/m", group="g").allowed
        assert conf.store_timeout == 2.0
    assert [429] == statuses(1)


def test_keys_when_cleared_are_ours_alone(valkey: Any) -> None:
    """A foreign key, and the cache of Django itself, stay (C87)."""
    valkey.set("foreign", 1)
    valkey.set("rl-other:1:x", 1)
    django_cache.set("mine", "kept")
    acquire("user:1", "1/m", group="g")
    with testing.clear_limits():
        assert [] == valkey.keys(f"{conf.keys.root}:*")
        assert acquire("user:1", "1/m", group="g").allowed
    assert [] == valkey.keys(f"{conf.keys.root}:*")
    assert (b"1", b"1", "kept") == (
        valkey.get("foreign"),
        valkey.get("rl-other:1:x"),
        django_cache.get("mine"),
    )


def test_keys_when_redis_is_away_are_no_reason_to_fail() -> None:
    """Tests that touch no limit run without Redis."""
    with override_settings(CACHES=OFFLINE), testing.clear_limits():
        pass


def test_the_fixtures_when_asked_for_work_as_often_as_called(override_rules: Any, travel: Any) -> None:
    """Called as functions; undone by pytest."""
    override_rules(all="1/m")
    assert [200, 429] == statuses(2)
    travel(61)
    assert [200, 429] == statuses(2)
    travel(61)
    override_rules({"rate": "2/m", "route": "plain"})
    assert [200, 200, 429] == statuses()


def test_the_fixture_that_disables_when_asked_for_lets_all_pass(
    override_rules: Any, disable_limits: None
) -> None:
    """No limits for a whole test."""
    override_rules(all="0/m")
    assert [200] == statuses(1)


def test_the_fixture_that_clears_when_asked_for_begins_without_keys(clear_limits: None, valkey: Any) -> None:
    """No key of ours before the test."""
    assert [] == valkey.keys(f"{conf.keys.root}:*")


def test_override_rules_knows_schedules_and_refuses_unknown_fields() -> None:
    """A rule of tomorrow sleeps today; a misspelt field is no rule for everything."""
    tomorrow = timezone.now() + timedelta(days=1)
    with testing.override_rules({"rate": "0/s", "starts_at": tomorrow}):
        assert check(RequestFactory().get("/")).allowed
    with pytest.raises(ValueError, match="'rout'"):
        testing.override_rules({"rate": "1/m", "rout": "/nothing"})
