"""Spark writes a large correction: added rows, retracted rows, and position deletes of the retracted rows on main."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

import pyarrow.parquet as pq
from pyarrow.fs import FileSelector
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.files.data_files import FILE_PATH_ID, POSITION_ID, not_live, position_delete_file, sort_columns
from tidemark.iceberg.files.manifests import Partition, filesystem_of, partition_of, read_data_files
from tidemark.iceberg.reading.spark import FILE, POSITION
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.staging.branches import branch_name
from tidemark.iceberg.staging.frames import cluster, stage
from tidemark.spark.quoting import quoted

FAIL_POINTS = ("stage.before-retracted", "stage.before-deletes", "stage.after-deletes")
_GROUP = "_group"


def stage_corrections(
    shard: Shard,
    head: ShardHead,
    *,
    added: DataFrame | None,
    retracted: DataFrame | None,
    cluster_by: Sequence[str] = (),
    time: int,
    generation: int,
    writer: str,
    batch: str,
) -> Batch:
    """Stage a correction of a differential shard and return it as a batch, which the caller publishes or drops.

    ``added`` has the user's columns of the rows to add, or is None. ``retracted`` has the user's columns, ``_file`` and
    ``_pos`` of the rows to remove from ``head.contents``, or is None; Spark computes this frame twice, so persist a
    costly one. Each task sorts the rows to add by ``cluster_by``, then as the table asks. ``time`` (in ms) is the one
    time of the correction. ``generation``, ``writer`` and ``batch`` name the branches; a correction of the same name
    starts over.

    Raises ``InputsGone`` if a row to retract lies in a file that ``head.contents`` does not have.
    """
    pieces: dict[str, tuple[DataFile, ...]] = {"added": (), "retracted": ()}
    branches: list[tuple[str, int]] = []
    for place, rows, diff in (("added", added, 1), ("retracted", retracted, -1)):
        if rows is None:
            continue
        if place == "retracted":
            fail_point("stage.before-retracted")
        branch = branch_name(generation=generation, writer=writer, batch=f"{batch}-{place}")
        updates = _as_updates(rows, head, time=time, diff=diff)
        is_clustered = place == "added" and bool(cluster_by)
        if is_clustered:
            updates = cluster(updates, head.table, sort_columns(head.table, cluster_by))
        staged = stage(shard, updates, branch=branch, keeps_order=is_clustered)
        pieces[place] = staged.files
        branches.append((staged.branch, staged.snapshot_id))
    deletes: tuple[DataFile, ...] = ()
    deleted_from: frozenset[str] = frozenset()
    if retracted is not None:
        fail_point("stage.before-deletes")
        deletes, deleted_from = write_deletes_with_spark(retracted, head)
        fail_point("stage.after-deletes")
    return Batch(
        added=pieces["added"],
        retracted=pieces["retracted"],
        deletes=deletes,
        pinned_snapshot_id=head.contents.snapshot_id,
        deleted_from=deleted_from,
        schema_id=head.table.metadata.current_schema_id,
        branches=tuple(branches),
    )


def write_deletes_with_spark(rows: DataFrame, head: ShardHead) -> tuple[tuple[DataFile, ...], frozenset[str]]:
    """Write ``_file`` and ``_pos`` of ``rows`` as position deletes, as ``write_position_deletes`` does in this process.

    The files are plain Parquet with the field ids that the Iceberg specification reserves, sorted by path and position.
    A file deletes from the data of one partition only, as readers expect. Nothing is committed. Return the delete
    files, and the paths of the data files that they name. Raises ``InputsGone`` if such a file is not live in
    ``head.contents``.
    """
    table = head.table
    data_files = read_data_files(table.io, head.contents)
    partitions = list(dict.fromkeys(map(partition_of, data_files.values())))
    numbers = {partition: number for number, partition in enumerate(partitions)}
    known = rows.sparkSession.createDataFrame(
        [(path, numbers[partition_of(file)]) for path, file in data_files.items()], f"{FILE} string, {_GROUP} int"
    )
    folder = table.location_provider().new_data_location(f"deletes-{uuid4()}")
    positions = (
        rows.select(FILE, POSITION)
        .join(F.broadcast(known), on=FILE, how="left")
        .select(
            F.coalesce(_GROUP, F.lit(-1)).alias(_GROUP),  # -1: not a live file; `_register` refuses it
            F.col(FILE).alias("file_path", metadata={"parquet.field.id": FILE_PATH_ID}),
            F.col(POSITION).cast("bigint").alias("pos", metadata={"parquet.field.id": POSITION_ID}),
        )
        .repartition(_GROUP, "file_path")
        .sortWithinPartitions(_GROUP, "file_path", "pos")
    )
    (
        positions.write.partitionBy(_GROUP)
        .option("compression", "zstd")
        .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")  # no _SUCCESS file among the data
        .parquet(_for_hadoop(folder))
    )
    return _register(table, folder, partitions)


def _as_updates(rows: DataFrame, head: ShardHead, *, time: int, diff: int) -> DataFrame:
    columns = [field.name for field in head.table.schema().fields if field.name not in {TIME, DIFF}]
    stamps = [F.lit(time).cast("bigint").alias(TIME), F.lit(diff).cast("bigint").alias(DIFF)]
    return rows.select(*[F.col(quoted(name)) for name in columns], *stamps)


def _for_hadoop(location: str) -> str:
    # Iceberg's own S3 client takes s3://. Spark's Parquet writer uses Hadoop's client, which takes s3a://.
    return "s3a://" + location.removeprefix("s3://") if location.startswith("s3://") else location


def _register(
    table: Table, folder: str, partitions: Sequence[Partition]
) -> tuple[tuple[DataFile, ...], frozenset[str]]:
    """Describe the files that Spark left below ``folder``, from their footers and paths."""
    files, named = [], set()
    filesystem, root = filesystem_of(table, folder)
    for info in filesystem.get_file_info(FileSelector(root, recursive=True, allow_not_found=True)):
        if not info.is_file or not info.path.endswith(".parquet"):
            continue
        with filesystem.open_input_file(info.path) as source:
            paths = pq.read_table(source, columns=["file_path"], read_dictionary=["file_path"]).column(0)
        number = int(info.path.rpartition(f"{_GROUP}=")[2].partition("/")[0])
        if number < 0:
            raise not_live(table, paths[0].as_py())
        distinct = paths.unique().to_pylist()
        named.update(distinct)
        path = folder + info.path.removeprefix(root)
        files.append(
            position_delete_file(path, distinct, size=info.size, count=len(paths), partition=partitions[number])
        )
    return tuple(sorted(files, key=lambda file: file.file_path)), frozenset(named)
