"""The Celery application of the site that is put through chaos."""

from __future__ import annotations

from celery import Celery

app = Celery("chaos")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["ratelimit_app"])
