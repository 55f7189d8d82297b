"""Other collections as sources; a run reads one snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.collections.schema.convert import spark_schema
from tidemark.collections.sources.formats.source import InputSource

if TYPE_CHECKING:
    from tidemark.collections.sources.opened_source import OpenedSource, Opening


class CollectionSource(InputSource):
    """Another collection, at one snapshot of `main`."""

    form = "collection"
    collection: str

    def open_whole(self, opening: Opening, where: str) -> OpenedSource:
        """Pin the present contents, without the commits of other engines, and return the user's columns.

        A collection that is about to be created or altered is opened empty, with its future columns.

        Raises:
            UnknownCollection: If no collection has that name.
        """
        from tidemark.collections.sources.errors import translating
        from tidemark.collections.sources.opened_source import OpenedSource, SnapshotPin
        from tidemark.iceberg.reading.spark import read_snapshot
        from tidemark.iceberg.shard.layout import SYSTEM_COLUMNS

        spark = opening.spark
        if self.collection in opening.planned:
            empty = spark.createDataFrame([], spark_schema(opening.planned[self.collection]))
            return OpenedSource(where=where, desired=empty, pins=(), pinnable=True, size_bytes=0)
        shard = opening.shards.open(self.collection)
        head = shard.load()
        with translating(where):
            contents = read_snapshot(spark, shard, head, head.contents)
            desired = contents.drop(*SYSTEM_COLUMNS[head.state.layout])
        summary = head.contents.summary
        manifests = tuple(sorted(manifest.manifest_path for manifest in head.contents.manifests(head.table.io)))
        size = summary.additional_properties.get("total-files-size") if summary is not None else None
        return OpenedSource(
            where=where,
            desired=desired,
            pins=(SnapshotPin(shard.identifier, head.contents.snapshot_id, manifests),),
            pinnable=True,
            size_bytes=None if size is None else int(size),
        )
