"""The site that is put through chaos: the tests' project on a database, a Redis and a broker of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ratelimit_app.schedule import BEAT_SCHEDULE
from tests import settings as _tests
from tests.chaos.ground import BUDGET, COOLDOWN
from tests.settings import *  # noqa: F403 - the same project

DIRECTORY = Path(os.environ["CHAOS_DIR"])

SECRET_KEY = "for the chaos only"
ROOT_URLCONF = "tests.chaos.site"
MIDDLEWARE = ["tests.chaos.site.telling", *_tests.MIDDLEWARE]
DATABASES = {"default": _tests._sqlite("chaos")}
DATABASES["default"]["NAME"] = str(DIRECTORY / "chaos.sqlite3")
_alias = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["CHAOS_REDIS_URL"]}
CACHES = {"default": _alias | json.loads(os.environ.get("CHAOS_ALIAS", "{}"))}
RATELIMIT_APP = {
    "TRUSTED_PROXIES": ["127.0.0.1"],
    "STORE_TIMEOUT": float(os.environ.get("CHAOS_BUDGET", BUDGET)),
    "BREAKER_COOLDOWN": COOLDOWN,
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(process)d %(name)s %(levelname)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "loggers": {"ratelimit_app": {"handlers": ["console"], "level": "INFO"}},
}

CELERY_BROKER_URL = os.environ.get("CHAOS_BROKER_URL", "memory://")
CELERY_TASK_IGNORE_RESULT = True
CELERY_BEAT_SCHEDULE = {
    name: {**entry, "schedule": 2.0} if entry["task"].endswith("promote_repeat_offenders") else entry
    for name, entry in BEAT_SCHEDULE.items()
}
