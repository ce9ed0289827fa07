"""The row that orders publishers."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q

from ratelimit_app.querysets import PublicationManager


class Publication(models.Model):
    """
    The one row that orders publishers: locked while one of them reads the database and writes Redis.

    `aliases`: databases, other than the router's, to which rows were ever written.
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    epoch = models.UUIDField(default=uuid.uuid4, editable=False)
    counter = models.BigIntegerField(default=0)
    networks_counter = models.BigIntegerField(default=0)
    aliases = models.JSONField(default=list)

    objects = PublicationManager()

    class Meta:
        constraints = (models.CheckConstraint(condition=Q(id=1), name="ratelimit_publication_single"),)

    def __str__(self) -> str:
        return f"{self.epoch.hex}:{self.counter}"
