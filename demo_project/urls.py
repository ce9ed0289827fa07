"""Addresses of the demo site."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.staticfiles.urls import staticfiles_urlpatterns
from django.urls import include, path

urlpatterns = [
    path("", include("demo_project.shop.urls")),
    path("admin/", admin.site.urls),
    *staticfiles_urlpatterns(),  # Only under DEBUG: a real site's front server hands out its static files.
]
