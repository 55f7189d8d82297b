"""A table in PostgreSQL as the target of a sink: rows and progress in one transaction, under the lock of its row."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from tidemark.collections.declarations.sink import DatabaseTable, SinkDeclaration, SinkMode
from tidemark.errors import (
    CommitStateUnknown,
    InputMissing,
    NotPossible,
    Refused,
    SchemaMismatch,
    StaleState,
    Unreachable,
)
from tidemark.fail_points import fail_point
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.retry import retrying
from tidemark.settings import Settings
from tidemark.sinks import progress as rules
from tidemark.sinks.columns import evolve
from tidemark.sinks.progress import Owner, Progress, SinkColumn
from tidemark.sinks.target import Extent, PartedTarget
from tidemark.sinks.targets.batches import in_time
from tidemark.sinks.targets.files.columns import file_schema
from tidemark.sinks.targets.postgres.columns import check_fit, check_names, holds
from tidemark.sinks.targets.postgres.connection import (
    BEGIN,
    LostConnection,
    application_name,
    connect,
    connection_options,
    translated,
)
from tidemark.sinks.targets.postgres.frozen_copies import end_sessions, list_waiting
from tidemark.sinks.targets.postgres.parts import LoadingTable, PostgresLoad, PostgresPartWriter, list_loading_tables
from tidemark.sinks.targets.postgres.progress import ProgressTable
from tidemark.sinks.targets.postgres.table import Connection, TargetTable

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

FAIL_POINTS = ("sink.postgres-written", "sink.postgres-committed")
_FROZEN_WAITS = 3  # of 20 s each, for a lock: then a run that sent nothing meanwhile is ended
_QUESTIONS = 5  # about the outcome of a commit, to a server that may be starting again


class PostgresTarget(PartedTarget):
    """Implements ``PartedTarget``."""

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
        in_time(self.title, self._ask)

    def _ask(self) -> None:
        with translated(self.title):
            self._connected.execute("SELECT")

    def look(self) -> Progress | None:
        with translated(self.title):
            return self._progress.read(self._connected, title=self.title)

    def inspect(self, columns: tuple[SinkColumn, ...]) -> None:
        check_names(columns, with_times=not self._is_mirror, title=self.title)
        with translated(self.title):
            connection = self._connected
            actual = self._table.read_columns(connection)
            if actual is not None:
                self._check_table(connection, columns, actual)

    def claim(self, owner: Owner, *, generation: int) -> Progress:
        """Also end an older run that has the row locked, and has sent nothing in all the time that this one waited."""
        frozen = self._list_waiting()
        for _ in range(_FROZEN_WAITS):
            try:
                return self._claim(owner, generation)
            except StaleState:
                frozen &= self._list_waiting()
                if not frozen:
                    raise
        log.warning("%s was locked by a run that stands still: its session is ended", self.title)
        with translated(self.title):
            end_sessions(self._connected, frozen)
        return self._claim(owner, generation)

    def _list_waiting(self) -> set[tuple[int, int]]:
        with translated(self.title):
            return list_waiting(self._connected, application_name(self.sink.name))

    def _claim(self, owner: Owner, generation: int) -> Progress:
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
        self._drop_loading_tables(below=claimed.epoch)
        return claimed

    def load(self, before: Progress, after: Progress, rows: Iterator[pa.RecordBatch]) -> int:
        with self._writing(before, after) as connection:
            kept = self._make_room(connection, before, after)
            if kept is None:
                self._table.create(connection, after.columns, with_times=not self._is_mirror)
            loaded = self._table.copy_rows(connection, self._names(after), rows)
            if kept is None:
                self._table.add_key(connection)
            self._progress.write(connection, replace(after, columns=(*after.columns, *(kept or ()))))
        return loaded

    def _make_room(self, connection: Connection, before: Progress, after: Progress) -> tuple[SinkColumn, ...] | None:
        """Delete all rows, and let the table take those of a load; return the columns that it has besides.

        None: there is no table yet.
        """
        if before.time is None:
            if (actual := self._table.read_columns(connection)) is None:
                return None
            self._check_table(connection, after.columns, actual)
            kept: tuple[SinkColumn, ...] = ()
        else:
            kept = self._evolve(connection, before, after)
            self._table.check_key(connection)
        self._table.clear(connection)
        return kept

    def begin_load(self, before: Progress, after: Progress, extent: Extent) -> PostgresLoad:  # noqa: ARG002 - any extent
        schema, name = self._table.place
        with_times = not self._is_mirror
        loading = LoadingTable(schema, name, before.epoch, self.title)
        with self._claimed(before, after=None) as connection:
            actual = self._table.read_columns(connection)
            if before.time is None and actual is not None:
                self._check_table(connection, after.columns, actual)
            loading.drop(connection)
            loading.create(connection, after.columns, with_times=with_times)
        self.close()  # the parts may take an hour, in which a connection without traffic is lost

        def commit() -> None:
            with self._writing(before, after) as connection:
                kept = self._take_over(connection, loading, before, after)
                self._progress.write(connection, replace(after, columns=(*after.columns, *kept)))

        arrow = file_schema(after.columns, with_times=with_times)
        writer = PostgresPartWriter(self._options, self.sink.name, loading, arrow)
        return PostgresLoad(writer, commit=commit, discard=lambda: self._drop_loading_tables(below=before.epoch + 1))

    def _take_over(
        self, connection: Connection, loading: LoadingTable, before: Progress, after: Progress
    ) -> tuple[SinkColumn, ...]:
        """Let the target have the rows of the loading table, which becomes the target where there is none.

        Return the columns that the target has besides.
        """
        kept = self._make_room(connection, before, after)
        if kept is None:
            loading.rename(connection)
            self._table.add_key(connection)
        else:
            self._table.insert(connection, self._names(after), loading.rows)
        loading.drop(connection)
        return kept or ()

    def _drop_loading_tables(self, *, below: int) -> None:
        """Remove what loads of epochs ``below`` left; what a process still copies into waits for a later run."""
        schema, name = self._table.place
        with translated(self.title):
            for loading in list_loading_tables(self._connected, schema, name, title=self.title):
                if loading.epoch < below:
                    try:
                        with translated(self.title), self._transaction(after=None) as connection:
                            connection.execute("SET LOCAL lock_timeout = '2s'")
                            loading.drop(connection)
                    except (StaleState, NotPossible) as error:
                        log.warning("a later run removes %s: %s", loading.name, error)

    def mirror(self, before: Progress, after: Progress, deletes: pa.Table, upserts: pa.Table) -> None:
        with self._writing(before, after) as connection:
            kept = self._evolve(connection, before, after)
            self._table.check_key(connection)
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
        if found is not None and found.owner == owner:
            self._drop_loading_tables(below=found.epoch + 1)

    def _evolve(self, connection: Connection, before: Progress, after: Progress) -> tuple[SinkColumn, ...]:
        """Give the table the columns of the rows; return those that it has besides."""
        if (actual := self._table.read_columns(connection)) is None:
            raise self._vanished()
        check_names(after.columns, with_times=not self._is_mirror, title=self.title)
        evolution = evolve(before.columns, after.columns, actual, holds=holds, title=self.title)
        self._table.alter(connection, evolution)
        return evolution.kept

    def _check_table(self, connection: Connection, columns: tuple[SinkColumn, ...], actual: dict[str, str]) -> None:
        check_fit(columns, actual, with_times=not self._is_mirror, title=self.title)
        self._table.check_key(connection)
        if not self._replaces and not self._table.is_empty(connection):
            raise Refused(
                f"{self.title} has rows already, which somebody else, or a dropped sink, wrote",
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
    def _claimed(self, before: Progress, *, after: Progress | None) -> Iterator[Connection]:
        """Yield the connection in a transaction in which no other run may claim the target; as ``_transaction``."""
        with translated(self.title), self._transaction(after=after) as connection:
            present = self._progress.read(connection, title=self.title, locks=True)
            rules.check_epoch(present, before, where=self.title)
            yield connection

    @contextmanager
    def _writing(self, before: Progress, after: Progress) -> Iterator[Connection]:
        with self._claimed(before, after=after) as connection:
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
