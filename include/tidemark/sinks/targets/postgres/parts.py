"""The loading table of a first load that many processes copy into; nobody reads the table before the commit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import pyarrow as pa
from psycopg import errors, sql

from tidemark.errors import StaleState
from tidemark.sinks.progress import SinkColumn
from tidemark.sinks.target import PartedLoad, PartWriter
from tidemark.sinks.targets.batches import project
from tidemark.sinks.targets.postgres.connection import BEGIN, connect, translated
from tidemark.sinks.targets.postgres.table import Connection, TargetTable

_BATCH_ROWS = 65_536
_LISTED = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND starts_with(c.relname, %s) AND c.relkind = 'r'
"""


@dataclass(frozen=True, slots=True)
class LoadingTable:
    """The table of one epoch, and the list of the parts in it; its rows have no key before the commit.

    The list makes a part come once: whoever copies a part a second time finds its number there, and copies nothing.
    """

    schema: str
    target: str
    epoch: int
    title: str

    @property
    def name(self) -> str:
        return f"{_prefix(self.target)}{self.epoch}"

    @property
    def rows(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def parts(self) -> sql.Identifier:
        return sql.Identifier(self.schema, f"{self.name}_parts")

    def create(self, connection: Connection, columns: Sequence[SinkColumn], *, with_times: bool) -> None:
        """Make both tables in the transaction under way."""
        table = TargetTable(self.schema, self.name, key=(), title=self.title)
        table.create(connection, columns, with_times=with_times)
        connection.execute(sql.SQL("CREATE TABLE {} (part int PRIMARY KEY, rows bigint)").format(self.parts))

    def rename(self, connection: Connection) -> None:
        """Let the loading table be the target."""
        statement = sql.SQL("ALTER TABLE {} RENAME TO {}")
        connection.execute(statement.format(self.rows, sql.Identifier(self.target)))

    def drop(self, connection: Connection) -> None:
        """Remove what is there of both tables."""
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}, {}").format(self.rows, self.parts))


def list_loading_tables(connection: Connection, schema: str, target: str, *, title: str) -> list[LoadingTable]:
    """Return the loading tables that are there for a target."""
    prefix = _prefix(target)
    names = [name for (name,) in connection.execute(_LISTED, [schema, prefix])]
    matches = (re.fullmatch(r"(\d+)(?:_parts)?", name.removeprefix(prefix)) for name in names)
    epochs = sorted({int(match[1]) for match in matches if match})
    return [LoadingTable(schema, target, epoch, title) for epoch in epochs]


def _prefix(target: str) -> str:
    """Return how names begin that are short enough for PostgreSQL, whatever the target is called."""
    return f"tidemark_load_{blake2b(target.encode(), digest_size=6).hexdigest()}_"


@dataclass(frozen=True, slots=True)
class PostgresPartWriter(PartWriter):
    """Copies parts, each in one transaction on a connection of its own; ``options`` have the login."""

    options: dict[str, Any] = field(repr=False)
    sink: str
    table: LoadingTable
    columns: pa.Schema

    def write(self, number: int, rows: Iterator[pa.Table]) -> int:
        """Return the number of rows; those of the first try that committed, if this is another one."""
        title, table = self.table.title, self.table
        with translated(title), closing(connect(self.options, title=title, sink=self.sink)) as connection:
            connection.execute(BEGIN)
            try:
                if not self._note(connection, number):
                    return self._count(connection, number)
            except errors.UndefinedTable as error:
                raise StaleState(
                    f"another run of sink {self.sink!r} took over the load", hint="run it again"
                ) from error
            batches = (
                batch for piece in rows for batch in project(piece, self.columns).to_batches(max_chunksize=_BATCH_ROWS)
            )
            target = TargetTable(table.schema, table.name, key=(), title=title)
            count = target.copy_rows(connection, self.columns.names, batches)
            counted = sql.SQL("UPDATE {} SET rows = %s WHERE part = %s").format(table.parts)
            connection.execute(counted, [count, number])
            connection.execute("COMMIT")
        return count

    def _note(self, connection: Connection, number: int) -> bool:
        """Take the part for this transaction, or wait for another one that has; return whether nobody has copied it."""
        statement = sql.SQL("INSERT INTO {} (part) VALUES (%s) ON CONFLICT DO NOTHING").format(self.table.parts)
        return connection.execute(statement, [number]).rowcount == 1

    def _count(self, connection: Connection, number: int) -> int:
        query = sql.SQL("SELECT rows FROM {} WHERE part = %s").format(self.table.parts)
        found = connection.execute(query, [number]).fetchone()
        return 0 if found is None else int(found[0])


class PostgresLoad(PartedLoad):
    """Implements ``PartedLoad``."""

    def __init__(self, writer: PostgresPartWriter, *, commit: Callable[[], None], discard: Callable[[], None]) -> None:
        self.writer, self._commit, self._discard = writer, commit, discard

    def commit(self, parts: Sequence[int]) -> int:
        self._commit()
        return sum(parts)

    def discard(self) -> None:
        self._discard()
