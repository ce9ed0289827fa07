"""A temporary table of what a list says, and the few statements that bring it into the real one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections

from ratelimit_app.importing.dialects import GONE, RAW, TABLE, dialect_of
from ratelimit_app.models import Origin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

    from ratelimit_app.importing.rows import Row
    from ratelimit_app.models import Entry

BATCH = 5_000
STAGED = ("kind", "value", "reason", "expires_at")


class Staging:
    """
    The rows of a list, one for each identity, in a temporary table of this connection.

    Of several rows for one identity the one that holds longest counts. All statements work on whole tables: what an
    entry costs does not grow with their number.
    """

    def __init__(self, model: type[Entry], alias: str) -> None:
        self._connection: BaseDatabaseWrapper = connections[alias]
        self._model = model
        self._dialect = dialect_of(self._connection)
        self._target = self._connection.ops.quote_name(model._meta.db_table)  # noqa: SLF001 - public, in spite of its name

    @property
    def fills_in_transaction(self) -> bool:
        """Whether the table is to be filled in the transaction that ends the import."""
        return self._dialect.fills_in_transaction

    def create(self) -> None:
        """Make the table, empty."""
        self.drop()
        for statement in self._dialect.create():
            self._run(statement)

    def drop(self) -> None:
        """Remove the tables."""
        for table in (TABLE, RAW, GONE):
            self._run(self._dialect.drop.format(table))

    def add(self, rows: Sequence[Row]) -> None:
        """Add some rows."""
        known: dict[tuple[str, str], Row] = {}
        for row in rows:
            before = known.get(row[:2])
            if before is None or row.is_later(before):
                known[row[:2]] = row
        self._run(self._dialect.stage, self._dialect.params(list(known.values())))

    def count(self) -> int:
        """Count the identities, once all rows are there."""
        for statement in self._dialect.settle:
            self._run(statement)
        return self._staged()

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
        return self._run(f"{self._dialect.delete.format(self._target, 't')} WHERE {self._missing()}")

    def leave_unchanged(self) -> None:
        """Take out of the table what the database says already."""
        self._run(
            f"{self._dialect.delete.format(TABLE, 's')} WHERE EXISTS "  # noqa: S608 - names of our own
            f"(SELECT 1 FROM {self._target} t WHERE {self._joined()} AND {self._same()})"
        )

    def merge(self) -> int:
        """
        Make or change the imported entries of all identities, and give how many that were.

        They come in order, so that two imports at once wait for each other and not crosswise.
        """
        columns, values, params = self._columns()
        count = self._staged()
        unique = "kind, value, source" + (", holder" if hasattr(self._model, "holder") else "")
        self._run(
            f"INSERT INTO {self._target} ({columns}) SELECT {values} FROM {TABLE} WHERE true ORDER BY kind, value "  # noqa: S608
            + self._dialect.conflict.format(unique),
            params,
        )
        return count

    def count_anew(self) -> None:
        """Have the database know how large its table is now: until it does, it reads all rows to find one."""
        if self._dialect.analyze:
            self._run(self._dialect.analyze.format(self._target))

    def changed(self) -> Iterator[list[str]]:
        """Give the identities that the import has changed, some at a time."""
        for table in (GONE, TABLE):
            last = {"kind": "", "value": ""}
            statement = (
                f"SELECT kind, value FROM {table} WHERE {self._dialect.after} "  # noqa: S608
                f"ORDER BY kind, value LIMIT {BATCH}"
            )
            while rows := self._all(statement, last):
                last = dict(zip(last, rows[-1], strict=True))
                yield [f"{kind}:{value}" for kind, value in rows]

    def _columns(self) -> tuple[str, str, list[Any]]:
        """Give the columns of the real table, and what goes into each: a column of ours, or the field's default."""
        names, values, params = [], [], []
        for field in self._model._meta.concrete_fields:  # noqa: SLF001 - public, in spite of its name
            if field.primary_key or field.generated:
                continue
            names.append(self._connection.ops.quote_name(str(field.column)))
            if field.name in STAGED:
                values.append(field.name)
                continue
            default = Origin.IMPORTED.value if field.name == "source" else field.get_default()
            values.append(self._dialect.placeholder(field))
            params.append(field.get_db_prep_save(default, self._connection))
        return ", ".join(names), ", ".join(values), params

    @staticmethod
    def _joined() -> str:
        return "t.kind = s.kind AND t.value = s.value AND t.source = 'imported'"

    def _same(self) -> str:
        return f"t.reason = s.reason AND {self._dialect.same_end}"

    @staticmethod
    def _missing() -> str:
        staged = f"SELECT 1 FROM {TABLE} s WHERE s.kind = t.kind AND s.value = t.value"  # noqa: S608
        return f"t.source = 'imported' AND NOT EXISTS ({staged})"

    def _staged(self) -> int:
        return int(self._one(f"SELECT count(*) FROM {TABLE}")[0])  # noqa: S608 - names of our own

    def _run(self, statement: str, params: Sequence[Any] = ()) -> int:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, params or None)
            return int(cursor.rowcount)

    def _one(self, statement: str) -> Any:
        return self._all(statement)[0]

    def _all(self, statement: str, params: Mapping[str, Any] | None = None) -> list[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, params or None)
            return list(cursor.fetchall())
