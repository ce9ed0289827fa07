"""
The shop's pages, each behind a door of `ratelimit_app`.

The middleware applies the lists and the rules without a scope to all of them; what is said here comes on top.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from django.db.models import Sum
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.generic import TemplateView
from rest_framework import serializers, status
from rest_framework.exceptions import Throttled
from rest_framework.permissions import IsAuthenticated
from rest_framework.response import Response
from rest_framework.views import APIView

from demo_project.shop import tally
from demo_project.shop.models import AlreadyGrabbed, Coupon, SoldOut
from ratelimit_app import check
from ratelimit_app.decorators import ratelimit
from ratelimit_app.models import BlacklistEntry

if TYPE_CHECKING:
    from rest_framework.request import Request


class Order(serializers.Serializer[Any]):
    """What a client may ask for."""

    quantity = serializers.IntegerField(min_value=1, max_value=3, default=1)


class GrabView(APIView):
    """Hand coupons to a user, behind the rules of the scope `grab`: RuleThrottle applies them before `post`."""

    permission_classes = [IsAuthenticated]
    throttle_scope = "grab"

    def post(self, request: Request, slug: str) -> Response:
        coupon = get_object_or_404(Coupon, slug=slug)
        order = Order(data=request.data)
        order.is_valid(raise_exception=True)
        quantity = order.validated_data["quantity"]
        # The throttle has charged 1: an order for several coupons costs as many.
        decision = check(request, scope=self.throttle_scope, cost=quantity)
        if not decision.allowed:
            raise Throttled(wait=decision.retry_after)
        tally.count("admitted")
        # When each rule let this order through: microseconds of the Redis server's clock.
        decided_at = {result.rule: result.at for result in decision.results}
        receipt = {"coupon": slug, "quantity": quantity, "decided_at": decided_at}
        try:
            coupon.grab(cast("int", request.user.pk), quantity)  # IsAuthenticated: there is one.
        except (AlreadyGrabbed, SoldOut) as refusal:
            return Response({**receipt, "detail": type(refusal).__name__}, status=status.HTTP_409_CONFLICT)
        return Response(receipt, status=status.HTTP_201_CREATED)


class PayView(APIView):
    """Pay for a coupon, behind the rule `pay`, which keeps a part of what it shares with `browse` for itself."""

    permission_classes = [IsAuthenticated]

    def post(self, request: Request, slug: str) -> Response:
        coupon = get_object_or_404(Coupon, slug=slug)
        return Response({"coupon": coupon.slug, "paid_by": request.user.get_username()})


def catalogue(request: HttpRequest) -> JsonResponse:
    """Show what there is, behind the rule `browse`."""
    return JsonResponse({"coupons": list(Coupon.objects.order_by("pk").values("slug", "title"))})


class SaleView(TemplateView):
    """The page that shows the sale live."""

    template_name = "shop/sale.html"


@ratelimit(group="sale-feed", key="ip", rate="10/s")
def sale_json(request: HttpRequest) -> JsonResponse:
    """Tell the page how the sale goes: a limit of its own, in code, keeps eager pages from asking too often."""
    coupons = Coupon.objects.annotate(grabbed=Sum("grabs__quantity", default=0)).order_by("pk")
    banned = BlacklistEntry.objects.active().filter(source="promoted")[:50]
    return JsonResponse(
        {
            "coupons": list(coupons.values("slug", "title", "stock", "grabbed")),
            "seconds": tally.recent(60),
            "banned": [
                {"identity": entry.identity, "reason": entry.reason, "until": entry.expires_at}
                for entry in banned
            ],
        }
    )
