"""The app's wiring."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.signals import setting_changed


class RatelimitAppConfig(AppConfig):
    """Connect signals and register checks; nothing else happens at start-up."""

    name = "ratelimit_app"
    verbose_name = "Rate limiting"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from ratelimit_app import backends, checks, conf, local_cache, publishing, receivers, snapshot_cache
        from ratelimit_app.store import gateway

        setting_changed.connect(conf.on_setting_changed, dispatch_uid="ratelimit_app.conf")
        setting_changed.connect(gateway.on_setting_changed, dispatch_uid="ratelimit_app.gateway")
        setting_changed.connect(local_cache.on_setting_changed, dispatch_uid="ratelimit_app.local_cache")
        checks.connect()
        snapshot_cache.restorer.on_missing = publishing.publish_missing
        snapshot_cache.restorer.on_return = publishing.publish_missed
        snapshot_cache.when_forgotten(local_cache.forget)
        receivers.connect()
        backends.connect()
