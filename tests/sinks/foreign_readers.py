"""Targets as other engines read them: DuckDB, PyArrow and pyiceberg, which know nothing of Tidemark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.dataset as ds

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.iceberg.shard.catalog import CachingCatalog

Rows = list[tuple[Any, ...]]


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest that readers look at first."""
    found: dict[str, Any] = json.loads((folder / "_tidemark" / "manifest.json").read_text())
    return found


def duckdb_rows(folder: Path, query: str = "SELECT * FROM target") -> Rows:
    """Return the rows as DuckDB reads the files of the manifest, sorted by their texts."""
    files = [str(folder / file["path"]) for file in read_manifest(folder)["files"]]
    with duckdb.connect() as connection:
        source = f"read_parquet({files!r}, hive_partitioning = false)"
        return sorted(connection.sql(f"WITH target AS (FROM {source}) {query}").fetchall(), key=repr)


def arrow_rows(folder: Path) -> Rows:
    """Return the rows as PyArrow reads the files of the manifest, in the order of the manifest."""
    files = [str(folder / file["path"]) for file in read_manifest(folder)["files"]]
    return [tuple(row.values()) for row in ds.dataset(files, format="parquet").to_table().to_pylist()]


def iceberg_rows(catalog: CachingCatalog, table: str) -> Rows:
    """Return the rows of an Iceberg table, sorted by their texts."""
    rows = catalog.load_table(tuple(table.split("."))).scan().to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=repr)
