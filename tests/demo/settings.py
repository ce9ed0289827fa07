"""The tests' settings and the shop: what the type checker reads, so that it knows every model there is."""

from __future__ import annotations

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as TESTED_APPS

INSTALLED_APPS = [*TESTED_APPS, "demo_project.shop"]
