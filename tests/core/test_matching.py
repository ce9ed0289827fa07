"""Matching: a request meets rules by where it really goes, not by how its path is spelt."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_app.core import matching
from ratelimit_app.core.matching import Matcher, Route, canonical_path
from ratelimit_app.core.rules import METHODS, Rule, rule_from_dict


def snapshot(**routes: str | dict[str, Any]) -> Matcher:
    """Give the matcher of rules by name; a text is a route."""
    rules = []
    for name, given_ in routes.items():
        row = {"route": given_} if isinstance(given_, str) else given_
        rules.append(rule_from_dict({"name": name, "rate": "5/s", "key": "ip"} | row))
    return Matcher(rules)


def route(path: str, view: str = "", **fields: Any) -> Route:
    """Give the route of a path, as the router makes it."""
    literal = canonical_path(path, dots=False) if "/." in path else ""
    return Route(view, canonical_path(path), literal=literal, **fields)


def met(made: Matcher, path: str, view: str = "", method: str = "GET", **how: Any) -> list[str]:
    """Name the rules that a request meets."""
    scope, scopeless = how.pop("scope", ""), how.pop("scopeless", True)
    found = made.select(made.place(route(path, view, **how)), method, scope=scope, scopeless=scopeless)
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


def test_rules_when_looked_up_again_are_remembered_for_the_place() -> None:
    """Matching is done once for each place: all objects of one route, however many there are (C23)."""
    made = snapshot(order="orders:one", below="/orders/", other="/other/")
    first, again = (made.place(route(f"/orders/{number}/", "orders:one")) for number in (1, 2))
    assert first is again
    rules = [made.select(place, "GET", scope="", scopeless=True) for place in (first, again)]
    assert rules[0] is rules[1]
    assert first is not made.place(route("/other/1/", "orders:one"))


def test_what_is_remembered_when_there_is_much_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody fills a process by asking for many scopes, methods or paths (C141)."""
    monkeypatch.setattr(matching, "MAX_REMEMBERED", 10)
    monkeypatch.setattr(matching, "MAX_ROUTES", 10)
    made = snapshot(all="", api="/api/")
    for number in range(100):
        assert ["all"] == met(made, f"/{number}/", scope=f"scope-{number}")
        assert ["all", "api"] == met(made, f"/api/{number}/", view=f"view-{number}", method=f"M{number}")
    assert 10 >= max(len(made._routes), len(made._places), len(made._found))


def test_methods_when_a_client_invents_them_are_remembered_as_one() -> None:
    """What a client may choose freely is no key of a memory (C140)."""
    made = snapshot(all="", reads={"methods": "GET"})
    for number in range(100):
        assert ["all"] == met(made, "/", method=f"INVENTED{number}")
    assert 1 == len(made._found)


def test_a_place_when_only_the_script_differs_is_one() -> None:
    """A middleware that cuts a client's own words off the path makes no places of them (C140)."""
    made = snapshot(all="", page="/page/")
    places = {
        made.place(route(f"/page/{n}", "page", names=(f"/t{n}/page/{n}",), mount=f"/t{n}")) for n in range(50)
    }
    assert 1 == len(places)


def test_a_path_when_absurdly_long_is_not_remembered() -> None:
    """It meets its rules, and leaves nothing behind."""
    made = snapshot(api="/api/")
    assert ["api"] == met(made, "/api/" + "x" * 10_000)
    assert not made._routes


PATHS = st.text(st.sampled_from("/ab."), max_size=12).map("/".__add__)


def slowly(rules: list[Rule], where: Route, method: str) -> list[str]:
    """Name the rules that meet a route, as the documentation says it: one after the other."""
    paths = {where.path, where.literal or where.path, *where.names}
    found = []
    for rule in rules:
        prefix = canonical_path(rule.route)
        is_below = any(path.startswith(prefix) or path + "/" == prefix for path in paths)
        is_met = is_below if rule.route.startswith("/") else rule.route in ("", where.view_name)
        if is_met and rule.covers_method(method):
            found.append(rule.name)
    return found


@given(
    st.lists(PATHS | st.sampled_from(["", "a:b", "c"]), max_size=30),
    PATHS,
    PATHS,
    st.sampled_from(["", "a:b", "c"]),
    st.sampled_from([*sorted(METHODS), "INVENTED"]),
)
def test_rules_when_found_by_index_are_those_found_one_by_one(
    routes: list[str], path: str, name: str, view: str, method: str
) -> None:
    """However many prefixes lie in each other, none is missed and none is met too many (C144, C145)."""
    rules = [
        rule_from_dict({"name": f"r{n}", "rate": "5/s", "key": "ip", "route": r})
        for n, r in enumerate(routes)
    ]
    made, where = Matcher(rules), route(path, view, names=(canonical_path(name),))
    found = made.select(made.place(where), method, scope="", scopeless=True)
    assert slowly(rules, where, method) == [rule.name for rule in found]


def test_a_path_when_it_may_be_read_in_two_ways_is_no_way_into_a_reserve() -> None:
    """`/shop/../pay/` goes to the shop's catch-all: it does not buy with what is reserved for paying."""
    group = {"group": "sale"}
    made = snapshot(
        browse=group | {"route": "/shop/"}, pay=group | {"route": "/pay/", "reserve": 2}, watch="/pay/"
    )
    assert ["browse", "watch"] == met(made, "/shop/../pay/")
    assert ["pay", "watch"] == met(made, "/pay/") == met(made, "/nowhere/../pay/")


def test_letters_when_a_pattern_without_case_takes_them_for_others_are_folded_alike() -> None:
    """Whatever `(?i)` takes for a letter is that letter to a prefix too: a dotless i opens no way round (C145)."""
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
    for letter in "abcdefghijklmnopqrstuvwxyz":
        alike = re.findall(letter, every, re.IGNORECASE)
        assert {f"/{letter}"} == {canonical_path(f"/{char}") for char in alike}, letter


def test_the_admin_site_when_mounted_below_a_script_is_named_by_both_of_its_paths() -> None:
    """`/admin/` as the URLs write it, `/app/admin/` as the browser shows it."""
    for written, expected in (("/admin/", ["rule"]), ("/app/admin/", ["rule"]), ("/app/", []), ("", [])):
        names = ("/app/admin/auth/user/",)
        made = snapshot(rule=written)
        view = "admin:auth_user_changelist"
        assert expected == met(
            made, "/admin/auth/user/", view, admin_root="/admin/", names=names, mount="/app"
        )


@pytest.mark.usefixtures("_restless")
def test_places_when_threads_find_them_at_once_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share what is remembered, while it is thrown away and made anew (C58)."""
    monkeypatch.setattr(matching, "MAX_REMEMBERED", 5)
    monkeypatch.setattr(matching, "MAX_ROUTES", 5)
    made = snapshot(all="", **{f"r{n}": f"/{n}/" for n in range(50)})

    def find(thread: int) -> list[list[str]]:
        return [met(made, f"/{n % 50}/{thread}/{n}/", view=f"v{n % 7}") for n in range(500)]

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(find, range(8)):
            assert [["all", f"r{n % 50}"] for n in range(500)] == found
