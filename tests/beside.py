"""How a process beside the tests finds their server and their databases."""

from __future__ import annotations

import json
import os

import django
from django.conf import settings

NAMES = "RATELIMIT_TEST_NAMES"


def child_environment() -> dict[str, str]:
    """Give the environment in which another process uses the server and the databases of this test run."""
    from django.db import connections

    names = {alias: str(connections[alias].settings_dict["NAME"]) for alias in connections}
    own = {"DJANGO_SETTINGS_MODULE": "tests.settings", "RATELIMIT_TEST_DATA": str(settings.DATA)}
    return {**os.environ, **own, NAMES: json.dumps(names)}


def is_child() -> bool:
    """Whether this process was started with that environment."""
    return NAMES in os.environ


def set_up() -> None:
    """Start Django on the databases that the tests have made."""
    for alias, name in json.loads(os.environ[NAMES]).items():
        settings.DATABASES[alias]["NAME"] = name
    django.setup()
