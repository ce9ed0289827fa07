"""Matching: a request meets rules by where it really goes, not by how its path is spelt."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_app.core import matching
from ratelimit_app.core.matching import Route, canonical_path, select
from ratelimit_app.core.rules import rule_from_dict
from ratelimit_app.core.snapshot import Snapshot


def snapshot(**routes: str | dict[str, Any]) -> Snapshot:
    """Give a snapshot of rules by name; a text is a route."""
    rules = []
    for name, given_ in routes.items():
        row = {"route": given_} if isinstance(given_, str) else given_
        rules.append(rule_from_dict({"name": name, "rate": "5/s", "key": "ip"} | row))
    return Snapshot(rules=tuple(rules))


def met(made: Snapshot, path: str, view: str = "", method: str = "GET", **how: Any) -> list[str]:
    """Name the rules that a request meets."""
    admin_root = how.pop("admin_root", "")
    route = Route(view, canonical_path(path), admin_root=admin_root)
    scope, scopeless = how.pop("scope", ""), how.pop("scopeless", True)
    found = select(made, route, method, scope=scope, scopeless=scopeless)
    return [rule.name for rule in found]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/login", "/login"),
        ("/login/", "/login/"),
        ("/LOGIN/", "/login/"),
        ("//login//", "/login/"),
        ("/a/../login/", "/login/"),
        ("/./login/.", "/login"),
        ("/../../login", "/login"),
        ("", "/"),
        ("/", "/"),
        ("///", "/"),
        ("/..", "/"),
        ("/STRASSE", "/strasse"),
        ("/straße", "/strasse"),
    ],
)
def test_a_path_when_spelt_differently_is_one(path: str, expected: str) -> None:
    """Letter case, doubled slashes and dot segments are folded (C145)."""
    assert expected == canonical_path(path)


@given(st.text(st.sampled_from("/.aA%é"), max_size=20))
def test_a_canonical_path_when_folded_again_stays(path: str) -> None:
    """Folding is complete: it has no second step that an attacker could use (C145)."""
    once = canonical_path(path)
    assert once == canonical_path(once)
    assert once.startswith("/")
    assert "//" not in once


def test_a_route_by_view_name_when_objects_differ_is_one_rule() -> None:
    """`/orders/1/` and `/orders/2/` are one route (C23); another view is not."""
    made = snapshot(order="orders:one")
    assert ["order"] == met(made, "/orders/1/", "orders:one") == met(made, "/orders/2/", "orders:one")
    assert [] == met(made, "/orders/1/", "orders:other")


@pytest.mark.parametrize("path", ["/login", "/login/", "/LOGIN/", "//login/", "/x/../login/", "/./login"])
@pytest.mark.parametrize("written", ["/login", "/login/", "/Login", "//login"])
def test_a_prefix_when_the_path_is_a_variant_is_met(path: str, written: str) -> None:
    """With or without the slash, in any case, on both sides (C144, C145)."""
    assert ["login"] == met(snapshot(login=written), path)


def test_a_prefix_when_the_path_only_resembles_it_is_not_met() -> None:
    """A prefix that ends with a slash is a directory; one without is a beginning."""
    assert [] == met(snapshot(login="/login/"), "/login-help/")
    assert ["login"] == met(snapshot(login="/login"), "/login-help/")
    assert [] == met(snapshot(login="/login/"), "/api/login/")


def test_a_path_when_it_leads_nowhere_meets_blank_and_prefix_rules() -> None:
    """404s are limited by rules without a route and by prefixes, never by a view's name."""
    made = snapshot(all="", api="/api/", view="api:grab")
    assert ["all", "api"] == met(made, "/api/nothing/")


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, ["free"]),
        ({"scope": "sale"}, ["free", "sale"]),
        ({"scope": "sale", "scopeless": False}, ["sale"]),
        ({"scope": "", "scopeless": False}, []),
        ({"scope": "other", "scopeless": False}, []),
    ],
)
def test_a_scope_when_a_door_asks_gives_its_rules(how: dict[str, Any], expected: list[str]) -> None:
    """A scope's rules, and those without one where the door decides these too."""
    assert expected == met(snapshot(free={}, sale={"scope": "sale"}), "/", **how)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("GET", ["all", "reads"]),
        ("HEAD", ["all", "reads"]),
        ("POST", ["all"]),
        ("OPTIONS", ["preflight"]),
        ("FROBNICATE", ["all"]),
        ("x" * 10_000, ["all"]),
    ],
)
def test_a_method_when_unknown_meets_the_rules_without_methods(method: str, expected: list[str]) -> None:
    """An invented method escapes no rule, and OPTIONS meets only rules that name it (C72, C137, C149)."""
    made = snapshot(all={}, reads={"methods": "get"}, preflight={"methods": "OPTIONS"})
    assert expected == met(made, "/", method=method)


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        ("", []),
        ("/", []),
        ("/adm", []),
        ("/admin/", ["rule"]),
        ("/admin", ["rule"]),
        ("/Admin/auth/", ["rule"]),
        ("admin:auth_user_changelist", ["rule"]),
        ("/administrators/", []),
    ],
)
def test_the_admin_site_when_a_rule_does_not_name_it_is_exempt(route: str, expected: list[str]) -> None:
    """Blank and wide routes spare the admin; a rule that names it is met."""
    view = "admin:auth_user_changelist"
    assert expected == met(snapshot(rule=route), "/admin/auth/user/", view, admin_root="/admin/")


def test_rules_of_one_group_when_they_match_one_request_leave_one_to_decide() -> None:
    """`browse: any` and `pay: /pay/` share a limit: paying is not judged as browsing too."""
    group = {"group": "shop"}
    made = snapshot(all={}, browse=group, pay=group | {"route": "/pay/", "reserve": 2})
    assert ["all", "browse"] == met(made, "/")
    assert ["all", "pay"] == met(made, "/pay/")


def test_a_rule_of_a_group_when_it_sleeps_leaves_the_next_to_decide() -> None:
    """Before the start and after the end of `pay`, `browse` judges paying: never nobody."""
    group = {"group": "shop"}
    made = snapshot(browse=group, pay=group | {"reserve": 2, "starts_us": 5, "ends_us": 9})
    assert ["browse", "browse", "pay"] == met(made, "/pay/")


def test_rules_when_looked_up_again_are_remembered_for_the_route() -> None:
    """Matching is done once for each route, and a new snapshot begins anew."""
    made = snapshot(order="orders:one")
    route = Route("orders:one", "/orders/1/")
    first = select(made, route, "GET", scope="", scopeless=True)
    again = select(made, Route("orders:one", "/orders/2/"), "GET", scope="", scopeless=True)
    assert first is again


def test_what_is_remembered_when_there_is_much_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody fills a process by asking for many scopes, methods or paths (C141)."""
    monkeypatch.setattr(matching, "MAX_REMEMBERED", 10)
    made = snapshot(all="", api="/api/")
    for number in range(100):
        assert ["all"] == met(made, f"/{number}/", scope=f"scope-{number}")
        assert ["all", "api"] == met(made, f"/api/{number}/", view=f"view-{number}", method=f"M{number}")
    assert len(made.routes) <= 12
