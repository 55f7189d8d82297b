"""Opens Iceberg tables and other collections, each at one snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import StructField, StructType

from tidemark.collections.schema.convert import to_spark
from tidemark.collections.sources.errors import translating
from tidemark.collections.sources.opened_source import OpenedSource, SnapshotPin
from tidemark.iceberg.reading.spark import read_snapshot
from tidemark.iceberg.shard.layout import SYSTEM_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from tidemark.collections.declarations.source import CollectionSource, IcebergSource
    from tidemark.collections.schema.types import Columns
    from tidemark.iceberg.shards import Shards


def open_table(spark: SparkSession, source: IcebergSource, *, where: str) -> OpenedSource:
    """Pin the present snapshot of the table's main branch, and return its rows.

    Raises:
        InputMissing: If there is no such table.
    """
    separator = "." if source.table else "#"
    with translating(where):
        _forget_cached(spark, source)
        refs = spark.read.format("iceberg").load(f"{source.place}{separator}refs")
        main = refs.where("name = 'main'").select("snapshot_id").first()
        reader = spark.read.format("iceberg").options(**source.spark_options)
        if main is None:  # a table without a commit: there is nothing that a snapshot could pin
            desired = reader.load(source.place).limit(0)
            return OpenedSource(where=where, desired=desired, pins=(), pinnable=True, size_bytes=0)
        desired = reader.option("versionAsOf", str(main["snapshot_id"])).load(source.place)
    pins = (SnapshotPin(source.place, main["snapshot_id"]),)
    return OpenedSource(where=where, desired=desired, pins=pins, pinnable=True, size_bytes=None)


def _forget_cached(spark: SparkSession, source: IcebergSource) -> None:
    """Have a named table loaded anew: its catalog may keep what it loaded, which is older than what others committed.

    A table that is named by its folder is never kept.
    """
    # Asked first, because a statement on a table that is not there is logged with a stack trace; opening it tells.
    if source.table is not None and spark.catalog.tableExists(source.table):
        spark.sql(f"REFRESH TABLE {source.table}")


def open_collection(
    spark: SparkSession,
    source: CollectionSource,
    shards: Shards,
    *,
    planned: Mapping[str, Columns],
    where: str,
) -> OpenedSource:
    """Pin the present contents of the collection, without what other engines wrote, and return the user's columns.

    A collection in ``planned``, which is about to be created or altered, is opened as it will be, and empty.

    Raises:
        UnknownCollection: If there is none of that name.
    """
    if source.collection in planned:
        columns = planned[source.collection]
        schema = StructType([StructField(column.name, to_spark(column.type)) for column in columns])
        empty = spark.createDataFrame([], schema)
        return OpenedSource(where=where, desired=empty, pins=(), pinnable=True, size_bytes=0)
    shard = shards.open(source.collection)
    head = shard.load()
    with translating(where):
        contents = read_snapshot(spark, shard, head, head.contents)
        desired = contents.drop(*SYSTEM_COLUMNS[head.state.layout])
    summary = head.contents.summary
    manifests = tuple(sorted(each.manifest_path for each in head.contents.manifests(head.table.io)))
    size = summary.additional_properties.get("total-files-size") if summary is not None else None
    return OpenedSource(
        where=where,
        desired=desired,
        pins=(SnapshotPin(shard.identifier, head.contents.snapshot_id, manifests),),
        pinnable=True,
        size_bytes=None if size is None else int(size),
    )
