"""Stages a Spark frame: its rows become data files on a staging branch.

The branch starts with an empty snapshot that has no parent; Spark appends one snapshot above the empty one. Spark
writes to the identifier ``table.branch_NAME``, which fails if the branch is missing. The alternatives are worse: an
append to a catalog's table ignores the write option ``branch``, so that the rows land on main (Iceberg 1.12.0), and
``spark.wap.branch`` is a setting of the whole session.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import BucketTransform

from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.branch_commit import attempts_beside, commit_beside
from tidemark.iceberg.commit.snapshot_builder import SnapshotBuilder, SnapshotChange
from tidemark.iceberg.shard.shard import Shard, naming_drop
from tidemark.iceberg.staging.branches import (
    STAGED_KIND,
    StagedBatch,
    drop_staged,
    put_on_branch,
    read_intact,
    read_just_staged,
    staged_summary,
    taken_error,
)
from tidemark.spark.quoting import quoted

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.table import Table
    from pyspark.sql import Column, DataFrame

FAIL_POINTS = ("stage.after-branch", "stage.after-rows")


def stage(
    shard: Shard, rows: DataFrame, *, branch: str, fingerprint: str = "", keeps_order: bool = False
) -> StagedBatch:
    """Write ``rows`` as data files onto ``branch``; main and updates stay as they are.

    ``rows`` have all columns of the table, the system columns included. ``branch`` comes from ``branch_name``.
    ``fingerprint`` names a plan, its inputs and their versions: an intact branch of that name with the same fingerprint
    and the present schema is returned as it is. Any other branch of that name is dropped. Without a fingerprint the
    rows are always written. ``keeps_order`` writes them in their order, whatever order the table asks for; rows of one
    bucket then have to lie together.

    Raises:
        InputsGone: If another process began to stage on ``branch`` meanwhile.
        Dropped: If the table was dropped meanwhile; nothing was written to one that was made anew.
        ConflictsUnsettled: If other commits kept winning.
    """
    head = shard.load()
    if fingerprint and (present := read_intact(head.table, branch, fingerprint)):
        return present
    if branch in head.staged_branches:
        drop_staged(shard, [branch], seen=head)
    _create_branch(shard, branch)
    fail_point("stage.after-branch")
    schema_id = head.table.metadata.current_schema_id
    partitioned = not head.table.spec().is_unpartitioned()
    writer = (
        rows.writeTo(f"{shard.spark_name}.`branch_{branch}`")
        .options(**{f"snapshot-property.{key}": value for key, value in staged_summary(fingerprint, schema_id).items()})
        # By default Spark partitions the rows of a sorted table by range, and computes them twice to sample them.
        .option("distribution-mode", "hash" if partitioned else "none")
        .option("write-format", "parquet")  # whatever format another tool has set
        .option("check-nullability", "false")  # computed columns count as nullable; required ones are still checked
    )
    if keeps_order:
        # Without an order of the table, Iceberg would keep a file open for each bucket.
        writer = writer.options(**{"use-table-distribution-and-ordering": "false", "fanout-enabled": "false"})
    with naming_drop(shard):
        writer.append()
    fail_point("stage.after-rows")
    return read_just_staged(shard, branch, fingerprint)


def cluster(rows: DataFrame, table: Table, columns: Sequence[str], *, parts: int | None = None) -> DataFrame:
    """Return the rows, sorted by ``columns`` in each part, for ``stage`` with ``keeps_order``.

    With ``parts`` each of so many parts has a range of the values, and the rows are computed twice to find the ranges.
    A bucket lies in one part, whatever ``parts`` says.
    """
    from pyspark.sql import functions as F  # noqa: PLC0415 - compaction imports this module without Spark

    order = [F.col(quoted(name)) for name in columns]
    if places := [_place_of(table, field) for field in table.spec().fields]:
        return rows.repartition(*places).sortWithinPartitions(*places, *order)
    placed = rows if parts is None else rows.repartitionByRange(parts, *order)
    return placed.sortWithinPartitions(*order)


def _place_of(table: Table, field: PartitionField) -> Column:
    """Return the bucket of a row, or what decides its place in a partition that another engine has asked for."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    name = quoted(table.schema().find_column_name(field.source_id) or "")
    if not isinstance(field.transform, BucketTransform):
        return F.col(name)
    return F.expr(f"tidemark.system.bucket({field.transform.num_buckets}, {name})")


def _create_branch(shard: Shard, branch: str) -> None:
    """Give ``branch`` an empty snapshot without a parent, so that Spark's snapshot above it holds no row of main."""
    bases: set[int] = set()
    for attempt in attempts_beside(shard, f"staging branch {branch!r}"):
        with attempt:
            head = shard.load()
            if head.staged_branches.get(branch) in bases:  # an earlier attempt, whose outcome was unknown, landed
                return
            if branch in head.table.metadata.refs:
                raise taken_error(shard, branch)
            builder = SnapshotBuilder(head.table)
            change = SnapshotChange(operation=Operation.APPEND, summary={"tidemark.kind": STAGED_KIND})
            base = builder.build(None, change)
            bases.add(base.snapshot_id)
            requirements, updates = put_on_branch(head, branch, base)
            commit_beside(shard, head, requirements, updates, builder=builder)
