from __future__ import annotations

from django.apps import AppConfig

from demo_project.shop import tally
from ratelimit_app.signals import request_denied


class ShopConfig(AppConfig):
    """Count what the limiter turns away, for the page that shows the sale."""

    name = "demo_project.shop"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        request_denied.connect(tally.count_denied)
