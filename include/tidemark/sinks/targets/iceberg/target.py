"""An Iceberg table as the target of a sink: rows and progress in one commit, which any engine reads as it is."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import pyarrow as pa
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.update import RemovePropertiesUpdate, SetPropertiesUpdate

from tidemark.collections.declarations.sink import IcebergTable, SinkDeclaration, SinkMode
from tidemark.errors import CommitStateUnknown, ConfigurationInvalid, Refused, StaleState, TidemarkError, Unreachable
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.branch_commit import delete_files
from tidemark.iceberg.files.data_files import arrow_schema, write_rows
from tidemark.iceberg.files.stored_rows import StoredRows
from tidemark.retry import retrying
from tidemark.settings import Settings
from tidemark.sinks import progress as rules
from tidemark.sinks.progress import Owner, Progress, SinkColumn
from tidemark.sinks.target import Extent, PartedTarget
from tidemark.sinks.targets.batches import as_table, gather, in_time, project
from tidemark.sinks.targets.iceberg.catalogs import LOST, answering, check_name, open_target_catalog
from tidemark.sinks.targets.iceberg.columns import check_fit, evolve_table, table_columns, target_schema
from tidemark.sinks.targets.iceberg.commit import (
    COMMIT_ID,
    PROGRESS,
    Change,
    check_table,
    fencing,
    has_landed,
    parse_progress,
    prepare,
    progress_property,
)
from tidemark.sinks.targets.iceberg.parts import IcebergLoad
from tidemark.sinks.targets.keys import Keys, UniqueKeys

log = logging.getLogger(__name__)

FAIL_POINTS = ("sink.iceberg-written", "sink.iceberg-committed")
_ATTEMPTS = 8
_QUESTIONS = 5  # about the outcome of a commit, to a catalog that may be starting again
_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
}


class IcebergTarget(PartedTarget):
    """Implements ``PartedTarget``."""

    def __init__(self, sink: SinkDeclaration, place: IcebergTable, settings: Settings) -> None:
        super().__init__(sink)
        self.title = f"Iceberg table {place.table!r} of the catalog {place.catalog!r}"
        self._place = place
        self._settings = settings
        self._identifier = tuple(place.table.split("."))
        self._is_mirror = sink.mode is SinkMode.MIRROR
        self._key = sink.key_columns if self._is_mirror else ()
        self._opened: Catalog | None = None

    @classmethod
    def of(cls, sink: SinkDeclaration, place: IcebergTable, settings: Settings) -> Self:
        """Return the target; raises ``ConfigurationInvalid`` if the environment lacks its catalog."""
        check_name(place.catalog, place.table, settings)
        return cls(sink, place, settings)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def check(self) -> None:
        in_time(self.title, self._load)

    def look(self) -> Progress | None:
        table = self._load()
        return None if table is None else parse_progress(table, where=self.title)

    def inspect(self, columns: tuple[SinkColumn, ...]) -> None:
        if (table := self._load()) is not None:
            self._check_table(table, columns)

    def claim(self, owner: Owner, *, generation: int) -> Progress:
        """Raise the epoch in the table's properties; without a table, the first load makes one, and only one does."""
        ask = retrying(CommitFailedException, attempts=_ATTEMPTS, what=f"the claim of {self.title}")
        with answering(self.title):
            claimed: Progress = ask(self._claim, owner, generation)
        return claimed

    def _claim(self, owner: Owner, generation: int) -> Progress:
        table = self._load()
        progress = rules.claim(
            None if table is None else parse_progress(table, where=self.title),
            owner,
            mode=self.sink.mode.value,
            generation=generation,
            replaces=self._place.replaces,
            where=self.title,
        )
        if table is not None:
            updates = (SetPropertiesUpdate(updates=progress_property(progress)),)
            self._catalog.commit_table(table, fencing(table), updates)  # type: ignore[arg-type]  # ours are validated too
        return progress

    def load(self, before: Progress, after: Progress, rows: Iterator[pa.RecordBatch]) -> int:
        base, change = self._begin(before, after)
        unique = UniqueKeys(self._key, where=self.title)
        with self._writing(change):
            for piece in gather(map(as_table, rows)):
                if self._is_mirror:
                    unique.add(piece)
                change.added += self._write(change.evolved, piece)
            if self._is_mirror:
                unique.check(_read_keys(change.evolved, change.added, self._key))
            self._commit(base, change, before)
        return sum(file.record_count for file in change.added)

    def begin_load(self, before: Progress, after: Progress, extent: Extent) -> IcebergLoad:  # noqa: ARG002 - any extent
        base, change = self._begin(before, after)

        def commit(files: tuple[DataFile, ...]) -> Table:
            change.added = files
            self._commit(base, change, before)
            table = self._load()
            return base if table is None else table

        return IcebergLoad(change.evolved, epoch=before.epoch, title=self.title, commit=commit)

    def mirror(self, before: Progress, after: Progress, deletes: pa.Table, upserts: pa.Table) -> None:
        table, change = self._evolve(before, after)
        touched = pa.concat_tables([deletes.select(self._key), upserts.select(self._key)])
        with self._writing(change):
            change.added = self._write(change.evolved, upserts)
            if touched.num_rows:
                change.keys, change.key = Keys(touched, self._key), self._key
            self._commit(table, change, before)

    def append(self, before: Progress, after: Progress, updates: Iterator[pa.RecordBatch]) -> None:
        table, change = self._evolve(before, after)
        with self._writing(change):
            for piece in gather(map(as_table, updates)):
                change.added += self._write(change.evolved, piece)
            self._commit(table, change, before)

    def forget(self, owner: Owner) -> None:
        table = self._load()
        found = None if table is None else parse_progress(table, where=self.title)
        if table is None or found is None or found.owner != owner:
            return
        try:
            with answering(self.title):
                removals = RemovePropertiesUpdate(
                    removals=[name for name in (PROGRESS, COMMIT_ID) if name in table.properties]
                )
                self._catalog.commit_table(table, fencing(table), (removals,))  # type: ignore[arg-type]  # as above
        except CommitFailedException as error:
            raise StaleState(f"somebody else changed {self.title} meanwhile", hint="try again") from error

    def describe(self) -> dict[str, Any]:
        table = self._load()
        snapshot = None if table is None else table.current_snapshot()
        return {} if snapshot is None else {"snapshot_id": snapshot.snapshot_id}

    # -- the table -------------------------------------------------------------------------------------------------

    @property
    def _catalog(self) -> Catalog:
        # No `cached_property`: up to Python 3.11 one lock serves all instances, and a catalog may never answer.
        if self._opened is None:
            self._opened = self._open_catalog()
        return self._opened

    def _open_catalog(self) -> Catalog:
        with answering(self.title):
            catalog = open_target_catalog(self._place.catalog, self._settings)
        if len(self._identifier) > 2 and isinstance(catalog, MetastoreCatalog):  # noqa: PLR2004 - namespace and name
            raise ConfigurationInvalid(
                f"{self.title}: this catalog has no namespaces inside others", hint="name the table NAMESPACE.TABLE"
            )
        return catalog

    def _load(self) -> Table | None:
        with answering(self.title):
            try:
                return self._catalog.load_table(self._identifier)
            except NoSuchTableError:
                return None

    def _present(self, before: Progress) -> Table | None:
        """Return the table as another run has left it alone; raise ``Fenced`` if one has not.

        None: there is no table, and the first load makes one.
        """
        table = self._load()
        if table is None and before.time is None:
            return None
        found = None if table is None else parse_progress(table, where=self.title)
        rules.check_epoch(found, before, where=self.title)
        return table

    def _check_table(self, table: Table, columns: tuple[SinkColumn, ...]) -> None:
        """Check that a first load may write to a table that is there."""
        check_table(table, title=self.title)
        check_fit(table_columns(columns, with_times=not self._is_mirror), table, title=self.title)
        snapshot = table.current_snapshot()
        if snapshot is None or self._place.replaces:
            return
        with answering(self.title):
            stored = StoredRows.in_snapshot(table, snapshot)
        if any(stored.live(file) for file in stored.files):
            raise Refused(
                f"{self.title} has rows already, which somebody else, or a dropped sink, wrote",
                hint="declare `existing: replace` in `to`, which deletes them with the first load, or another table",
            )

    def _begin(self, before: Progress, after: Progress) -> tuple[Table, Change]:
        """Return the table for a load, and the change that takes the place of what is there."""
        if before.time is not None:
            evolving, change = self._evolve(before, after)
            change.replaces_all = True
            return evolving, change
        table = self._present(before)
        if table is None:
            return self._new_table(after)
        self._check_table(table, after.columns)
        change = self._change(table, table, after)
        change.replaces_all = True
        return table, change

    def _new_table(self, after: Progress) -> tuple[Table, Change]:
        """Return a table that the commit of the first rows makes, so that nobody sees it without them."""
        with answering(self.title):
            self._catalog.create_namespace_if_not_exists(self._identifier[:-1])
            transaction = self._catalog.create_table_transaction(
                self._identifier,
                schema=target_schema(after.columns, with_times=not self._is_mirror),
                properties=_PROPERTIES,
            )
        table = transaction._table  # noqa: SLF001 - no public way to commit a creation with a first snapshot
        change = self._change(table, table, after)
        change.updates, change.is_new = transaction._updates, True  # noqa: SLF001
        return table, change

    def _evolve(self, before: Progress, after: Progress) -> tuple[Table, Change]:
        """Return the table, and a change with the columns for the rows, and those that the collection dropped."""
        table = self._present(before)
        assert table is not None, "the first contents are there"  # noqa: S101 - for mypy
        evolved, updates, kept = evolve_table(table, before.columns, after.columns, title=self.title)
        change = self._change(table, evolved, replace(after, columns=(*after.columns, *kept)))
        change.updates = updates
        return table, change

    @staticmethod
    def _change(table: Table, evolved: Table, after: Progress) -> Change:
        return Change(schema_id=table.metadata.current_schema_id, evolved=evolved, after=after, added=())

    def _write(self, table: Table, rows: pa.Table) -> tuple[DataFile, ...]:
        with answering(self.title):
            return write_rows(table, project(rows, arrow_schema(table)))

    # -- the commit ------------------------------------------------------------------------------------------------

    @contextmanager
    def _writing(self, change: Change) -> Iterator[None]:
        """Remove the data files if the commit certainly has not landed, and will not."""
        try:
            yield
        except (CommitStateUnknown, Unreachable):
            raise  # it may land, or the files cannot be removed: orphan removal takes them
        except TidemarkError:
            delete_files(change.evolved, [file.file_path for file in change.added])
            raise

    def _commit(self, table: Table, change: Change, before: Progress) -> None:
        """Commit on the present table, after whatever foreign maintenance did meanwhile."""
        numbers = iter(range(1, _ATTEMPTS + 1))
        ask = retrying(CommitFailedException, attempts=_ATTEMPTS, what=f"the commit to {self.title}")
        ask(lambda: self._attempt(table if change.is_new else None, change, before, next(numbers)))
        fail_point("sink.iceberg-committed")

    def _attempt(self, new: Table | None, change: Change, before: Progress, number: int) -> None:
        table = new or self._present(before)
        if table is None or table.metadata.current_schema_id != change.schema_id:
            raise StaleState(f"somebody else changed the columns of {self.title} meanwhile", hint="run it again")
        with answering(self.title):
            attempt = prepare(table, change, attempt=number, title=self.title)
        fail_point("sink.iceberg-written")
        try:
            self._catalog.commit_table(table, attempt.requirements, attempt.updates)  # type: ignore[arg-type]  # as above
        except (CommitFailedException, TableAlreadyExistsError) as error:
            delete_files(table, attempt.written)
            if new is not None:
                raise StaleState(f"another run has made {self.title} meanwhile", hint="run it again") from error
            raise
        except LOST as error:
            if not self._has_landed(change.commit_id, error):
                raise Unreachable(
                    f"{self.title} went away during a commit, which did not land: {error}",
                    hint="the next run asks the table: nothing is written twice, or left out",
                ) from error
            log.info("the answer to the commit to %s was lost, which landed: %s", self.title, error)

    def _has_landed(self, commit_id: str, failure: Exception) -> bool:
        ask = retrying(
            Unreachable,
            attempts=_QUESTIONS,
            what=f"the question whether the commit to {self.title} landed",
            first_pause_s=0.5,
            longest_pause_s=2.0,
            give_up=lambda _: CommitStateUnknown(
                f"{self.title} went away during a commit, which may have landed: {failure}",
                hint="the next run asks the table: nothing is written twice, or left out",
            ),
        )
        found: bool = ask(lambda: has_landed(self._load(), commit_id))
        return found


def _read_keys(table: Table, files: Iterable[DataFile], key: tuple[str, ...]) -> Iterator[pa.Table]:
    stored = StoredRows.in_files(table, files)
    for file in stored.files:
        for placed in stored.scan(file, key):
            yield placed.rows
