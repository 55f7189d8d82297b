"""A run is small if all that it reads is known to be little, before Spark starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.support.homes import Home
from tidemark.collections.reconcile.choosing import size
from tidemark.collections.reconcile.choosing.size import is_small
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.ddl import parse_columns

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = [(number, "name") for number in range(20)]


@pytest.fixture
def planes(installation: Home) -> Home:
    installation.write_rows("planes", ROWS)
    installation.apply(installation.declaration("planes"))
    return installation


def is_small_from(home: Home, source: dict[str, Any] | None = None) -> bool:
    declaration = home.declaration("planes", **({} if source is None else {"source": source}))
    return is_small(home.shards, home.settings, [declaration])


def test_few_rows_are_small_and_many_are_not(planes: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    read = (planes.folder / "planes.csv").stat().st_size
    monkeypatch.setattr(size, "SMALL_BYTES", read)
    assert is_small_from(planes)
    monkeypatch.setattr(size, "SMALL_BYTES", read - 1)
    assert not is_small_from(planes)
    assert is_small(planes.shards, planes.settings, [])


def lake(home: Home) -> dict[str, Any]:
    home.shards.iceberg.create_namespace("lake")
    table = home.shards.iceberg.create_table(("lake", "planes"), to_iceberg(parse_columns("k int, v string")))
    table.append(pa.Table.from_pylist([{"k": k, "v": v} for k, v in ROWS], schema=table.schema().as_arrow()))
    return {"format": "iceberg", "table": "tidemark.lake.planes"}


SOURCES: dict[str, Callable[[Home], dict[str, Any]]] = {
    "an Iceberg table": lake,
    "a collection": lambda _: {"collection": "planes"},
    "SQL over small ones": lambda home: {"inputs": {"a": {"collection": "planes"}, "b": lake(home)}, "sql": "SELECT 1"},
}
UNKNOWN: dict[str, Callable[[Home], dict[str, Any]]] = {
    "a database": lambda home: {"format": "jdbc", "url": f"jdbc:sqlite:{home.folder}/a.db", "dbtable": "a"},
    "remote files": lambda _: {"format": "parquet", "path": "hdfs://name/a"},
    "a missing file": lambda _: {"format": "parquet", "path": "missing"},
    "a table elsewhere": lambda _: {"format": "iceberg", "table": "other.lake.planes"},
    "SQL over what is not known": lambda home: {
        "inputs": {"a": {"collection": "planes"}, "b": {"format": "parquet", "path": f"{home.folder}/missing"}},
        "sql": "SELECT 1",
    },
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_small_sources(planes: Home, source: Callable[[Home], dict[str, Any]]) -> None:
    assert is_small_from(planes, source(planes))


@pytest.mark.parametrize("source", UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_not_known_counts_as_large(planes: Home, source: Callable[[Home], dict[str, Any]]) -> None:
    assert not is_small_from(planes, source(planes))
