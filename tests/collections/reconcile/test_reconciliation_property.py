"""Whatever the rows, the edits, and what other engines did: after a reconcile the collection is its source."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import SteppedClock
from tests.support.everything import KEY, SCHEMA, Row, multiset, rows, table
from tests.support.exploration import explore, is_soak
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.digest.row_layout import NEW, OLD
from tidemark.collections.digest.scan import scan_digest
from tidemark.collections.quality.guards import Overrides
from tidemark.collections.reconcile.pinned_snapshot import pin_snapshot
from tidemark.collections.reconcile.reconciliation import Reconciliation
from tidemark.collections.reconcile.spark_diff import (
    bucket_set,
    differing_row_hashes,
    in_buckets,
    keyed_changes,
    multiset_changes,
    with_row_hashes,
)
from tidemark.collections.schema.convert import from_spark, to_iceberg
from tidemark.iceberg.commit.writer import Writer
from tidemark.report import CollectionReport, Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tidemark.collections.schema.types import Columns
    from tidemark.iceberg.shards import Shards
    from tidemark.settings import Settings

pytestmark = pytest.mark.spark

GUARDS = {"max_delete_ratio": 1.0, "allow_empty": True}
FOREIGN = ("insert", "delete", "rewrite_data_files", "rewrite_position_delete_files", "expire_snapshots")


class Collection:
    """One collection over a Parquet file, read again by Spark and by pyiceberg after every step."""

    def __init__(self, spark: SparkSession, settings: Settings, shards: Shards, folder: Path, *, keyed: bool) -> None:
        self.spark, self.settings, self.shards = spark, settings, shards
        self.path = folder / f"{uuid4().hex}.parquet"
        self.write([])
        name = f"property_{uuid4().hex}"
        self.declaration = Declaration.model_validate(
            {
                "name": name,
                "kind": "differential",
                "key": list(KEY) if keyed else [],
                "guards": GUARDS,
                "source": {"format": "parquet", "path": str(self.path)},
            }
        )
        columns: Columns = from_spark(spark.read.parquet(str(self.path)).schema, where="test")
        self.shard = shards.create(
            name, schema=to_iceberg(columns), key=KEY if keyed else (), buckets=2 if keyed else 1
        )
        self.stored: Counter[Any] = Counter()
        self.clock = SteppedClock()

    def write(self, some: list[Row]) -> None:
        self.path.unlink(missing_ok=True)  # another inode: the same name with other contents is another file
        pq.write_table(table(some), self.path)

    def reconcile(self) -> CollectionReport:
        self.clock.step(10)
        return Reconciliation(
            spark=self.spark,
            settings=self.settings,
            shards=self.shards,
            shard=self.shard,
            declaration=self.declaration,
            data_interval=None,
            overrides=Overrides(),
            clock=self.clock,
        ).run(Writer.join(self.shard, 1))

    def check(self, desired: list[Row], report: CollectionReport) -> None:
        wanted = multiset(table(desired))
        by_spark = self.spark.table(self.shard.spark_name).toArrow()
        head = self.shard.load()
        by_pyiceberg = head.table.scan().to_arrow()
        assert multiset(by_spark) == wanted
        assert multiset(by_pyiceberg) == wanted
        log = head.table.scan(snapshot_id=head.table.metadata.refs["updates"].snapshot_id).to_arrow()
        assert multiset(log) == wanted, "changes replayed from the start are the contents"
        assert report.inserted == (wanted - self.stored).total(), "the corrections are the net difference"
        assert report.retracted == (self.stored - wanted).total()
        self.stored = wanted

    def disturb(self, what: str) -> None:
        """Do to the table what another engine might, rightly or not."""
        name = self.shard.spark_name
        if what == "insert":
            copies = self.spark.table(name).limit(2)
            copies.writeTo(name).append()
        elif what == "delete":
            self.spark.sql(f"DELETE FROM {name} WHERE k < 3")
        elif what == "expire_snapshots":
            self.spark.sql(
                f"CALL tidemark.system.expire_snapshots(table => '{name}', older_than => now(), retain_last => 1)"
            )
        elif what == "rewrite_data_files":
            options = "map('rewrite-all', 'true', 'remove-dangling-deletes', 'true')"
            self.spark.sql(f"CALL tidemark.system.rewrite_data_files(table => '{name}', options => {options})")
        else:
            self.spark.sql(f"CALL tidemark.system.{what}(table => '{name}')")

    def check_that_all_comparisons_agree(self) -> None:
        pinned = pin_snapshot(self.spark, self.shard, self.shard.load(), self.declaration.key)
        shape = pinned.shape
        desired, stored = shape.number(self.spark.read.parquet(str(self.path)), NEW), pinned.read()
        digests = [scan_digest(frame, shape, prefix, 4096).digest for frame, prefix in ((desired, NEW), (stored, OLD))]
        differing = digests[0].differing(digests[1])
        wanted = bucket_set(differing, 4096)
        near = [in_buckets(f, shape, prefix, 4096, wanted) for f, prefix in ((desired, NEW), (stored, OLD))]
        hashes = differing_row_hashes(desired, stored, shape)
        far = [with_row_hashes(f, shape, prefix, hashes) for f, prefix in ((desired, NEW), (stored, OLD))]
        found = [
            multiset_changes(*near, shape),
            multiset_changes(desired, stored, shape),
            multiset_changes(*far, shape),
        ]
        if shape.is_keyed:
            found += [keyed_changes(*near, shape), keyed_changes(desired, stored, shape)]
        net = [self.net(changes, shape.width) for changes in found]
        assert all(each == net[0] for each in net)

    def net(self, changes: DataFrame, width: int) -> Counter[Any]:
        found = changes.toArrow()
        sides = []
        for prefix, diff, there in ((NEW, 1, "inserts"), (OLD, -1, "file")):
            kept = found.filter(found["inserts"] if there == "inserts" else found["file"].is_valid())
            side = kept.select([f"{prefix}{n}" for n in range(width)]).rename_columns(SCHEMA.names)
            sides.append(side.append_column("_diff", pa.array([diff] * side.num_rows, pa.int64())))
        return multiset(pa.concat_tables(sides))


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "multiset"])
@explore(6)
@given(data=st.data())
def test_contents_equal_the_source_after_any_history(
    spark: SparkSession, settings: Settings, shards: Shards, tmp_path: Path, *, keyed: bool, data: st.DataObject
) -> None:
    collection = Collection(spark, settings, shards, tmp_path, keyed=keyed)
    desired: list[Row] = []
    for step in range(3):
        for what in data.draw(st.lists(st.sampled_from(FOREIGN), max_size=1 if step else 0), label="foreign"):
            collection.disturb(what)
        replaced = data.draw(rows(keyed=keyed), label="source")
        kept = desired if keyed else desired[::2]
        keys = {(row["k"], row["file"]) for row in replaced} if keyed else set()
        desired = [row for row in kept if not keyed or (row["k"], row["file"]) not in keys] + replaced
        collection.write(desired)
        if step == 2 and (desired or collection.stored or is_soak()):  # the first history of all is without rows
            collection.check_that_all_comparisons_agree()
        collection.check(desired, collection.reconcile())
    again = collection.reconcile()
    assert (again.outcome, again.inserted, again.retracted) == (Outcome.UNCHANGED, 0, 0)
