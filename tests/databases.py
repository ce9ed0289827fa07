"""What the databases of the tests do not do alike."""

from __future__ import annotations

from typing import Any

from django.db import connections


def upsert(unique: str, update: str, alias: str = "default") -> dict[str, Any]:
    """Give what tells `bulk_create` to write over rows; MySQL and MariaDB take no names of what is unique."""
    takes_names = connections[alias].features.supports_update_conflicts_with_target
    named = {"unique_fields": [unique]} if takes_names else {}
    return {"update_conflicts": True, "update_fields": [update], **named}
