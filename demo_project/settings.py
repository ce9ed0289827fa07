"""
Settings of the demo site.

What a site adds for `ratelimit_app` stands under "Rate limiting"; the rest is an ordinary Django project.
The environment may say DATABASE_URL, REDIS_URL, DEBUG, SECRET_KEY, ALLOWED_HOSTS and DEMO_DIR.
"""

from __future__ import annotations

import os
from pathlib import Path

import dj_database_url

from ratelimit_app.schedule import BEAT_SCHEDULE

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = Path(os.environ.get("DEMO_DIR", BASE_DIR / ".demo")).resolve()

DEBUG = os.environ.get("DEBUG", "1") == "1"
SECRET_KEY = os.environ.get("SECRET_KEY", "for the demo only: whoever reads the source knows it")
ALLOWED_HOSTS = os.environ.get("ALLOWED_HOSTS", "127.0.0.1,localhost,[::1]").split(",")

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
    "demo_project.shop",
]

MIDDLEWARE = [
    "demo_project.rehearsal.witness.charges_header",  # For the demo's report; no site needs it.
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "ratelimit_app.middleware.RateLimitMiddleware",
]

ROOT_URLCONF = "demo_project.urls"
WSGI_APPLICATION = "demo_project.wsgi.application"
STATIC_URL = "static/"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# Database: SQLite serves several processes when readers do not wait for the writer (WAL) and a transaction takes
# the write lock where it begins (IMMEDIATE): one that upgrades halfway fails at once, whatever the timeout says.
DATABASES = {"default": dj_database_url.config(default=f"sqlite:///{DATA_DIR}/shop.sqlite3", conn_max_age=60)}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    DATA_DIR.mkdir(parents=True, exist_ok=True)
    DATABASES["default"]["OPTIONS"] = {
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
    }

# Redis: one server for the limiter, the page's counts and Celery. Without REDIS_URL, `manage.py demo` starts one.
REDIS_URL = os.environ.get("REDIS_URL") or f"unix://{DATA_DIR}/valkey.sock?db=0"
DEMO_PREFIX = os.environ.get("DEMO_PREFIX", "demo")

CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": REDIS_URL,
        "OPTIONS": {"SOCKET_CONNECT_TIMEOUT": 0.5, "SOCKET_TIMEOUT": 0.5},
    },
}

# Rate limiting
RATELIMIT_APP = {
    "KEY_PREFIX": DEMO_PREFIX,
    # The demo's clients reach the server through loopback and stand behind it as behind a balancer.
    "TRUSTED_PROXIES": ["127.0.0.1", "::1"],
    # Seconds. The demo's server, crowds and Redis share the cores of one machine: waits that a site never sees.
    "STORE_TIMEOUT": 1.0,
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.TokenAuthentication"],
    "DEFAULT_THROTTLE_CLASSES": ["ratelimit_app.throttling.RuleThrottle"],
}

# Celery has its own name for a unix socket.
CELERY_BROKER_URL = REDIS_URL.replace("unix://", "redis+socket://").replace("?db=", "?virtual_host=")
CELERY_BROKER_TRANSPORT_OPTIONS = {"global_keyprefix": f"{DEMO_PREFIX}-celery:"}
CELERY_TASK_IGNORE_RESULT = True
# A sale is over in minutes: repeat offenders are looked for every other second, the rest as the app schedules it.
CELERY_BEAT_SCHEDULE = {
    name: {**entry, "schedule": 2.0} if entry["task"].endswith("promote_repeat_offenders") else entry
    for name, entry in BEAT_SCHEDULE.items()
}
