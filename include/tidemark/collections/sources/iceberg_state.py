"""Names the rows of a table that Tidemark does not own: by its UUID, and the last snapshot that changed any row.

Snapshots that only replace files, as a compaction does, hold the same rows as the one before.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemark.iceberg.shard.state_reader import CATALOG_NAME, ask_catalog
from tidemark.locations import parse_uri, to_path
from tidemark.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REPLACE = "replace"  # Iceberg's name of the operation
_LOCATION = (
    "SELECT metadata_location FROM iceberg_tables "
    "WHERE catalog_name = {0} AND table_namespace = {0} AND table_name = {0}"
)
_HADOOP_TABLES = "org.apache.iceberg.hadoop.HadoopTables"
_SPARK_UTIL = "org.apache.iceberg.spark.Spark3Util"


class SourceSnapshot(NamedTuple):
    """What names the rows of a snapshot."""

    operation: str
    parent: int | None
    schema_id: int | None  # under which the snapshot is read


def name_rows(uuid: str, snapshot_id: int, find: Callable[[int], SourceSnapshot | None]) -> str:
    """Return the name of the rows of one snapshot.

    ``find`` returns None for a snapshot that has expired; then the oldest one that is left stands for it.
    """
    found = read = find(snapshot_id)
    while found is not None and found.operation == _REPLACE and found.parent is not None:
        if (parent := find(found.parent)) is None:
            break
        snapshot_id, found = found.parent, parent
    return f"{uuid}@{snapshot_id}/{read.schema_id if read else ''}"


def read_state(settings: Settings, *, table: str | None, folder: str | None) -> str | None:
    """Return the name of the rows that a table has now, without Spark; None if only Spark can tell.

    That is a table of Tidemark's own catalog, by its name in Spark, or one in a local ``folder``, as Iceberg's tables
    without a catalog lie there.
    """
    try:
        location = _newest_file(folder) if table is None else _location_in_catalog(settings, table)
        path = None if location is None else to_path(location)
        return None if path is None else _name_rows_in(json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # what is wrong is told by the run that reads it
        return None


def _newest_file(folder: str | None) -> str | None:
    local = None if folder is None else parse_uri(folder)
    if local is None:
        return None
    version = int((local / "metadata" / "version-hint.text").read_text(encoding="utf-8"))
    while (local / "metadata" / f"v{version + 1}.metadata.json").exists():  # the hint is written last
        version += 1
    return str(local / "metadata" / f"v{version}.metadata.json")


def _location_in_catalog(settings: Settings, table: str) -> str | None:
    catalog, _, name = table.partition(".")
    if catalog != CATALOG_NAME or name.count(".") != 1 or "`" in name:
        return None
    rows = ask_catalog(settings, _LOCATION, (CATALOG_NAME, *name.split(".")))
    return str(rows[0][0]) if rows else None


def _name_rows_in(metadata: dict[str, Any]) -> str:
    snapshots = {each["snapshot-id"]: each for each in metadata.get("snapshots", ())}

    def find(snapshot_id: int) -> SourceSnapshot | None:
        if (found := snapshots.get(snapshot_id)) is None:
            return None
        operation = (found.get("summary") or {}).get("operation", "")
        return SourceSnapshot(operation, found.get("parent-snapshot-id"), found.get("schema-id"))

    main: Any = metadata.get("current-snapshot-id")
    if main not in snapshots:
        return f"{metadata['table-uuid']}@"
    return name_rows(metadata["table-uuid"], main, find)


def ask_main(spark: SparkSession, *, table: str | None, folder: str | None) -> int | None:
    """Return the present snapshot of the main branch; None of a table without a commit."""
    # Spark's catalog may cache an older state of a named table; a table that is named by its folder is not cached.
    # Ask first: Spark logs a stack trace for a missing table. Opening the table reports the missing table anyway.
    if table is not None and spark.catalog.tableExists(table):
        spark.sql(f"REFRESH TABLE {table}")
    refs = spark.read.format("iceberg").load(f"{folder}#refs" if table is None else f"{table}.refs")
    main = refs.where("name = 'main'").select("snapshot_id").first()
    return None if main is None else int(main["snapshot_id"])


def load_table(spark: SparkSession, *, table: str | None, folder: str | None) -> Any:
    """Return Iceberg's own object for a table, in the JVM."""
    jvm: Any = spark._jvm  # noqa: SLF001 - Iceberg's tables have no Python form in Spark
    if table is None:
        return getattr(jvm, _HADOOP_TABLES)(spark._jsc.hadoopConfiguration()).load(folder)  # noqa: SLF001
    return getattr(jvm, _SPARK_UTIL).loadIcebergTable(spark._jsparkSession, table)  # noqa: SLF001


def state_of(loaded: Any, snapshot_id: int | None) -> str:
    """Return the name of the rows of a snapshot of a table; without one, of the table without rows."""
    uuid = str(loaded.uuid())
    if snapshot_id is None:
        return f"{uuid}@"

    def find(number: int) -> SourceSnapshot | None:
        found = loaded.snapshot(number)
        return None if found is None else SourceSnapshot(str(found.operation()), found.parentId(), found.schemaId())

    return name_rows(uuid, snapshot_id, find)
