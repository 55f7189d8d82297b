"""Iceberg tables of other owners, and other collections; a run reads one snapshot of a table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, model_validator

from tidemark.collections.sources.formats.source import InputSource, SourceWithOptions, absolute_path
from tidemark.collections.sources.iceberg_state import (
    SourceSnapshot,
    ask_main,
    changes_rows,
    load_table,
    name_rows,
    read_size,
    read_state,
    state_of,
)
from tidemark.collections.sources.pins import SnapshotPin
from tidemark.iceberg.shard.state import ShardKind

if TYPE_CHECKING:
    from tidemark.collections.sources.opened_source import OpenedSource, Opening
    from tidemark.collections.sources.pins import Looking, Pin
    from tidemark.iceberg.shard.head import ShardHead


class IcebergSource(SourceWithOptions):
    """An Iceberg table that Tidemark does not own, by the name in Spark's catalogs or by the folder."""

    form = "iceberg"
    format: Literal["iceberg"]
    table: str | None = None
    path: Annotated[str, AfterValidator(absolute_path)] | None = None

    @model_validator(mode="after")
    def _names_one_table(self) -> IcebergSource:
        if (self.table is None) == (self.path is None):
            raise ValueError("needs exactly one of `table` (its name in a Spark catalog) and `path` (its folder)")
        return self

    @property
    def place(self) -> str:
        return self.table or self.path or ""

    def find_state(self, looking: Looking, where: str) -> tuple[Pin, ...] | None:
        from tidemark.collections.sources.errors import translating

        if looking.spark is not None:
            with translating(where):
                main = ask_main(looking.spark, table=self.table, folder=self.path)
                loaded = load_table(looking.spark, table=self.table, folder=self.path)
                return (SnapshotPin(state_of(loaded, main)),)
        name = read_state(looking.settings, table=self.table, folder=self.path)
        return None if name is None else (SnapshotPin(name),)

    def find_size(self, looking: Looking, where: str) -> int | None:  # noqa: ARG002 - what is wrong is told by the run
        return read_size(looking.settings, table=self.table, folder=self.path)

    def open_whole(self, opening: Opening, where: str) -> OpenedSource:
        """Pin the present snapshot of the table's main branch, and return the rows."""
        from tidemark.collections.sources.followed.iceberg_changes import FollowedTable
        from tidemark.collections.sources.opened_source import OpenedSource

        spark = opening.spark
        main = ask_main(spark, table=self.table, folder=self.path)
        reader = spark.read.format("iceberg").options(**self.spark_options)
        if main is None:  # a table without a commit has no snapshot to read
            desired = reader.load(self.place).limit(0)
        else:
            desired = reader.option("versionAsOf", str(main)).load(self.place)
        loaded = load_table(spark, table=self.table, folder=self.path)
        pins = (SnapshotPin(state_of(loaded, main)),)
        followed = None
        if main is not None and loaded.snapshot(main) is not None and not self.options:  # which single files might obey
            followed = FollowedTable(spark, loaded, main, tuple(desired.columns))
        return OpenedSource(where=where, desired=desired, pins=pins, state=pins, pinnable=True, followed=followed)


class CollectionSource(InputSource):
    """Another collection, at one snapshot of `main`."""

    form = "collection"
    takes_no_events = "is not needed: what reads a collection is reconciled with it; leave it out"

    collection: str

    @property
    def collection_name(self) -> str:
        return self.collection

    def find_state(self, looking: Looking, where: str) -> tuple[Pin, ...] | None:  # noqa: ARG002 - the error names it
        return (_pin_contents(looking.shards.open(self.collection).load()),)

    def find_size(self, looking: Looking, where: str) -> int | None:  # noqa: ARG002 - the error names the collection
        return looking.shards.open(self.collection).load().size_bytes

    def open_whole(self, opening: Opening, where: str) -> OpenedSource:
        """Pin the present contents, without the commits of other engines, and return the user's columns.

        A collection that is about to be created or changed is opened as it will be.
        """
        from tidemark.collections.sources.opened_source import OpenedSource
        from tidemark.iceberg.reading.spark import read_snapshot
        from tidemark.iceberg.shard.layout import SYSTEM_COLUMNS

        if self.collection in opening.expected:
            return replace(opening.expected[self.collection], where=where)
        shard = opening.shards.open(self.collection)
        head = shard.load()
        desired = read_snapshot(opening.spark, shard, head, head.contents).drop(*SYSTEM_COLUMNS[head.state.layout])
        pins = (_pin_contents(head),)
        return OpenedSource(where=where, desired=desired, pins=pins, state=pins, pinnable=True)


def _pin_contents(head: ShardHead) -> SnapshotPin:
    """Name the rows of a collection: a run without corrections, and a compaction, leave them as they are.

    What other engines append to a collection that is not differential counts among the contents.
    """
    metadata = head.table.metadata
    if head.state.layout is ShardKind.DIFFERENTIAL and head.is_of_last_commit:
        return SnapshotPin(f"{metadata.table_uuid}@{head.state.changed}/{metadata.current_schema_id}")

    def find(snapshot_id: int) -> SourceSnapshot | None:
        found = metadata.snapshot_by_id(snapshot_id)
        if found is None:
            return None
        summary = {} if found.summary is None else found.summary.additional_properties
        operation = "" if found.summary is None else found.summary.operation.value
        return SourceSnapshot(changes_rows(operation, summary), found.parent_snapshot_id, found.schema_id)

    rows = name_rows(str(metadata.table_uuid), head.contents.snapshot_id, find)
    return SnapshotPin(f"{rows}/{metadata.current_schema_id}")
