from __future__ import annotations

from django.urls import path

from demo_project.shop.views import GrabView, PayView, SaleView, catalogue, sale_json

urlpatterns = [
    path("", SaleView.as_view(), name="sale"),
    path("sale.json", sale_json, name="sale-json"),
    path("catalogue.json", catalogue, name="catalogue"),
    path("api/coupons/<slug:slug>/grab/", GrabView.as_view(), name="grab"),
    path("api/coupons/<slug:slug>/pay/", PayView.as_view(), name="pay"),
]
