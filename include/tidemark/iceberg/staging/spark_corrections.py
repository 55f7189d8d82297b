"""Large corrections written by Spark: added rows, retracted rows, and the position deletes that take these off main."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow.parquet as pq
from pyiceberg.typedef import Record
from pyspark.sql import functions as F

from tidemark.errors import InputsGone
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.files.data_files import FILE_PATH_ID, POSITION_ID, position_delete_file
from tidemark.iceberg.files.manifests import partition_of, read_data_files
from tidemark.iceberg.reading.spark import FILE, POSITION
from tidemark.iceberg.shard.layout import DIFF, TIME
from tidemark.iceberg.staging.branches import branch_name, stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.iceberg.shard.shard import Shard

FAIL_POINTS = ("stage.before-retracted", "stage.before-deletes", "stage.after-deletes")
_GROUP = "_group"


def stage_corrections(
    shard: Shard,
    head: ShardHead,
    *,
    added: DataFrame | None,
    retracted: DataFrame | None,
    time: int,
    generation: int,
    writer: str,
    batch: str,
) -> Batch:
    """Stage corrections of a differential shard and return them as a batch, to be published or dropped.

    Args:
        shard: The shard.
        head: What the corrections were computed against; ``retracted`` names rows of ``head.contents``.
        added: The user's columns, one row per row to add; None for none.
        retracted: The user's columns, ``_file`` and ``_pos``, one row per stored row to take away; None for none. Used
            twice, so it should be cheap or persisted.
        time: The one time of the corrections, in ms.
        generation: The writer's deployment.
        writer: Who stages; a part of the branches' names.
        batch: Names these corrections; a part of the branches' names. Staging again under the name starts over.

    Raises:
        InputsGone: If a row to retract lies in a file that the pinned snapshot does not have.
    """
    pieces: dict[str, tuple[DataFile, ...]] = {"added": (), "retracted": ()}
    branches: list[tuple[str, int]] = []
    for place, rows, diff in (("added", added, 1), ("retracted", retracted, -1)):
        if rows is None:
            continue
        if place == "retracted":
            fail_point("stage.before-retracted")
        branch = branch_name(generation=generation, writer=writer, batch=f"{batch}-{place}")
        staged = stage(shard, _as_updates(rows, head, time=time, diff=diff), branch=branch)
        pieces[place] = staged.files
        branches.append((staged.branch, staged.snapshot_id))
    deletes: tuple[DataFile, ...] = ()
    deleted_from: frozenset[str] = frozenset()
    if retracted is not None:
        fail_point("stage.before-deletes")
        deletes, deleted_from = write_position_deletes(retracted, head)
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


def write_position_deletes(rows: DataFrame, head: ShardHead) -> tuple[tuple[DataFile, ...], frozenset[str]]:
    """Write ``_file`` and ``_pos`` of ``rows`` as position deletes, with Spark and without a commit.

    Plain Parquet with the field ids that the Iceberg specification reserves, sorted by path and position; each file
    deletes from the data of one partition only, as readers expect.

    Returns:
        The delete files, and the paths of the data files that they name.

    Raises:
        InputsGone: If a path is not a live data file of ``head.contents``.
    """
    table = head.table
    data_files = read_data_files(table.io, head.contents)
    groups = _partitions(data_files)
    numbers = {key: number for number, key in enumerate(groups)}
    spark = rows.sparkSession
    known = spark.createDataFrame(
        [(path, numbers[partition_of(file)]) for path, file in data_files.items()], f"{FILE} string, {_GROUP} int"
    )
    folder = table.location_provider().new_data_location(f"deletes-{uuid4()}")
    positions = (
        rows.select(FILE, POSITION)
        .join(F.broadcast(known), on=FILE, how="left")
        .select(
            F.coalesce(_GROUP, F.lit(-1)).alias(_GROUP),  # found below and refused
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
    return _register(table, folder, list(groups))


def _as_updates(rows: DataFrame, head: ShardHead, *, time: int, diff: int) -> DataFrame:
    columns = [field.name for field in head.table.schema().fields if field.name not in {TIME, DIFF}]
    stamps = [F.lit(time).cast("bigint").alias(TIME), F.lit(diff).cast("bigint").alias(DIFF)]
    return rows.select(*[F.col("`" + name.replace("`", "``") + "`") for name in columns], *stamps)


def _partitions(data_files: Mapping[str, DataFile]) -> dict[tuple[int, tuple[object, ...]], list[str]]:
    groups: defaultdict[tuple[int, tuple[object, ...]], list[str]] = defaultdict(list)
    for path, file in data_files.items():
        groups[partition_of(file)].append(path)
    return dict(groups)


def _for_hadoop(location: str) -> str:
    # Iceberg's own S3 client takes s3://, Spark's plain Parquet writer goes through Hadoop's, which is called s3a.
    return "s3a://" + location.removeprefix("s3://") if location.startswith("s3://") else location


def _register(
    table: Table, folder: str, groups: Sequence[tuple[int, tuple[object, ...]]]
) -> tuple[tuple[DataFile, ...], frozenset[str]]:
    """Describe the files that Spark left below ``folder``, from their footers and paths."""
    files, named = [], set()
    filesystem, root = _filesystem(table, folder)
    for path, size in _list_parquet(filesystem, root):
        number = int(path.rpartition(f"{_GROUP}=")[2].partition("/")[0])
        with filesystem.open_input_file(path) as source:
            paths = pq.read_table(source, columns=["file_path"], read_dictionary=["file_path"]).column(0)
        if number < 0:
            raise InputsGone(f"{paths[0].as_py()} is not a live data file of {'.'.join(table.name())} any more")
        spec_id, partition = groups[number]
        distinct = paths.unique().to_pylist()
        named.update(distinct)
        files.append(
            position_delete_file(
                path=folder + path.removeprefix(root),
                size=size,
                count=len(paths),
                spec_id=spec_id,
                partition=Record(*partition),
                first_path=min(distinct),
                last_path=max(distinct),
            )
        )
    return tuple(files), frozenset(named)


def _filesystem(table: Table, location: str) -> tuple[pa.fs.FileSystem, str]:
    from pyiceberg.io.pyarrow import PyArrowFileIO  # noqa: PLC0415

    scheme, netloc, path = PyArrowFileIO.parse_location(location)
    return PyArrowFileIO(table.io.properties).fs_by_scheme(scheme, netloc), path


def _list_parquet(filesystem: pa.fs.FileSystem, root: str) -> list[tuple[str, int]]:
    import pyarrow.fs as pafs  # noqa: PLC0415

    found = filesystem.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True))
    return sorted((each.path, each.size) for each in found if each.is_file and each.path.endswith(".parquet"))
