"""Reading with Spark: contents now or at a time, and changes. Always from one pinned snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table.snapshots import Snapshot
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type

from tidemark.iceberg.reading.canonical import canonical, has_map
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.layout import origin_columns, user_column_names
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.time_travel import check_changes, check_open, pin_contents
from tidemark.spark.quoting import quoted

FILE, POSITION = "_file", "_pos"  # Iceberg's metadata columns


def read(
    spark: SparkSession, shard: Shard, as_of: int | None = None, *, with_time: bool = False, with_open: bool = False
) -> DataFrame:
    """Return the user's columns of the rows at the time ``as_of``: ms in ``[since, upper)``; None is now.

    ``with_time`` adds ``_time``, when the row appeared, in ms; NULL if only the change log of old contents is left. It
    adds ``_producer`` and ``_batch`` of an append-only shard. ``with_open`` adds the accepted rows that ``main`` does
    not show yet; only without ``as_of``.

    Raises:
        UsageError: If open rows of an older time are asked for.
        AsOfBeforeSince: If history at that time is gone.
        NotYetAvailable: If the time is not below the upper.
    """
    check_open(as_of, with_open=with_open)
    head = shard.load()
    pinned = pin_contents(head, as_of, shard=shard.name)
    columns = user_column_names(head.table.schema(), head.state.layout)
    if pinned.undo_above is None:
        wanted = [*columns, *origin_columns(head.table.schema(), head.state.layout)] if with_time else columns
        snapshots = [pinned.snapshot, *([head.open] if with_open and head.open is not None else [])]
        frames = [read_snapshot(spark, shard, head, snapshot).select(*map(quoted, wanted)) for snapshot in snapshots]
        return reduce(DataFrame.unionByName, frames)
    undone = _undo(spark, shard, head, pinned.snapshot, columns, above=pinned.undo_above)
    return undone if with_time else undone.drop(TIME)


def create_open_view(spark: SparkSession, shard: Shard) -> str:
    """Make the temporary view ``NAME_with_open``, of all accepted rows as of now, and return its name.

    Make the view anew to see later rows: both of its parts are of one moment, so that no row is in both or in none.
    """
    name = f"{shard.name}_with_open"
    read(spark, shard, with_open=True).createOrReplaceTempView(quoted(name))
    return name


def changes(spark: SparkSession, shard: Shard, from_: int, until: int | None = None) -> DataFrame:
    """Return the updates at times ``[from_, until)``: the user's columns, ``_time`` and ``_diff``, consolidated.

    Both times are in ms; ``from_`` is not below since, ``until`` not above the upper; ``until`` None is the upper.

    Raises:
        UsageError: If the interval is reversed or the shard has no change log.
        AsOfBeforeSince: If part of the interval lies before since.
        NotYetAvailable: If part of it is not final.
    """
    head = shard.load()
    end = check_changes(head, from_, until, shard=shard.name)
    columns = user_column_names(head.table.schema(), head.state.layout)
    return consolidate(read_updates(spark, shard, head, from_, end if isinstance(end, int) else None), [*columns, TIME])


def pinned(spark: SparkSession, shard: Shard, head: ShardHead) -> DataFrame:
    """Return the rows of ``head.contents``, to compute corrections against, with ``_time``, ``_file`` and ``_pos``."""
    return read_snapshot(spark, shard, head, head.contents, metadata_columns=(FILE, POSITION))


def read_snapshot(
    spark: SparkSession, shard: Shard, head: ShardHead, snapshot: Snapshot, *, metadata_columns: Sequence[str] = ()
) -> DataFrame:
    """Return all columns of one snapshot under the present schema: columns added since are NULL, renamed ones renamed.

    Spark reads a snapshot under the schema it was made with, so its columns are brought over by field id.
    """
    raw = spark.read.option("versionAsOf", snapshot.snapshot_id).table(shard.spark_name)
    return raw.select(*_project(head, snapshot), *metadata_columns)


def read_updates(spark: SparkSession, shard: Shard, head: ShardHead, from_: int, until: int | None) -> DataFrame:
    """Return the change log at times ``[from_, until)`` as it is stored, under the present schema; None: no end."""
    if head.updates is None:
        raise TypeError(f"{shard.name} has no change log")  # callers have checked the layout
    updates = read_snapshot(spark, shard, head, head.updates).where(F.col(TIME) >= from_)
    return updates if until is None else updates.where(F.col(TIME) < until)


def consolidate(updates: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Sum ``_diff`` over rows equal in ``columns`` and drop zeros.

    Rows are equal as GROUP BY sees them: NULL equals NULL, NaN equals NaN, and 0.0 equals -0.0.
    """
    return _sum_up(updates, columns, {DIFF: F.sum(DIFF)}).where(F.col(DIFF) != 0)


def _sum_up(rows: DataFrame, columns: Sequence[str], sums: Mapping[str, Column]) -> DataFrame:
    """Return ``columns`` and ``sums`` of each group of rows that are equal in ``columns``."""
    types = {field.name: field.dataType for field in rows.schema.fields}
    maps = [name for name in columns if has_map(types[name])]
    keys: list[Column | str] = [
        canonical(F.col(quoted(name)), types[name]).alias(f"_tidemark_key_{number}") if name in maps else quoted(name)
        for number, name in enumerate(columns)
    ]
    totals = [total.alias(name) for name, total in sums.items()]
    grouped = rows.groupBy(*keys).agg(*totals, *(F.first(quoted(name)).alias(name) for name in maps))
    return grouped.select(*map(quoted, [*columns, *sums]))


def negated(rows: DataFrame) -> DataFrame:
    """Return ``rows`` with opposite ``_diff``."""
    return rows.withColumn(DIFF, -F.col(DIFF))


def _undo(
    spark: SparkSession, shard: Shard, head: ShardHead, snapshot: Snapshot, columns: Sequence[str], *, above: int
) -> DataFrame:
    """Return the contents less the updates at times above ``above``: the user's columns and ``_time``, one row each."""
    present = read_snapshot(spark, shard, head, snapshot)
    rows = present.unionByName(negated(read_updates(spark, shard, head, above + 1, None)))
    appeared = F.min(F.when(F.col(TIME) <= above, F.col(TIME)))
    names = [quoted(name) for name in columns]
    counted = _sum_up(rows, columns, {DIFF: F.sum(DIFF), TIME: appeared}).where(F.col(DIFF) > 0)
    copies = F.explode(F.sequence(F.lit(1).cast("bigint"), F.col(DIFF))).alias("_copy")
    return counted.select(*names, TIME, copies).select(*names, TIME)


def _project(head: ShardHead, snapshot: Snapshot) -> list[Column]:
    metadata = head.table.metadata
    present = head.table.schema()
    schema_id = snapshot.schema_id
    then = metadata.schema_by_id(schema_id) if schema_id is not None else None
    if then is None or schema_id == metadata.current_schema_id:
        return [F.col(quoted(field.name)) for field in present.fields]
    names = {field.field_id: field.name for field in then.fields}
    types = {
        column.name: from_arrow_type(column.type) for column in schema_to_pyarrow(present, include_field_ids=False)
    }
    return [
        (F.col(quoted(names[field.field_id])) if field.field_id in names else F.lit(None))
        .cast(types[field.name])
        .alias(field.name)
        for field in present.fields
    ]
