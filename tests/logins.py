"""Every way to log in that a project may have: pages, the admin's, tokens, basic authentication, code without a request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.contrib import admin
from django.contrib.auth import aauthenticate, authenticate, login
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from rest_framework.authentication import BasicAuthentication
from rest_framework.authtoken.views import obtain_auth_token
from rest_framework.response import Response
from rest_framework.views import APIView

from ratelimit_app import check, refund
from ratelimit_app.decorators import ratelimit

if TYPE_CHECKING:
    from rest_framework.request import Request

tried: list[str] = []


class Recording:
    """A backend that tells which passwords were looked at, and knows nobody."""

    def authenticate(self, request: Any, **credentials: Any) -> None:
        """Note the try."""
        tried.append(str(credentials.get("password")))

    async def aauthenticate(self, request: Any, **credentials: Any) -> None:
        """Note the try."""
        tried.append(str(credentials.get("password")))


def _credentials(request: HttpRequest) -> dict[str, Any]:
    sent = json.loads(request.body)
    return {"username": sent["login"], "password": sent["password"]}


def _said(user: Any) -> HttpResponse:
    return JsonResponse({"in": user is not None}, status=200 if user else 401)


@csrf_exempt
def json_login(request: HttpRequest) -> HttpResponse:
    """A login whose field has a name of its own."""
    return _said(authenticate(request, **_credentials(request)))


@csrf_exempt
def forgetful(request: HttpRequest) -> HttpResponse:
    """A login that does not say for which request it asks."""
    return _said(authenticate(**_credentials(request)))


@csrf_exempt
async def alogin_page(request: HttpRequest) -> HttpResponse:
    """An async login."""
    return _said(await aauthenticate(request, **_credentials(request)))


@csrf_exempt
async def aforgetful(request: HttpRequest) -> HttpResponse:
    """An async login that asks in a thread, and does not say for which request."""
    return _said(await sync_to_async(authenticate)(**_credentials(request)))


@csrf_exempt
def batch(request: HttpRequest) -> HttpResponse:
    """Many tries in one request, as batched APIs allow."""
    names = json.loads(request.body)["passwords"]
    users = [authenticate(request, username="alice", password=password) for password in names]
    return JsonResponse({"in": [user is not None for user in users]})


@csrf_exempt
def twice(request: HttpRequest) -> HttpResponse:
    """A login that tries what was typed as a name, then as an address of mail."""
    sent = _credentials(request)
    user = authenticate(request, **sent) or authenticate(request, **{**sent, "username": "alice"})
    if user is not None:
        login(request, user)
    return _said(user)


@csrf_exempt
def refunding(request: HttpRequest) -> HttpResponse:
    """A login that gives its request back."""
    answer = _said(authenticate(request, **_credentials(request)))
    refund(check(request))
    return answer


@csrf_exempt
@ratelimit(key="ip", rate="100/m")
def decorated(request: HttpRequest) -> HttpResponse:
    """A login under a decorator of its own."""
    return _said(authenticate(request, **_credentials(request)))


@csrf_exempt
@ratelimit(key="ip", rate="100/m", block=False)
def watching(request: HttpRequest) -> HttpResponse:
    """A login that answers by itself."""
    user = authenticate(request, **_credentials(request))
    return JsonResponse({"limited": request.limited}, status=200 if user else 401)  # type: ignore[attr-defined]


class Basic(APIView):
    """An API with basic authentication."""

    authentication_classes = [BasicAuthentication]

    def get(self, request: Request) -> Response:
        """Answer."""
        return Response({"user": str(request.user)})


urlpatterns = [
    path("admin/", admin.site.urls),
    path("accounts/login/", LoginView.as_view(template_name="admin/login.html", next_page="/")),
    path("token/", obtain_auth_token),
    path("basic/", Basic.as_view()),
    path("json/", json_login),
    path("forgetful/", forgetful),
    path("async/", alogin_page),
    path("aforgetful/", aforgetful),
    path("batch/", batch),
    path("twice/", twice),
    path("refunding/", refunding),
    path("decorated/", decorated),
    path("watching/", watching),
]
