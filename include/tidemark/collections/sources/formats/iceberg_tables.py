"""Iceberg tables of other owners, and other collections; a run reads one snapshot of a table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, model_validator

from tidemark.collections.sources.formats.source import InputSource, SourceWithOptions, absolute_path
from tidemark.collections.sources.iceberg_state import ask_main, load_table, read_state, state_of
from tidemark.collections.sources.pins import SnapshotPin

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

    def open_whole(self, opening: Opening, where: str) -> OpenedSource:
        """Pin the present snapshot of the table's main branch, and return the rows."""
        from tidemark.collections.sources.iceberg_changes import FollowedTable
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
    collection: str

    @property
    def collection_name(self) -> str:
        return self.collection

    def find_state(self, looking: Looking, where: str) -> tuple[Pin, ...] | None:  # noqa: ARG002 - the error names it
        return (_pin_contents(looking.shards.open(self.collection).load()),)

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
    """Name the rows of a collection: a run without corrections, and a compaction, leave them as they are."""
    return SnapshotPin(f"{head.table.metadata.table_uuid}@{head.state.changed}/{head.table.metadata.current_schema_id}")
