"""Routing: a request's route is what the router resolves, before the view is called and on 404s."""

from __future__ import annotations

import pytest
from django.contrib import admin
from django.test import RequestFactory, override_settings
from django.urls import include, path
from django.utils import translation

from ratelimit_app import routing
from ratelimit_app.core.matching import Route
from ratelimit_app.routing import route_of
from tests import views

urlpatterns = [
    path("staff/", admin.site.urls),
    path("tenant/<slug:tenant>/admin/", (admin.site.urls[0], "admin", "tenant-admin")),
    path("shop/", include(([path("pay/", views.plain, name="pay")], "shop"), namespace="eu")),
]


def route(url: str, **attributes: object) -> Route:
    """Give the route of a GET."""
    request = RequestFactory().get(url)
    for name, value in attributes.items():
        setattr(request, name, value)
    return route_of(request)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/plain/", Route("plain", "/plain/")),
        ("/coupons/grab/", Route("coupons:grab", "/coupons/grab/")),
        ("/coupons/1/", Route("coupons:one", "/coupons/1/")),
        ("/coupons/2/", Route("coupons:one", "/coupons/2/")),
        ("/api/", Route("api", "/api/", is_drf=True)),
        ("/nothing/here", Route("", "/nothing/here")),
        ("/PLAIN/", Route("", "/plain/")),
        ("/admin/", Route("admin:index", "/admin/", admin_root="/admin/")),
        ("/admin/auth/user/", Route("admin:auth_user_changelist", "/admin/auth/user/", admin_root="/admin/")),
    ],
)
def test_a_route_when_resolved_names_the_view_and_the_path(url: str, expected: Route) -> None:
    """The view's name with its namespaces, the canonical path, and what kind of view it is (C23)."""
    assert expected == route(url)


@pytest.mark.parametrize("url", ["/login", "/login/", "/%6Cogin", "/%6cogin/", "/login?x=1", "/login/?x=2#y"])
def test_a_route_when_spelt_differently_is_the_view_it_reaches(url: str) -> None:
    """Slashes, percent-encoding and query strings lead to the same view, and so to the same rules (C144, C145, C147)."""
    found = route(url)
    assert "login" == found.view_name
    assert "/login" == found.path.rstrip("/")


@override_settings(ROOT_URLCONF="tests.test_routing")
def test_the_admin_site_when_it_lives_elsewhere_is_found() -> None:
    """Its root is where the project put it."""
    assert "/staff/" == route("/staff/auth/user/").admin_root


@override_settings(ROOT_URLCONF="tests.test_routing")
def test_the_admin_site_when_its_root_has_arguments_still_has_one() -> None:
    """A root that cannot be reversed without arguments is written as its pattern."""
    found = route("/tenant/acme/admin/auth/user/")
    assert found.view_name.startswith("tenant-admin:")
    assert found.admin_root


@override_settings(ROOT_URLCONF="tests.test_routing")
def test_a_namespace_when_given_by_include_is_part_of_the_name() -> None:
    """The name is what `reverse` takes."""
    assert "eu:pay" == route("/shop/pay/").view_name


def test_a_request_when_it_has_a_urlconf_is_resolved_by_it() -> None:
    """Middleware that sets `request.urlconf` decides, as in Django."""
    assert "" == route("/staff/").view_name
    assert "admin:index" == route("/staff/", urlconf="tests.test_routing").view_name


def test_a_route_when_the_urlconf_changes_is_not_an_old_one() -> None:
    """What is remembered belongs to one urlconf and one language."""
    assert "plain" == route("/plain/").view_name
    with override_settings(ROOT_URLCONF="tests.test_routing"):
        assert "" == route("/plain/").view_name
    with translation.override("de"):
        assert "plain" == route("/plain/").view_name


@pytest.mark.parametrize(
    "url", ["/\x00", "/%00", "/%ff%fe", "/" + "x" * 10_000, "/\ud800".encode("utf-8", "replace").decode()]
)
def test_a_path_when_hostile_has_a_route(url: str) -> None:
    """No bytes in a path become an error of ours."""
    assert "" == route(url).view_name


def test_a_path_when_it_is_absurdly_long_is_not_remembered() -> None:
    """Paths that only an attacker writes fill no memory."""
    before = routing._route.cache_info().currsize
    for number in range(20):
        assert "" == routing.route_of(RequestFactory().get("/" + "x" * 600 + str(number))).view_name
    assert before == routing._route.cache_info().currsize
