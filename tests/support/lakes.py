"""An Iceberg table that others write, in every way that changes its files, and a collection of it with a twin."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.homes import Home
from tidemark.collections.quality.guards import Overrides
from tidemark.collections.reconcile.pinned_snapshot import Pinned, pin_snapshot
from tidemark.collections.reconcile.reconciliation import Reconciliation
from tidemark.iceberg.commit.writer import Writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.collections.declarations.collection import Declaration
    from tidemark.report import CollectionReport
    from tidemark.settings import Settings

GUARDS = {"max_delete_ratio": 1.0, "allow_empty": True}
SCHEMA = "k bigint, v string"


class Lake:
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
        schema: str = SCHEMA,
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
        self.schema = schema
        self.create(mode=mode, version=version, partitioned=partitioned)
        self.home = Home(settings, folder, schema.replace(" NOT NULL", ""))
        self.names = {which: f"{which}_{self.folder.name}" for which in ("copy", "twin")}
        self.declared: dict[str, Any] = {"key": ["k"], "guards": GUARDS, **declared}
        self.home.apply(*(self.declaration(which) for which in self.names))

    def create(self, *, mode: str, version: int, partitioned: str = "") -> None:
        modes = ", ".join(f"'write.{what}.mode'='{mode}'" for what in ("delete", "update", "merge"))
        properties = f"'format-version'='{version}', {modes}"
        self.sql(f"CREATE TABLE LAKE ({self.schema}) USING iceberg {partitioned} TBLPROPERTIES ({properties})")

    def declaration(self, which: str, **more: Any) -> Declaration:
        declared = {**self.declared, **more}
        source = {"format": "iceberg", **self.where, **declared.pop("source", {})}
        return self.home.declaration(self.names[which], source=source, **declared)

    # -- what others do ----------------------------------------------------------------------------------------------

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self.spark.sql(statement.replace("LAKE", f"{self.catalog}.a.lake"))

    def insert(self, *rows: tuple[int | None, str]) -> None:
        values = ", ".join(f"({'NULL' if k is None else k}, '{v}')" for k, v in rows)
        self.sql(f"INSERT INTO LAKE VALUES {values}")

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
        schema = pa.schema([pa.field("k", pa.int64(), nullable=True, metadata={"PARQUET:field_id": "1"})])
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

    # -- runs --------------------------------------------------------------------------------------------------------

    def reconciliation(self, which: str = "copy", **declared: Any) -> Reconciliation:
        self.home.clock.step(10)
        return Reconciliation(
            spark=self.spark,
            settings=self.home.settings,
            shards=self.home.shards,
            shard=self.home.shard(self.names[which]),
            declaration=self.declaration(which, **declared),
            data_interval=None,
            overrides=Overrides(),
            clock=self.home.clock,
            is_full=which == "twin",
        )

    def run(self, which: str = "copy", **declared: Any) -> CollectionReport:
        return self.reconciliation(which, **declared).run(Writer.join(self.home.shard(self.names[which]), 1))

    def wanted(self) -> Counter[Any]:
        rows = self.spark.read.format("iceberg").load(str(self.place))
        condition = self.declared.get("source", {}).get("where", "true")
        return Counter((row["k"], row["v"]) for row in rows.where(condition).collect())

    def stored(self, which: str = "copy") -> Counter[Any]:
        return Counter((row["k"], row["v"]) for row in self.home.rows(self.names[which]))

    def log(self, which: str) -> Counter[Any]:
        """Return the change log without its times, which those of another collection do not equal."""
        head = self.home.shard(self.names[which]).load()
        assert head.updates is not None
        found = head.table.scan(snapshot_id=head.updates.snapshot_id).to_arrow().to_pylist()
        return Counter((row["k"], row["v"], row["_diff"]) for row in found)

    def pinned(self, which: str = "copy") -> Pinned:
        shard = self.home.shard(self.names[which])
        return pin_snapshot(self.spark, shard, shard.load(), self.declaration(which).key)

    def check(self, context: object) -> None:
        """Assert that contents, change log and digest of both collections are the same."""
        assert self.stored("copy") == self.stored("twin"), context
        assert self.log("copy") == self.log("twin"), context
        digests = [self.pinned(which).digest for which in self.names]
        assert digests[0] is not None, context
        assert digests[1] is not None, context
        assert len(digests[0].differing(digests[1])) == 0, context
        assert digests[0].row_count == digests[1].row_count, context
