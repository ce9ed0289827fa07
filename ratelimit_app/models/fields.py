"""Fields of text that mean the same on every database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    _CharField = models.CharField[str, str]
    _SlugField = models.SlugField[str, str]
else:
    _CharField, _SlugField = models.CharField, models.SlugField


class ExactCharField(_CharField):
    """
    Text that is equal only where every character is, capitals and blanks at the end included.

    MySQL and MariaDB otherwise compare as people do: `device:A1` would be `device:a1`, and one ban the other's.
    """

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        """Compare by code point on MySQL and MariaDB too, and keep what any database can store."""
        parameters = super().db_parameters(connection)
        collation = exact_collation(connection)
        return parameters | {"collation": collation} if collation else parameters


class ExactSlugField(ExactCharField, _SlugField):
    """A name of letters, digits, underscores and hyphens, of which capitals are others."""


def exact_collation(connection: Any) -> str | None:
    """Name the collation that compares by code point and counts blanks; None where all do."""
    if connection.vendor != "mysql":
        return None
    return "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"
