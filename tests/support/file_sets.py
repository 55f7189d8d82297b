"""A folder of files that others write, and a collection of it with a twin."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.homes import Home
from tests.support.twins import Twins

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

    Row = tuple[int | None, str]

SCHEMA = "k bigint, v string"
_COLUMNS = [("k", pa.int64()), ("v", pa.string())]
LAYOUTS = {  # the columns of files, but for CSV, whose columns are declared
    "plain": pa.schema(_COLUMNS),
    "narrow": pa.schema([("k", pa.int32()), ("v", pa.string())]),
    "more": pa.schema([("w", pa.string()), *_COLUMNS]),
    "less": pa.schema([("k", pa.int64())]),
}
OPTIONS: dict[str, dict[str, Any]] = {"parquet": {}, "csv": {"options": {"header": True}, "schema": SCHEMA}, "json": {}}


class FileSet(Twins):
    """Files of columns ``k`` and ``v``."""

    def __init__(
        self,
        settings: Settings,
        spark: SparkSession,
        folder: Path,
        *,
        form: str = "parquet",
        now_ms: int = 1_000,
        **declared: Any,
    ) -> None:
        self.spark, self.form = spark, form
        self.folder = folder / uuid4().hex / "all files 100%"
        self.folder.mkdir(parents=True)
        self.rows: dict[str, list[Row]] = {}
        self.layout = "plain"
        self.home = Home(settings, folder, SCHEMA, now_ms=now_ms)
        self.name, self.more = self.folder.parent.name, declared

    def start(self) -> None:
        """Declare the collections, of the files that are there."""
        self.declare(self.name, {"format": self.form, "path": str(self.folder), **OPTIONS[self.form]}, self.more)

    def write(self, name: str, rows: Iterable[Row]) -> None:
        self.rows[name] = rows = list(rows)
        path = self.folder / f"{name}.{self.form}"
        columns = LAYOUTS[self.layout]
        listed = [{name: {"k": key, "v": value, "w": "w"}[name] for name in columns.names} for key, value in rows]
        if self.form == "parquet":
            pq.write_table(pa.Table.from_pylist(listed, schema=columns), path)
        elif self.form == "csv":
            with path.open("w", newline="") as file:
                csv.writer(file).writerows([("k", "v"), *rows])
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in listed))

    def lay_out(self, layout: str) -> None:
        """Write all files with other columns."""
        self.layout = layout
        for name, rows in self.rows.items():
            self.write(name, rows)

    def remove(self, name: str) -> None:
        (self.folder / f"{name}.{self.form}").unlink()
        del self.rows[name]

    def touch(self, name: str) -> None:
        (self.folder / f"{name}.{self.form}").touch()

    def rename(self, name: str, other: str) -> None:
        (self.folder / f"{name}.{self.form}").rename(self.folder / f"{other}.{self.form}")
        self.rows[other] = self.rows.pop(name)

    def wanted(self) -> Counter[Any]:
        rows = Counter(row for rows in self.rows.values() for row in rows)
        condition = self.declared.get("source", {}).get("where")
        if condition is None:
            return rows
        frame = self.spark.createDataFrame([*rows.elements()], SCHEMA).where(condition)
        return Counter((row["k"], row["v"]) for row in frame.collect())
