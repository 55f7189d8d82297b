"""Targets as other engines read them: DuckDB, PyArrow and pyiceberg, which know nothing of Tidemark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.dataset as ds
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import URL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemark.settings import Settings

Row = dict[str, Any]


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Return the manifest that readers look at first."""
    found: dict[str, Any] = json.loads(Path(folder, "_tidemark", "manifest.json").read_text())
    return found


def files_of(folder: str | Path, manifest: dict[str, Any]) -> list[str]:
    return [str(Path(folder, file["path"])) for file in manifest["files"]]


def duckdb_rows(files: Sequence[str]) -> list[Row]:
    """Return the rows as DuckDB reads files, sorted by their texts."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.sql(f"FROM read_parquet({list(files)!r}, hive_partitioning = false)").to_arrow_table()
    return sorted(found.to_pylist(), key=repr)


def arrow_rows(files: Sequence[str]) -> list[Row]:
    """Return the rows as PyArrow reads files, in their order."""
    found: list[Row] = ds.dataset(list(files), format="parquet").to_table().to_pylist()
    return found


def iceberg_rows(settings: Settings, catalog: str, table: str) -> list[Row]:
    """Return the rows of an Iceberg table, sorted by their texts."""
    own = URL.create("sqlite", database=str(settings.catalog_path)).render_as_string()  # percent-encoded
    uri = settings.connections.get(f"TIDEMARK_CATALOG_{catalog.upper()}_URI", own)
    with SqlCatalog(catalog, uri=uri.replace("postgresql:", "postgresql+psycopg:")) as opened:
        rows = opened.load_table(tuple(table.split("."))).scan().to_arrow().to_pylist()
    return sorted(rows, key=repr)
