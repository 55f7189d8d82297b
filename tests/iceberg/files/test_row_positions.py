from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.ddl import parse_columns
from tidemark.iceberg.files.data_files import arrow_schema, write_rows
from tidemark.iceberg.files.stored_rows import StoredRows
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from tidemark.settings import Settings

COLUMNS = (
    "id bigint, pair struct<`a b`:int,gone:int,more:array<struct<`x y`:int>>>, entries map<string,struct<`v w`:int>>"
)


def test_inner_fields_are_found_by_their_ids(home: Settings) -> None:
    catalog = Shards.connect(home).iceberg
    catalog.create_namespace("others")
    table = catalog.create_table(
        ("others", "nested"), schema=to_iceberg(parse_columns(COLUMNS)), properties={"format-version": "2"}
    )
    row = {"id": 1, "pair": {"a b": 2, "gone": 3, "more": [{"x y": 4}, None]}, "entries": [("k", {"v w": 5})]}
    empty = {"id": 2, "pair": None, "entries": None}
    files = write_rows(table, pa.Table.from_pylist([row, empty], schema=arrow_schema(table)))
    assert read(StoredRows.in_files(table, files)) == [row, empty]
    with table.update_schema() as update:
        update.rename_column("pair.a b", "c")
        update.delete_column("pair.gone")
    with table.update_schema() as update:
        update.add_column(("pair", "gone"), to_iceberg(parse_columns("a date")).find_type("a"))
    renamed = {"c": 2, "more": [{"x y": 4}, None], "gone": None}
    assert read(StoredRows.in_files(table, files)) == [row | {"pair": renamed}, empty]


def read(stored: StoredRows) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = [
        row
        for file in stored.files
        for placed in stored.scan(file, ["id", "pair", "entries"])
        for row in placed.rows.to_pylist()
    ]
    return rows
