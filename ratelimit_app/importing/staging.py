"""A temporary table of what a list says, and the few statements that bring it into the real one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections

from ratelimit_app.models import Origin

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from django.db.backends.base.base import BaseDatabaseWrapper

    from ratelimit_app.models import Entry

BATCH = 5_000
TABLE = "ratelimit_staged"
RAW = "ratelimit_staged_raw"
GONE = "ratelimit_staged_gone"
VENDORS = ("postgresql", "sqlite")
STAGED = ("kind", "value", "reason", "expires_at")

_LATER = f"{TABLE}.expires_at IS NOT NULL AND (excluded.expires_at IS NULL OR excluded.expires_at > {TABLE}.expires_at)"
_STAGE = {
    "postgresql": (
        f"INSERT INTO {RAW} (kind, value, reason, expires_at) "  # noqa: S608 - names of our own
        "SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::timestamptz[])"
    ),
    "sqlite": (
        f"INSERT INTO {TABLE} (kind, value, reason, expires_at) SELECT json_extract(value, '$[0]'), "  # noqa: S608 - names of our own
        "json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]') "
        "FROM json_each(%s) WHERE true ON CONFLICT (kind, value) "
        f"DO UPDATE SET reason = excluded.reason, expires_at = excluded.expires_at WHERE {_LATER}"
    ),
}
# To sort all rows once costs PostgreSQL half of what an index costs that grows with them.
_SETTLE = (
    f"INSERT INTO {TABLE} SELECT DISTINCT ON (kind, value) kind, value, reason, expires_at FROM {RAW} "  # noqa: S608 - names of our own
    "ORDER BY kind, value, expires_at DESC NULLS FIRST"
)


class UnsupportedDatabase(Exception):
    """A database that we have no statements for."""


class Row(NamedTuple):
    """An entry to be: who in the one form that rows have, why, until when; None: for ever."""

    kind: str
    value: str
    reason: str
    expires_at: datetime | None


class Staging:
    """
    The rows of a list, one for each identity, in a temporary table of this connection.

    Of several rows for one identity the one that holds longest counts. All statements work on whole tables: what an
    entry costs does not grow with their number.
    """

    def __init__(self, model: type[Entry], alias: str) -> None:
        self._connection: BaseDatabaseWrapper = connections[alias]
        self._model = model
        if self._connection.vendor not in VENDORS:
            msg = f"a list cannot be imported into {self._connection.vendor}: expected {' or '.join(VENDORS)}"
            raise UnsupportedDatabase(msg)
        self._is_postgres = self._connection.vendor == "postgresql"
        self._target = self._connection.ops.quote_name(model._meta.db_table)  # noqa: SLF001 - public, in spite of its name

    @property
    def fills_in_transaction(self) -> bool:
        """
        Whether the table is to be filled in the transaction that ends the import.

        Where writers do not wait for each other it is: a pool may give each transaction another connection. SQLite
        has no pools, and one writer, whom nobody should have to wait for while a file is read.
        """
        return self._is_postgres

    def create(self) -> None:
        """Make the table, empty."""
        self.drop()
        moment = "timestamptz" if self._is_postgres else "text"
        columns = f"kind text NOT NULL, value text NOT NULL, reason text NOT NULL, expires_at {moment}"
        ending = "" if self._is_postgres else "WITHOUT ROWID"
        if self._is_postgres:
            self._run(f"CREATE TEMPORARY TABLE {RAW} ({columns})")
        self._run(f"CREATE TEMPORARY TABLE {TABLE} ({columns}, PRIMARY KEY (kind, value)) {ending}")
        self._run(
            f"CREATE TEMPORARY TABLE {GONE} (kind text, value text, PRIMARY KEY (kind, value)) {ending}"
        )

    def drop(self) -> None:
        """Remove the tables."""
        for table in (TABLE, RAW, GONE):
            self._run(f"DROP TABLE IF EXISTS {'pg_temp' if self._is_postgres else 'temp'}.{table}")

    def add(self, rows: Sequence[Row]) -> None:
        """Add some rows."""
        known: dict[tuple[str, str], Row] = {}
        for row in rows:
            before = known.get(row[:2])
            if before is None or _is_later(row, before):
                known[row[:2]] = row
        chosen = list(known.values())
        if self._is_postgres:
            params: list[Any] = [list(column) for column in zip(*chosen, strict=True)]
        else:
            adapt = self._connection.ops.adapt_datetimefield_value
            params = [json.dumps([(*row[:3], row[3] and str(adapt(row[3]))) for row in chosen])]
        self._run(_STAGE[self._connection.vendor], params)

    def count(self) -> int:
        """Count the identities, once all rows are there."""
        if self._is_postgres:
            self._run(_SETTLE)
            # Nobody else counts a temporary table, and without a count it is joined row by row.
            self._run(f"ANALYZE {TABLE}")
        return int(self._one(f"SELECT count(*) FROM {TABLE}")[0])  # noqa: S608 - names of our own

    def compare(self) -> tuple[int, int]:
        """Count the identities that have an imported entry already, and those whose entry would not change."""
        found = self._one(
            f"SELECT count(*), count(CASE WHEN {self._same()} THEN 1 END) FROM {TABLE} s "  # noqa: S608
            f"JOIN {self._target} t ON {self._joined()}"
        )
        return int(found[0]), int(found[1])

    def count_missing(self) -> int:
        """Count the imported entries that the list does not name."""
        return int(self._one(f"SELECT count(*) FROM {self._target} t WHERE {self._missing()}")[0])  # noqa: S608

    def remove_missing(self) -> int:
        """Delete the imported entries that the list does not name."""
        self._run(f"INSERT INTO {GONE} SELECT kind, value FROM {self._target} t WHERE {self._missing()}")  # noqa: S608
        return self._run(f"DELETE FROM {self._target} AS t WHERE {self._missing()}")  # noqa: S608

    def leave_unchanged(self) -> None:
        """Take out of the table what the database says already."""
        self._run(
            f"DELETE FROM {TABLE} AS s WHERE EXISTS "  # noqa: S608 - names of our own
            f"(SELECT 1 FROM {self._target} t WHERE {self._joined()} AND {self._same()})"
        )

    def merge(self) -> int:
        """
        Make or change the imported entries of all identities, and give how many that were.

        They come in order, so that two imports at once wait for each other and not crosswise.
        """
        columns, values, params = self._columns()
        # The blacklist's index is of some sources only, and is meant only where that is said again.
        partial = "WHERE source IN ('manual', 'imported')" if hasattr(self._model, "level") else ""
        return self._run(
            f"INSERT INTO {self._target} ({columns}) SELECT {values} FROM {TABLE} WHERE true ORDER BY kind, value "  # noqa: S608
            f"ON CONFLICT (kind, value, source) {partial} "
            "DO UPDATE SET reason = excluded.reason, expires_at = excluded.expires_at",
            params,
        )

    def count_anew(self) -> None:
        """Have the database know how large its table is now: until it does, it reads all rows to find one."""
        if self._is_postgres:
            self._run(f"ANALYZE {self._target}")

    def changed(self) -> Iterator[list[str]]:
        """Give the identities that the import has changed, some at a time."""
        for table in (GONE, TABLE):
            last = ("", "")
            statement = (
                f"SELECT kind, value FROM {table} WHERE (kind, value) > (%s, %s) "  # noqa: S608
                f"ORDER BY kind, value LIMIT {BATCH}"
            )
            while rows := self._all(statement, last):
                last = rows[-1]
                yield [f"{kind}:{value}" for kind, value in rows]

    def _columns(self) -> tuple[str, str, list[Any]]:
        """Give the columns of the real table, and what goes into each: a column of ours, or the field's default."""
        names, values, params = [], [], []
        for field in self._model._meta.concrete_fields:  # noqa: SLF001 - public, in spite of its name
            if field.primary_key:
                continue
            names.append(self._connection.ops.quote_name(str(field.column)))
            if field.name in STAGED:
                values.append(field.name)
                continue
            default = Origin.IMPORTED.value if field.name == "source" else field.get_default()
            # SQLite takes a value as it is, and would cast a date to its year.
            values.append(
                f"CAST(%s AS {field.cast_db_type(self._connection)})" if self._is_postgres else "%s"
            )
            params.append(field.get_db_prep_save(default, self._connection))
        return ", ".join(names), ", ".join(values), params

    @staticmethod
    def _joined() -> str:
        return "t.kind = s.kind AND t.value = s.value AND t.source = 'imported'"

    def _same(self) -> str:
        # The plus keeps SQLite from looking through all that never end, by the index of ends.
        end = "t.expires_at IS NOT DISTINCT FROM" if self._is_postgres else "+t.expires_at IS"
        return f"t.reason = s.reason AND {end} s.expires_at"

    @staticmethod
    def _missing() -> str:
        staged = f"SELECT 1 FROM {TABLE} s WHERE s.kind = t.kind AND s.value = t.value"  # noqa: S608
        return f"t.source = 'imported' AND NOT EXISTS ({staged})"

    def _run(self, statement: str, params: Sequence[Any] = ()) -> int:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, params or None)
            return int(cursor.rowcount)

    def _one(self, statement: str) -> Any:
        return self._all(statement)[0]

    def _all(self, statement: str, params: Sequence[Any] = ()) -> list[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, params or None)
            return list(cursor.fetchall())


def _is_later(row: Row, other: Row) -> bool:
    return other.expires_at is not None and (row.expires_at is None or row.expires_at > other.expires_at)
