"""Views of the tests' project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.http import HttpRequest, HttpResponse
from rest_framework.response import Response
from rest_framework.views import APIView

if TYPE_CHECKING:
    from rest_framework.request import Request


def plain(request: HttpRequest, number: int = 0) -> HttpResponse:
    """A page."""
    return HttpResponse(f"plain {number}")


async def aplain(request: HttpRequest) -> HttpResponse:
    """An async page."""
    return HttpResponse("aplain")


def public(request: HttpRequest) -> HttpResponse:
    """A page that shared caches keep."""
    return HttpResponse("public", headers={"Cache-Control": "public, max-age=60"})


class Api(APIView):
    """An API without a scope."""

    def get(self, request: Request) -> Response:
        """Answer."""
        return Response({"user": str(request.user)})

    def post(self, request: Request) -> Response:
        """Answer a write."""
        return Response({"user": str(request.user)}, status=201)


class ScopedApi(Api):
    """An API with a scope of rules."""

    throttle_scope = "scoped"
