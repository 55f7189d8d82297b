"""A table in PostgreSQL as the target of a sink: rows and progress in one transaction, under the lock of its row."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from tidemark.collections.declarations.sink import DatabaseTable, SinkDeclaration, SinkMode
from tidemark.errors import CommitStateUnknown, InputMissing, Refused, SchemaMismatch, Unreachable
from tidemark.fail_points import fail_point
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.retry import retrying
from tidemark.settings import Settings
from tidemark.sinks import progress as rules
from tidemark.sinks.columns import evolve
from tidemark.sinks.progress import Owner, Progress, SinkColumn
from tidemark.sinks.target import Target
from tidemark.sinks.targets.postgres.columns import check_fit
from tidemark.sinks.targets.postgres.connection import BEGIN, LostConnection, connect, connection_options, translated
from tidemark.sinks.targets.postgres.progress import ProgressTable
from tidemark.sinks.targets.postgres.table import Connection, TargetTable

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

FAIL_POINTS = ("sink.postgres-written", "sink.postgres-committed")
_QUESTIONS = 5  # about the outcome of a commit, to a server that may be starting again


class PostgresTarget(Target):
    """Implements ``Target``."""

    def __init__(self, sink: SinkDeclaration, place: DatabaseTable, options: dict[str, Any]) -> None:
        super().__init__(sink)
        self.title = f"table {place.table!r} of the connection {place.connection!r}"
        self._replaces = place.replaces
        self._place = place
        self._options = options
        self._is_mirror = sink.mode is SinkMode.MIRROR
        self._connection: Connection | None = None
        self._parts: tuple[TargetTable, ProgressTable] | None = None

    @classmethod
    def of(cls, sink: SinkDeclaration, place: DatabaseTable, settings: Settings) -> Self:
        """Return the target; raises ``ConfigurationInvalid`` if the environment lacks its connection."""
        return cls(sink, place, connection_options(place.connection, settings))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()  # which rolls back
            self._connection = None

    def check(self) -> None:
        with translated(self.title):
            self._connected.execute("SELECT")

    def look(self) -> Progress | None:
        with translated(self.title):
            return self._progress.read(self._connected, title=self.title)

    def inspect(self, columns: tuple[SinkColumn, ...]) -> None:
        with translated(self.title):
            connection = self._connected
            actual = self._table.read_columns(connection)
            if actual is not None:
                self._check_table(connection, columns, actual)

    def claim(self, owner: Owner, *, generation: int) -> Progress:
        with translated(self.title), self._transaction(after=None) as connection:
            self._progress.create(connection)
            self._progress.lock(connection)
            found = self._progress.read(connection, title=self.title, locks=True)
            claimed = rules.claim(
                found,
                owner,
                mode=self.sink.mode.value,
                generation=generation,
                replaces=self._replaces,
                where=self.title,
            )
            self._progress.write(connection, claimed)
        return claimed

    def load(self, before: Progress, after: Progress, rows: Iterator[pa.RecordBatch]) -> int:
        with self._writing(before, after) as connection:
            actual = self._table.read_columns(connection)
            if actual is None:
                self._table.create(connection, after.columns)
            else:
                self._check_table(connection, after.columns, actual)
                self._table.clear(connection)
            loaded = self._table.copy_rows(connection, self._names(after), rows)
            if actual is None:
                self._table.add_key(connection)
            self._progress.write(connection, after)
        return loaded

    def mirror(self, before: Progress, after: Progress, deletes: pa.Table, upserts: pa.Table) -> None:
        with self._writing(before, after) as connection:
            kept = self._evolve(connection, before, after)
            self._table.replace(connection, kept, deletes=deletes, upserts=upserts)
            self._progress.write(connection, replace(after, columns=(*after.columns, *kept)))

    def append(self, before: Progress, after: Progress, updates: Iterator[pa.RecordBatch]) -> None:
        with self._writing(before, after) as connection:
            kept = self._evolve(connection, before, after)
            self._table.copy_rows(connection, self._names(after), updates)
            self._progress.write(connection, replace(after, columns=(*after.columns, *kept)))

    def forget(self, owner: Owner) -> None:
        with translated(self.title), self._transaction(after=None) as connection:
            found = self._progress.read(connection, title=self.title, locks=True)
            if found is not None and found.owner == owner:
                self._progress.delete(connection)

    def _evolve(self, connection: Connection, before: Progress, after: Progress) -> tuple[SinkColumn, ...]:
        """Give the table the columns of the rows; return those that it has besides."""
        if (actual := self._table.read_columns(connection)) is None:
            raise self._vanished()
        evolution = evolve(before.columns, after.columns, actual, title=self.title)
        self._table.alter(connection, evolution)
        return evolution.kept

    def _check_table(self, connection: Connection, columns: tuple[SinkColumn, ...], actual: dict[str, str]) -> None:
        check_fit(columns, actual, with_times=not self._is_mirror, title=self.title)
        self._table.check_key(connection)
        if not self._replaces and not self._table.is_empty(connection):
            raise Refused(
                f"{self.title} has rows already, which this sink did not write",
                hint="declare `existing: replace` in `to`, which deletes them with the first load, or another table",
            )

    def _names(self, progress: Progress) -> list[str]:
        return [*(column.name for column in progress.columns), *(() if self._is_mirror else (TIME, DIFF))]

    def _vanished(self) -> SchemaMismatch:
        return SchemaMismatch(
            f"{self.title} is gone, and its progress is still there: somebody dropped it",
            hint="restore it, or drop the sink and declare it again, which loads all rows anew",
        )

    @contextmanager
    def _writing(self, before: Progress, after: Progress) -> Iterator[Connection]:
        with translated(self.title), self._transaction(after=after) as connection:
            present = self._progress.read(connection, title=self.title, locks=True)
            rules.check_epoch(present, before, where=self.title)
            yield connection
            fail_point("sink.postgres-written")
        fail_point("sink.postgres-committed")

    @contextmanager
    def _transaction(self, *, after: Progress | None) -> Iterator[Connection]:
        """Yield the connection in a transaction; ``after`` is the progress by which a lost commit is found again."""
        connection = self._connected
        connection.execute(BEGIN)
        try:
            yield connection
        except BaseException:
            self.close()  # whatever state it is in: this rolls back
            raise
        try:
            with translated(self.title):
                connection.execute("COMMIT")
        except LostConnection as error:
            self.close()
            if after is None or not self._has_landed(after):
                raise
            log.info("the connection broke during the commit to %s, which landed: %s", self.title, error)

    def _has_landed(self, after: Progress) -> bool:
        """Ask the target on a new connection, and wait there for the old transaction, which holds the row's lock."""
        ask = retrying(
            Unreachable,
            attempts=_QUESTIONS,
            what=f"the question whether the commit to {self.title} landed",
            first_pause_s=0.5,
            longest_pause_s=2.0,
            give_up=lambda error: CommitStateUnknown(
                f"{self.title} went away during a commit, which may have landed: {error}",
                hint="the next run asks the target: nothing is written twice, or left out",
            ),
        )
        found: Progress | None = ask(self._look_locked)
        if found is None:
            return False
        return replace(found, columns=found.columns[: len(after.columns)]) == after

    def _look_locked(self) -> Progress | None:
        with translated(self.title), self._transaction(after=None) as connection:
            return self._progress.read(connection, title=self.title, locks=True)

    @property
    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._options, title=self.title, sink=self.sink.name)
        return self._connection

    @property
    def _table(self) -> TargetTable:
        return self._resolved[0]

    @property
    def _progress(self) -> ProgressTable:
        return self._resolved[1]

    @property
    def _resolved(self) -> tuple[TargetTable, ProgressTable]:
        """The tables with their schema, for which a name without one has to be asked."""
        if self._parts is None:
            schema, _, name = self._place.table.rpartition(".")
            schema = self._find_schema(schema)
            key = self.sink.key_columns if self._is_mirror else ()
            self._parts = TargetTable(schema, name, key=key, title=self.title), ProgressTable(schema, name)
        return self._parts

    def _find_schema(self, schema: str) -> str:
        query = "SELECT nspname FROM pg_namespace WHERE nspname = coalesce(nullif(%s, ''), current_schema())"
        found = self._connected.execute(query, [schema]).fetchone()
        if found is None:
            raise InputMissing(f"there is no schema {schema!r} for {self.title}", hint="make it: CREATE SCHEMA …")
        return str(found[0])
