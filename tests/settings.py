"""The smallest Django project that the tests need; Valkey is started by conftest.py on this project's socket."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import dj_database_url

DATA = Path(
    os.environ.get("RATELIMIT_TEST_DATA") or Path(tempfile.gettempdir()) / f"ratelimit-tests-{os.getpid()}"
)
VALKEY_SOCKET = DATA / "valkey.sock"

SECRET_KEY = "for the tests only"
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "tests.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "rest_framework",
    "rest_framework.authtoken",
    "ratelimit_app",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "ratelimit_app.middleware.RateLimitMiddleware",
]
STATIC_URL = "/static/"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]


def _sqlite(name: str) -> dict[str, object]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATA / f"{name}.sqlite3",
        "TEST": {"NAME": DATA / f"{name}-test.sqlite3"},
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
        },
    }


DATABASE = os.environ.get("TEST_DATABASE_URL")
DATABASES = {
    "default": dj_database_url.parse(DATABASE) if DATABASE else _sqlite("default"),
    "other": _sqlite("other"),
}
if DATABASES["default"]["ENGINE"] == "django.db.backends.mysql":
    DATABASES["default"]["TEST"] = {"CHARSET": "utf8mb4"}  # a server may be set up for Latin letters only
CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": os.environ.get("TEST_REDIS_URL", f"unix://{VALKEY_SOCKET}?db=0"),
    }
}
RATELIMIT_APP = {"STORE_TIMEOUT": 2.0, "TRUSTED_PROXIES": ["10.0.0.0/8"]}
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.TokenAuthentication"],
    "DEFAULT_THROTTLE_CLASSES": ["ratelimit_app.throttling.RuleThrottle"],
    "DEFAULT_THROTTLE_RATES": {"anon": "3/m", "user": "3/m"},
}
