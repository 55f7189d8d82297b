"""The statements on one target table: what it has, how it is made and evolves, and how rows get in and out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from tidemark.catalog.stash.postgres import read_ahead
from tidemark.errors import SchemaMismatch
from tidemark.sinks.columns import Evolution
from tidemark.sinks.progress import SinkColumn
from tidemark.sinks.targets.postgres.columns import CHANGE_TYPES, postgres_type
from tidemark.sinks.targets.postgres.copying import copy_statement, copy_text

if TYPE_CHECKING:
    import pyarrow as pa

Connection = psycopg.Connection[tuple[Any, ...]]

_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE = """
SELECT array_agg(a.attname::text) FROM pg_index i
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indimmediate AND i.indisvalid
    AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid
"""
_SORT_MEMORY = "SET LOCAL maintenance_work_mem = '256MB'"
_UPSERTS, _DELETES = "tidemark_upserts", "tidemark_deletes"


class TargetTable:
    """One table; every method is a part of the transaction that the caller has begun on the connection."""

    def __init__(self, schema: str, name: str, *, key: Sequence[str], title: str) -> None:
        self.title = title
        self.place = schema, name
        self._name = sql.Identifier(schema, name)
        self._key = tuple(key)  # empty: no row replaces another

    def read_columns(self, connection: Connection) -> dict[str, str] | None:
        """Return the types by column, as PostgreSQL spells them; None if there is no such table."""
        text = self._name.as_string(connection)
        found = connection.execute("SELECT to_regclass(%s)", [text]).fetchone()
        if found is None or found[0] is None:
            return None
        return dict(connection.execute(_COLUMNS, [text]).fetchall())

    def check_key(self, connection: Connection) -> None:
        """Raise ``SchemaMismatch`` if the table does not keep the key unique, without which no row is replaced."""
        if not self._key:
            return
        indexes = [set(row[0]) for row in connection.execute(_UNIQUE, [self._name.as_string(connection)])]
        if set(self._key) not in indexes:
            listed = ", ".join(self._key)
            raise SchemaMismatch(
                f"{self.title} has no primary key, and no unique index, on ({listed}) by which rows are replaced; a "
                "deferrable one replaces none",
                hint=f"add one: ALTER TABLE … ADD PRIMARY KEY ({listed})",
            )

    def is_empty(self, connection: Connection) -> bool:
        query = sql.SQL("SELECT NOT EXISTS (SELECT FROM {})").format(self._name)
        return bool(connection.execute(query).fetchone() == (True,))

    def create(self, connection: Connection, columns: Sequence[SinkColumn], *, with_times: bool) -> None:
        types = [(column.name, postgres_type(column.type)) for column in columns]
        types += CHANGE_TYPES.items() if with_times else []
        defined = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_)) for name, type_ in types
        )
        connection.execute(sql.SQL("CREATE TABLE {} ({})").format(self._name, defined))

    def add_key(self, connection: Connection) -> None:
        """Make the key the primary key, which is faster once the rows are there than row by row."""
        if self._key:
            connection.execute(_SORT_MEMORY)
            statement = sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})")
            connection.execute(statement.format(self._name, self._names(self._key)))

    def alter(self, connection: Connection, evolution: Evolution) -> None:
        """Rename through names that nobody has, so that two columns can swap theirs; then add and widen."""
        rename = sql.SQL("ALTER TABLE {} RENAME COLUMN {} TO {}")
        passing = [(old, f"tidemark renames {number}", new) for number, (old, new) in enumerate(evolution.renamed)]
        for old, between, _ in passing:
            connection.execute(rename.format(self._name, sql.Identifier(old), sql.Identifier(between)))
        for _, between, new in passing:
            connection.execute(rename.format(self._name, sql.Identifier(between), sql.Identifier(new)))
        for column in evolution.added:
            self._alter(connection, "ADD COLUMN {} {}", column)
        for column in evolution.widened:
            self._alter(connection, "ALTER COLUMN {} TYPE {}", column)

    def clear(self, connection: Connection) -> None:
        """Delete all rows; readers see them until the commit, which a TRUNCATE would not allow."""
        connection.execute(sql.SQL("DELETE FROM {}").format(self._name))

    def insert(self, connection: Connection, columns: Sequence[str], other: sql.Identifier) -> None:
        """Insert the rows of another table, which has ``columns``."""
        listed = self._names(columns)
        connection.execute(sql.SQL("INSERT INTO {0} ({1}) SELECT {1} FROM {2}").format(self._name, listed, other))

    def copy_rows(self, connection: Connection, columns: Sequence[str], batches: Iterable[pa.RecordBatch]) -> int:
        """Copy the batches, which have ``columns``; return the number of rows. A thread makes the next text."""
        return _copy(connection, self._name, columns, batches)

    def replace(
        self, connection: Connection, kept: Sequence[SinkColumn], *, deletes: pa.Table, upserts: pa.Table
    ) -> None:
        """Delete and upsert rows by key; columns that are ``kept`` get NULL."""
        if deletes.num_rows:
            table = self._copy_aside(connection, _DELETES, deletes)
            same = sql.SQL(" AND ").join(
                sql.SQL("target.{0} = gone.{0}").format(sql.Identifier(name)) for name in self._key
            )
            statement = sql.SQL("DELETE FROM {} AS target USING {} AS gone WHERE {}")
            connection.execute(statement.format(self._name, table, same))
        if upserts.num_rows:
            table = self._copy_aside(connection, _UPSERTS, upserts)
            names = upserts.column_names
            others = [name for name in names if name not in self._key]
            assigned = [sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in others]
            assigned += [sql.SQL("{} = NULL").format(sql.Identifier(column.name)) for column in kept]
            action = sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(assigned)) if assigned else sql.SQL("NOTHING")
            statement = sql.SQL("INSERT INTO {0} ({1}) SELECT {1} FROM {2} ON CONFLICT ({3}) DO {4}")
            listed = self._names(names)
            connection.execute(statement.format(self._name, listed, table, self._names(self._key), action))

    def _copy_aside(self, connection: Connection, name: str, rows: pa.Table) -> sql.Identifier:
        table = sql.Identifier("pg_temp", name)
        create = sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA")
        connection.execute(create.format(sql.Identifier(name), self._names(rows.column_names), self._name))
        _copy(connection, table, rows.column_names, rows.to_batches())
        connection.execute(sql.SQL("ANALYZE {}").format(table))  # or the planner takes it for a table of any size
        return table

    def _alter(self, connection: Connection, action: str, column: SinkColumn) -> None:
        changed = sql.SQL(action).format(sql.Identifier(column.name), sql.SQL(postgres_type(column.type)))
        connection.execute(sql.SQL("ALTER TABLE {} {}").format(self._name, changed))

    @staticmethod
    def _names(names: Sequence[str]) -> sql.Composed:
        return sql.SQL(", ").join(map(sql.Identifier, names))


def _copy(
    connection: Connection, table: sql.Composable, columns: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> int:
    copied = 0

    def texts() -> Iterable[pa.Buffer]:
        nonlocal copied
        for batch in batches:
            if batch.num_rows:
                copied += batch.num_rows
                yield copy_text(batch)

    with connection.cursor() as cursor, cursor.copy(copy_statement(table, columns)) as copy:
        for text in read_ahead(iter(texts())):
            copy.write(memoryview(text))
    return copied
