"""Iceberg tables of other owners, and other collections; a run reads one snapshot of a table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, model_validator

from tidemark.collections.sources.formats.source import InputSource, SourceWithOptions, absolute_path

if TYPE_CHECKING:
    from tidemark.collections.sources.opened_source import OpenedSource, Opening


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

    def open_whole(self, opening: Opening, where: str) -> OpenedSource:
        """Pin the present snapshot of the table's main branch, and return the rows."""
        from tidemark.collections.sources.opened_source import OpenedSource, SnapshotPin

        spark, place = opening.spark, self.table or self.path or ""
        # Spark's catalog may cache an older state of a named table; a table that is named by its folder is not cached.
        # Ask first: Spark logs a stack trace for a missing table. Opening the table reports the missing table anyway.
        if self.table is not None and spark.catalog.tableExists(self.table):
            spark.sql(f"REFRESH TABLE {self.table}")
        refs = spark.read.format("iceberg").load(f"{place}{'.' if self.table else '#'}refs")
        main = refs.where("name = 'main'").select("snapshot_id").first()
        reader = spark.read.format("iceberg").options(**self.spark_options)
        if main is None:  # a table without a commit has no snapshot to pin
            return OpenedSource(where=where, desired=reader.load(place).limit(0), pinnable=True)
        desired = reader.option("versionAsOf", str(main["snapshot_id"])).load(place)
        pins = (SnapshotPin(place, main["snapshot_id"]),)
        return OpenedSource(where=where, desired=desired, pins=pins, pinnable=True)


class CollectionSource(InputSource):
    """Another collection, at one snapshot of `main`."""

    form = "collection"
    collection: str

    @property
    def collection_name(self) -> str:
        return self.collection

    def open_whole(self, opening: Opening, where: str) -> OpenedSource:
        """Pin the present contents, without the commits of other engines, and return the user's columns.

        A collection that is about to be created or changed is opened as it will be.
        """
        from tidemark.collections.sources.opened_source import OpenedSource, SnapshotPin
        from tidemark.iceberg.reading.spark import read_snapshot
        from tidemark.iceberg.shard.layout import SYSTEM_COLUMNS

        if self.collection in opening.expected:
            return replace(opening.expected[self.collection], where=where)
        shard = opening.shards.open(self.collection)
        head = shard.load()
        desired = read_snapshot(opening.spark, shard, head, head.contents).drop(*SYSTEM_COLUMNS[head.state.layout])
        manifests = tuple(sorted(manifest.manifest_path for manifest in head.contents.manifests(head.table.io)))
        pin = SnapshotPin(shard.identifier, head.contents.snapshot_id, manifests)
        return OpenedSource(where=where, desired=desired, pins=(pin,), pinnable=True)
