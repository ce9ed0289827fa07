"""URLs of the tests' project."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path, re_path

from tests import views

coupons = (
    [path("grab/", views.plain, name="grab"), path("<int:number>/", views.plain, name="one")],
    "coupons",
)

urlpatterns = [
    path("admin/", admin.site.urls),
    path("plain/", views.plain, name="plain"),
    path("aplain/", views.aplain, name="aplain"),
    path("public/", views.public, name="public"),
    re_path(r"^login/?$", views.plain, name="login"),
    path("coupons/", include(coupons)),
    path("api/", views.Api.as_view(), name="api"),
    path("api/scoped/", views.ScopedApi.as_view(), name="api-scoped"),
]
