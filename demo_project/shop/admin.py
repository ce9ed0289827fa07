from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin

from demo_project.shop.models import Coupon, Grab

if TYPE_CHECKING:
    CouponAdminBase = admin.ModelAdmin[Coupon]
    GrabAdminBase = admin.ModelAdmin[Grab]
else:
    CouponAdminBase = GrabAdminBase = admin.ModelAdmin


@admin.register(Coupon)
class CouponAdmin(CouponAdminBase):
    """Refill the stock while the sale runs."""

    list_display = ["slug", "title", "stock"]
    list_editable = ["stock"]


@admin.register(Grab)
class GrabAdmin(GrabAdminBase):
    """See who has had what."""

    list_display = ["coupon", "user", "quantity", "created_at"]
    list_filter = ["coupon"]
    list_select_related = ["coupon", "user"]
    raw_id_fields = ["coupon", "user"]
