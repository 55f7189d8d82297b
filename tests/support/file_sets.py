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
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import arrow_schema
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.compaction_plan import CompactionPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

    Row = tuple[int | None, str]

SCHEMA = "k bigint, v string"
_ARROW = pa.schema([("k", pa.int64()), ("v", pa.string())])
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
        self.home = Home(settings, folder, SCHEMA, now_ms=now_ms)
        self.name, self.more = self.folder.parent.name, declared

    def start(self) -> None:
        """Declare the collections, of the files that are there."""
        self.declare(self.name, {"format": self.form, "path": str(self.folder), **OPTIONS[self.form]}, self.more)

    def write(self, name: str, rows: Iterable[Row]) -> None:
        self.rows[name] = list(rows)
        path = self.folder / f"{name}.{self.form}"
        if self.form == "parquet":
            listed = [{"k": key, "v": value} for key, value in self.rows[name]]
            pq.write_table(pa.Table.from_pylist(listed, schema=_ARROW), path)
        elif self.form == "csv":
            with path.open("w", newline="") as file:
                csv.writer(file).writerows([("k", "v"), *self.rows[name]])
        else:
            path.write_text("".join(json.dumps(dict(zip("kv", row, strict=True))) + "\n" for row in self.rows[name]))

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

    # -- what happens to the collections ----------------------------------------------------------------------------

    def compact(self) -> None:
        """Rewrite the files of both, as maintenance does."""
        for name in self.names.values():
            compact(Writer.join(self.home.shard(name), 1), policy=CompactionPolicy(min_small_files=2))

    def append_elsewhere(self, *rows: Row) -> None:
        """Add rows to both with another engine."""
        for name in self.names.values():
            table = self.home.shard(name).load().table
            listed = [{"k": key, "v": value, "_time": 0, "_diff": 1} for key, value in rows]
            table.append(pa.Table.from_pylist(listed, schema=arrow_schema(table)))
