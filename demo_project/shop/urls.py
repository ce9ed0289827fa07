from __future__ import annotations

from django.urls import path

from demo_project.shop.views import GrabView, SaleView, sale_json

urlpatterns = [
    path("", SaleView.as_view(), name="sale"),
    path("sale.json", sale_json, name="sale-json"),
    path("api/coupons/<slug:slug>/grab/", GrabView.as_view(), name="grab"),
]
