"""Names the rows of a table that Tidemark does not own: by its UUID, and the last snapshot that changed any row.

Snapshots that only replace files, as a compaction does, hold the same rows as the one before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tidemark.collections.sources.remote_listing import find_remote_files, read_remote_file
from tidemark.iceberg.shard.state_reader import CATALOG_NAME, ask_catalog
from tidemark.locations import parse_uri, to_path
from tidemark.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
_REPLACE = "replace"  # Iceberg's name of the operation
_CHANGED_FILES = ("added-data-files", "deleted-data-files", "added-delete-files", "removed-delete-files")
_LOCATION = (
    "SELECT metadata_location FROM iceberg_tables "
    "WHERE catalog_name = {0} AND table_namespace = {0} AND table_name = {0}"
)
_HADOOP_TABLES = "org.apache.iceberg.hadoop.HadoopTables"
_SPARK_UTIL = "org.apache.iceberg.spark.Spark3Util"


class SourceSnapshot(NamedTuple):
    """What names the rows of a snapshot."""

    changes_rows: bool
    parent: int | None
    schema_id: int | None  # under which the snapshot is read


def changes_rows(operation: str, summary: Mapping[str, str]) -> bool:
    """Say whether a snapshot may hold other rows than its parent: it does not only replace files, or change none."""
    counts = summary.get("changed-partition-count") == "0" or "tidemark.kind" in summary  # Tidemark leaves out zeros
    changes_none = counts and not any(map(summary.get, _CHANGED_FILES))
    return operation != _REPLACE and not changes_none


def name_rows(uuid: str, snapshot_id: int, find: Callable[[int], SourceSnapshot | None]) -> str:
    """Return the name of the rows of one snapshot.

    ``find`` returns None for a snapshot that has expired; then the oldest one that is left stands for it.
    """
    found = read = find(snapshot_id)
    passed = {snapshot_id}  # metadata that somebody else wrote may say that a snapshot is its own ancestor
    while found is not None and not found.changes_rows and found.parent is not None:
        parent = None if found.parent in passed else find(found.parent)
        if parent is None:
            break
        snapshot_id, found = found.parent, parent
        passed.add(snapshot_id)
    return f"{uuid}@{snapshot_id}/{read.schema_id if read else ''}"


def read_state(settings: Settings, *, table: str | None, folder: str | None) -> str | None:
    """Return the name of the rows that a table has now, without Spark; None if only Spark can tell.

    That is a table of Tidemark's own catalog, by its name in Spark, or one in a ``folder``, as Iceberg's tables without
    a catalog lie there; on a local file system or in an object store.
    """
    return _look(settings, table, folder, _name_rows_in)


def read_size(settings: Settings, *, table: str | None, folder: str | None) -> int | None:
    """Return the bytes of the files that a table has now, as ``read_state`` looks; None if only Spark can tell."""
    return _look(settings, table, folder, _size_in)


def _look(settings: Settings, table: str | None, folder: str | None, read: Callable[[dict[str, Any]], T]) -> T | None:
    try:
        location = _newest_file(folder) if table is None else _location_in_catalog(settings, table)
        return None if location is None else read(json.loads(_read(location)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # what is wrong is told by the run that reads it
        return None


def _newest_file(folder: str | None) -> str | None:
    if folder is None:
        return None
    files = f"{parse_uri(folder) or folder.rstrip('/')}/metadata"
    names = _names_in(files)
    version = int(_read(f"{files}/version-hint.text"))
    if f"v{version}.metadata.json" not in names:
        return None
    while f"v{version + 1}.metadata.json" in names:  # the hint is written last
        version += 1
    if any(name.startswith(f"v{version + 1}.") for name in names):  # a compressed one, which Spark reads
        return None
    return f"{files}/v{version}.metadata.json"


def _names_in(folder: str) -> set[str]:
    if (path := to_path(folder)) is not None:
        return {entry.name for entry in path.iterdir()}
    return {file.uri.removeprefix(f"{folder}/") for file in find_remote_files(folder) or ()}


def _read(location: str) -> bytes:
    """Return the content of a file. Raises ``OSError`` or ``ValueError`` if only Spark can read it."""
    path = to_path(location)
    return read_remote_file(location) if path is None else path.read_bytes()


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
        summary = found.get("summary") or {}
        return SourceSnapshot(
            changes_rows(summary.get("operation", ""), summary), found.get("parent-snapshot-id"), found.get("schema-id")
        )

    main: Any = metadata.get("current-snapshot-id")
    if main not in snapshots:
        return f"{metadata['table-uuid']}@/{metadata['current-schema-id']}"
    return name_rows(metadata["table-uuid"], main, find)


def _size_in(metadata: dict[str, Any]) -> int:
    snapshots = {each["snapshot-id"]: each for each in metadata.get("snapshots", ())}
    main = snapshots.get(metadata.get("current-snapshot-id"))
    return 0 if main is None else int(main["summary"]["total-files-size"])


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
        return f"{uuid}@/{loaded.schema().schemaId()}"

    def find(number: int) -> SourceSnapshot | None:
        found = loaded.snapshot(number)
        if found is None:
            return None
        changes = changes_rows(str(found.operation()), dict(found.summary() or {}))
        return SourceSnapshot(changes, found.parentId(), found.schemaId())

    return name_rows(uuid, snapshot_id, find)
