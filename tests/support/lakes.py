"""An Iceberg table that others write, in every way that changes its files, and a collection of it with a twin."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import LongType

from tests.support.homes import Home
from tests.support.twins import Twins

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

SCHEMA = "k bigint, v string"


class Lake(Twins):
    """A table ``LAKE`` of columns ``k`` and ``v``; collection ``copy`` follows it, its ``twin`` compares all rows."""

    def __init__(
        self,
        settings: Settings,
        spark: SparkSession,
        folder: Path,
        *,
        mode: str = "copy-on-write",
        version: int = 2,
        partitioned: str = "",
        is_named: bool = False,
        columns: str = SCHEMA,
        stored: str = "",
        **declared: Any,
    ) -> None:
        self.spark, self.folder = spark, folder / uuid4().hex
        self.folder.mkdir()
        self.catalog = f"folder_{self.folder.name}"
        for setting, value in (
            ("", "org.apache.iceberg.spark.SparkCatalog"),
            (".type", "hadoop"),
            (".cache-enabled", "false"),
        ):
            spark.conf.set(f"spark.sql.catalog.{self.catalog}{setting}", value)
        spark.conf.set(f"spark.sql.catalog.{self.catalog}.warehouse", str(self.folder))
        self.place = self.folder / "a" / "lake"
        self.is_partitioned = partitioned != ""
        self.where = {"table": f"{self.catalog}.a.lake"} if is_named else {"path": str(self.place)}
        self.columns = columns
        self.create(mode=mode, version=version, partitioned=partitioned)
        self.home = Home(settings, folder, stored or columns.replace(" NOT NULL", ""))
        self.declare(self.folder.name, {"format": "iceberg", **self.where}, declared)

    def create(self, *, mode: str, version: int, partitioned: str = "") -> None:
        modes = ", ".join(f"'write.{what}.mode'='{mode}'" for what in ("delete", "update", "merge"))
        properties = f"'format-version'='{version}', {modes}"
        self.sql(f"CREATE TABLE LAKE ({self.columns}) USING iceberg {partitioned} TBLPROPERTIES ({properties})")

    # -- what others do ----------------------------------------------------------------------------------------------

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self.spark.sql(statement.replace("LAKE", f"{self.catalog}.a.lake"))

    def insert(self, *rows: tuple[int | None, str]) -> None:
        values = ", ".join(f"({'NULL' if k is None else k}, '{v}')" for k, v in rows)
        names = ", ".join(column.split()[0] for column in self.columns.split(", "))  # others may have been added since
        self.sql(f"INSERT INTO LAKE ({names}) VALUES {values}")

    def call(self, procedure: str, *arguments: str) -> None:
        listed = ", ".join(("table => 'a.lake'", *arguments))
        self.sql(f"CALL {self.catalog}.system.{procedure}({listed})")

    def compact(self) -> None:
        self.call("rewrite_data_files", "options => map('rewrite-all', 'true', 'remove-dangling-deletes', 'true')")

    def expire(self) -> None:
        """Leave no snapshot but the last one."""
        self.call("expire_snapshots", "older_than => TIMESTAMP '2100-01-01 00:00:00'", "retain_last => 1")

    def delete_equal(self, *keys: int) -> None:
        """Write a file of equality deletes, as Flink does, and commit it through Iceberg."""
        path = self.place / "data" / f"equal-{uuid4().hex}.parquet"
        is_long = self.spark.table(f"{self.catalog}.a.lake").schema["k"].dataType == LongType()
        key_type = pa.int64() if is_long else pa.int32()
        schema = pa.schema([pa.field("k", key_type, nullable=True, metadata={"PARQUET:field_id": "1"})])
        pq.write_table(pa.table({"k": list(keys)}, schema=schema), path)
        jvm: Any = self.spark._jvm
        gateway: Any = self.spark.sparkContext._gateway
        table, ids = self.table(), gateway.new_array(jvm.int, 1)
        ids[0] = 1
        builder = jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(table.spec()).ofEqualityDeletes(ids)
        builder = builder.withPath(str(path)).withFormat("parquet").withRecordCount(len(keys))
        deletes = builder.withFileSizeInBytes(path.stat().st_size).build()
        table.newRowDelta().addDeletes(deletes).commit()

    def table(self) -> Any:
        """Return Iceberg's object for the table."""
        jvm: Any = self.spark._jvm
        return jvm.org.apache.iceberg.hadoop.HadoopTables(self.spark._jsc.hadoopConfiguration()).load(str(self.place))

    def snapshots(self) -> list[int]:
        return [each.snapshotId() for each in self.table().snapshots()]

    def set_snapshot(self, snapshot_id: int) -> None:
        self.call("set_current_snapshot", f"snapshot_id => {snapshot_id}")

    def commit(self) -> None:
        """Make a snapshot without another file: it has the columns of now."""
        self.table().newAppend().commit()

    def wanted(self) -> Counter[Any]:
        """Return the rows of the last snapshot, under the columns that the snapshot was made with."""
        snapshot_id = self.table().currentSnapshot().snapshotId()
        rows = self.spark.read.format("iceberg").option("versionAsOf", snapshot_id).load(str(self.place))
        condition = self.declared.get("source", {}).get("where", "true")
        return Counter((row["k"], row["v"]) for row in rows.where(condition).collect())
