"""One DRF view behind several throttles, for `benchmarks.drf`: a WSGI application on the Redis at BENCH_REDIS_URL."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any
from urllib.parse import urlparse

import django
import redis
from django.conf import settings
from django.urls import path

RATE = "5/s"
URL = os.environ["BENCH_REDIS_URL"]
HEADER = "HTTP_X_FORWARDED_FOR"

settings.configure(
    SECRET_KEY="for the benchmark only",
    ALLOWED_HOSTS=["*"],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": URL}},
    RATELIMIT_APP={
        "STORE_TIMEOUT": 5.0,
        "REFRESH_INTERVAL": 3_600,
        "KEY_PREFIX": "bench",
        "TRUSTED_PROXIES": ["127.0.0.0/8"],
        "HEADERS": None,  # the others write none either
    },
    REST_FRAMEWORK={
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "DEFAULT_PERMISSION_CLASSES": [],
        "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
        "DEFAULT_THROTTLE_RATES": {"anon": RATE},
        "UNAUTHENTICATED_USER": None,
    },
    # Django logs a warning for every 429: that is not what is compared.
    LOGGING={"version": 1, "loggers": {"django.request": {"level": "ERROR"}}},
    INSTALLED_APPS=[],
    MIDDLEWARE=[],
    ROOT_URLCONF=__name__,
    USE_TZ=True,
)
django.setup()

# What follows can only be imported once Django is set up.
from django.core.wsgi import get_wsgi_application  # noqa: E402
from rest_framework.response import Response  # noqa: E402
from rest_framework.throttling import AnonRateThrottle, BaseThrottle  # noqa: E402
from rest_framework.views import APIView  # noqa: E402

from benchmarks.contenders import TEXTBOOK  # noqa: E402
from benchmarks.project import use_rules  # noqa: E402
from ratelimit_app.throttling import RuleThrottle  # noqa: E402

use_rules(
    [
        {"name": "one", "key": "ip", "rate": RATE, "scope": "ours"},
        {"name": "three-ip", "key": "ip", "rate": RATE, "scope": "three"},
        {"name": "three-device", "key": "device", "rate": "100/m", "scope": "three"},
        {"name": "three-session", "key": "header:x-session", "rate": "1000/h", "scope": "three"},
    ],
    frozenset({"ip", "device", "header"}),
)
SHA = str(redis.Redis.from_url(URL).script_load(TEXTBOOK)).encode()


class Floor(BaseThrottle):
    """The least that a throttle can do: one raw EVALSHA on a socket of the thread's own, and nothing else."""

    _local = threading.local()

    def allow_request(self, request: Any, view: Any) -> bool:
        """Take one unit of the textbook script's."""
        stamp = b"%d" % (time.time_ns() // 1_000)
        words = (
            b"EVALSHA", SHA, b"1", b"floor:" + request.META[HEADER].encode(),
            stamp, b"1000000", b"5", stamp + b"-" + os.urandom(4).hex().encode(),
        )  # fmt: skip
        wire = self._socket()
        wire.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words))
        return bool(wire.recv(4_096) == b":1\r\n")

    def _socket(self) -> socket.socket:
        try:
            return self._local.wire  # type: ignore[no-any-return]
        except AttributeError:
            self._local.wire = connected()
            return self._local.wire  # type: ignore[no-any-return]


def connected() -> socket.socket:
    """Connect to the Redis at BENCH_REDIS_URL."""
    parts = urlparse(URL)
    if parts.scheme == "unix":
        wire = socket.socket(socket.AF_UNIX)
        wire.connect(parts.path)
        return wire
    wire = socket.create_connection((parts.hostname, parts.port or 6379))
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return wire


class Hello(APIView):
    """A view that does nothing, so that its throttle is what costs."""

    def get(self, request: Any) -> Response:
        """Say hello."""
        return Response({"hello": "world"})


def behind(scope: str, *throttles: type[BaseThrottle]) -> Any:
    """Give the view behind these throttles."""
    view = type("Hello", (Hello,), {"throttle_classes": throttles, "throttle_scope": scope})
    return view.as_view()  # type: ignore[attr-defined]


urlpatterns = [
    path("none", behind("")),
    path("floor", behind("", Floor)),
    path("drf", behind("", AnonRateThrottle)),
    path("ours", behind("ours", RuleThrottle)),
    path("three", behind("three", RuleThrottle)),
]
application = get_wsgi_application()
