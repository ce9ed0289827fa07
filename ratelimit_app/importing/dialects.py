"""What databases do not write alike: the few statements of an import that differ."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from ratelimit_app.models.fields import exact_collation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import Field

    from ratelimit_app.importing.rows import Row

TABLE = "ratelimit_staged"
RAW = "ratelimit_staged_raw"
GONE = "ratelimit_staged_gone"


class UnsupportedDatabase(Exception):
    """A database that we have no statements for."""


class Dialect:
    """
    How one database writes it. This is SQLite's way; the others say what they write otherwise.

    `fills_in_transaction`: whether the table is to be filled in the transaction that ends the import. Where writers do
    not wait for each other it is: a pool may give each transaction another connection. SQLite has no pools, and one
    writer, whom nobody should have to wait for while a file is read.
    `after`: what comes behind a `kind` and a `value`. `conflict`: what is done where a row is there already.
    `settle`: statements that end the filling.
    """

    fills_in_transaction: ClassVar[bool] = False
    drop: ClassVar[str] = "DROP TABLE IF EXISTS temp.{}"
    delete: ClassVar[str] = "DELETE FROM {0} AS {1}"
    after: ClassVar[str] = "(kind, value) > (%(kind)s, %(value)s)"
    conflict: ClassVar[str] = (
        "ON CONFLICT ({}) DO UPDATE SET reason = excluded.reason, expires_at = excluded.expires_at"
    )
    # The plus keeps SQLite from looking through all that never end, by the index of ends.
    same_end: ClassVar[str] = "+t.expires_at IS s.expires_at"
    settle: ClassVar[tuple[str, ...]] = ()
    analyze: ClassVar[str | None] = None
    stage: ClassVar[str] = (
        f"INSERT INTO {TABLE} (kind, value, reason, expires_at) SELECT json_extract(value, '$[0]'), "  # noqa: S608 - names of our own
        "json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]') "
        "FROM json_each(%s) WHERE true ON CONFLICT (kind, value) "
        "DO UPDATE SET reason = excluded.reason, expires_at = excluded.expires_at "
        f"WHERE {TABLE}.expires_at IS NOT NULL "
        f"AND (excluded.expires_at IS NULL OR excluded.expires_at > {TABLE}.expires_at)"
    )

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection

    def create(self) -> tuple[str, ...]:
        """Write the statements that make the tables."""
        return (
            f"CREATE TEMPORARY TABLE {TABLE} (kind text NOT NULL, value text NOT NULL, reason text NOT NULL, "
            "expires_at text, PRIMARY KEY (kind, value)) WITHOUT ROWID",
            f"CREATE TEMPORARY TABLE {GONE} (kind text, value text, PRIMARY KEY (kind, value)) WITHOUT ROWID",
        )

    def params(self, rows: Sequence[Row]) -> list[Any]:
        """Write rows as the parameters of `stage`."""
        adapt = self._connection.ops.adapt_datetimefield_value
        said = [(*row[:3], row[3] and str(adapt(row[3]))) for row in rows]
        return [json.dumps(said, ensure_ascii=False)]

    def placeholder(self, field: Field[Any, Any]) -> str:
        """Write the place of a value for a field. SQLite takes it as it is, and would cast a date to its year."""
        del field
        return "%s"


class PostgreSQL(Dialect):
    """To sort all rows once costs PostgreSQL half of what an index costs that grows with them."""

    fills_in_transaction = True
    drop = "DROP TABLE IF EXISTS pg_temp.{}"
    same_end = "t.expires_at IS NOT DISTINCT FROM s.expires_at"
    stage = (
        f"INSERT INTO {RAW} (kind, value, reason, expires_at) "  # noqa: S608 - names of our own
        "SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::timestamptz[])"
    )
    settle = (
        f"INSERT INTO {TABLE} SELECT DISTINCT ON (kind, value) kind, value, reason, expires_at FROM {RAW} "  # noqa: S608 - names of our own
        "ORDER BY kind, value, expires_at DESC NULLS FIRST",
        # Nobody else counts a temporary table, and without a count it is joined row by row.
        f"ANALYZE {TABLE}",
    )
    analyze = "ANALYZE {}"

    def create(self) -> tuple[str, ...]:
        """Write the statements that make the tables."""
        columns = "kind text NOT NULL, value text NOT NULL, reason text NOT NULL, expires_at timestamptz"
        return (
            f"CREATE TEMPORARY TABLE {RAW} ({columns})",
            f"CREATE TEMPORARY TABLE {TABLE} ({columns}, PRIMARY KEY (kind, value))",
            f"CREATE TEMPORARY TABLE {GONE} (kind text, value text, PRIMARY KEY (kind, value))",
        )

    def params(self, rows: Sequence[Row]) -> list[Any]:
        """Write rows as the parameters of `stage`: a list for each column."""
        return [list(column) for column in zip(*rows, strict=True)]

    def placeholder(self, field: Field[Any, Any]) -> str:
        """Write the place of a value for a field."""
        return f"CAST(%s AS {field.cast_db_type(self._connection)})"


class MySQL(Dialect):
    """MySQL and MariaDB. They count a row that was written over twice, and commit when told to count a table."""

    fills_in_transaction = True
    drop = "DROP TEMPORARY TABLE IF EXISTS {}"
    delete = "DELETE {1} FROM {0} AS {1}"
    # Pairs are compared row by row there; this is read as two ranges of the index.
    after = "(kind > %(kind)s OR (kind = %(kind)s AND value > %(value)s))"
    conflict = "ON DUPLICATE KEY UPDATE reason = VALUES(reason), expires_at = VALUES(expires_at)"
    same_end = "t.expires_at <=> s.expires_at"
    _LATER = (
        f"{TABLE}.expires_at IS NOT NULL "
        f"AND (VALUES(expires_at) IS NULL OR VALUES(expires_at) > {TABLE}.expires_at)"
    )
    # Reasons first: each assignment sees what those before it have made.
    stage = (
        f"INSERT INTO {TABLE} (kind, value, reason, expires_at) "  # noqa: S608 - names of our own
        "SELECT j.kind, j.value, j.reason, j.expires_at FROM JSON_TABLE(%s, '$[*]' COLUMNS ("
        "kind varchar(80) PATH '$[0]', value varchar(200) PATH '$[1]', reason varchar(500) PATH '$[2]', "
        "expires_at datetime(6) PATH '$[3]')) j ON DUPLICATE KEY UPDATE "
        f"reason = IF({_LATER}, VALUES(reason), {TABLE}.reason), "
        f"expires_at = IF({_LATER}, VALUES(expires_at), {TABLE}.expires_at)"
    )

    def create(self) -> tuple[str, ...]:
        """Write the statements that make the tables."""
        names = "kind varchar(80) NOT NULL, value varchar(200) NOT NULL"
        ending = f"PRIMARY KEY (kind, value)) COLLATE {exact_collation(self._connection)}"
        return (
            f"CREATE TEMPORARY TABLE {TABLE} ({names}, reason varchar(500) NOT NULL, expires_at datetime(6), {ending}",
            f"CREATE TEMPORARY TABLE {GONE} ({names}, {ending}",
        )


DIALECTS: dict[str, type[Dialect]] = {"sqlite": Dialect, "postgresql": PostgreSQL, "mysql": MySQL}


def dialect_of(connection: BaseDatabaseWrapper) -> Dialect:
    """Give how a database writes it. Raises UnsupportedDatabase."""
    kind = DIALECTS.get(connection.vendor)
    if kind is None:
        msg = f"a list cannot be imported into {connection.vendor}: expected {', '.join(sorted(DIALECTS))}"
        raise UnsupportedDatabase(msg)
    return kind(connection)
