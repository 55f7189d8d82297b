"""The three table layouts: which system columns a shard has, and how it is partitioned and sorted (design §4.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FixedType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from tidemark.errors import ConfigurationInvalid
from tidemark.iceberg.shard.column_names import BATCH, DIFF, ENTRY, PRODUCER, TIME
from tidemark.iceberg.shard.state import ShardKind

_REQUIRED: dict[ShardKind, tuple[str, ...]] = {
    ShardKind.DIFFERENTIAL: (TIME, DIFF),
    ShardKind.APPEND_ONLY: (PRODUCER, BATCH),
    ShardKind.LOG: (TIME, DIFF),
}
# What rows out of a write buffer bear besides: where event times tell what is persisted, and in the latest row per key.
_OPTIONAL: dict[ShardKind, tuple[str, ...]] = {
    ShardKind.DIFFERENTIAL: (PRODUCER,),
    ShardKind.APPEND_ONLY: (ENTRY,),
    ShardKind.LOG: (),
}
SYSTEM_COLUMNS = {layout: (*_REQUIRED[layout], *_OPTIONAL[layout]) for layout in ShardKind}
_COLUMN_TYPES: dict[str, PrimitiveType] = {
    TIME: LongType(),
    DIFF: LongType(),
    PRODUCER: StringType(),
    BATCH: LongType(),
    ENTRY: LongType(),
}
_BUCKETABLE = (
    IntegerType, LongType, DecimalType, DateType, TimeType, TimestampType, TimestamptzType, StringType, UUIDType,
    FixedType, BinaryType,
)  # fmt: skip  # what the specification lets `bucket` take: no floats, no booleans

_METRICS = "write.metadata.metrics.column."
ROW_GROUP_BYTES = "write.parquet.row-group-size-bytes"
TABLE_PROPERTIES = {
    "format-version": "2",
    "write.wap.enabled": "true",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "1",  # the default 3 takes a tenth longer to write and saves 2 % of the size
    # Spark leaves out whole groups whose statistics have none of the rows that a run looks for.
    ROW_GROUP_BYTES: str(16 << 20),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    "write.metadata.metrics.default": "truncate(16)",
    # Whatever the default, the publisher proves times and diffs from statistics.
    "write.metadata.metrics.column._time": "full",
    "write.metadata.metrics.column._diff": "full",
    # Spark's stages onto branches get in each other's way, and their rows are written by the time they commit.
    "commit.retry.num-retries": "20",
    "commit.retry.max-wait-ms": "2000",
    # Ours to expire: holds and since decide what history may go.
    "history.expire.min-snapshots-to-keep": "10",
}
_APPEND_ONLY_PROPERTIES = {
    # All rows of a batch have the same producer: its statistics and dictionary cost a large append 6 %, and the
    # statistics of ``_batch`` say as much.
    f"write.parquet.stats-enabled.column.{PRODUCER}": "false",
    f"write.parquet.dict-enabled.column.{PRODUCER}": "false",
}


def table_properties(layout: ShardKind) -> dict[str, str]:
    """Return the properties of a new table of the layout.

    Spark refuses to alter a table that asks for metrics of a column that is not there.
    """
    others = stray_properties(TABLE_PROPERTIES, layout)
    properties = {name: value for name, value in TABLE_PROPERTIES.items() if name not in others}
    return properties | (_APPEND_ONLY_PROPERTIES if layout is ShardKind.APPEND_ONLY else {})


def stray_properties(properties: Iterable[str], layout: ShardKind) -> list[str]:
    """Return those of the properties that ask for metrics of system columns that the layout does not have."""
    others = {f"{_METRICS}{name}" for name in _COLUMN_TYPES.keys() - {*SYSTEM_COLUMNS[layout]}}
    return sorted(others.intersection(properties))


def table_schema(user_columns: Schema, layout: ShardKind, *, of_buffer: bool = False) -> Schema:
    """Return the user's columns followed by the system columns; ``ConfigurationInvalid`` if names clash.

    ``of_buffer`` adds those columns that only rows out of a write buffer need.
    """
    clashes = {field.name for field in user_columns.fields} & set(_COLUMN_TYPES)
    if clashes:
        raise ConfigurationInvalid(
            f"column names {', '.join(sorted(clashes))} are Tidemark's own", hint="rename them in the source's SQL"
        )
    next_id = user_columns.highest_field_id + 1
    required = _REQUIRED[layout]
    system = [
        NestedField(next_id + offset, name, _COLUMN_TYPES[name], required=name in required)
        for offset, name in enumerate(SYSTEM_COLUMNS[layout] if of_buffer else required)
    ]
    return Schema(*user_columns.fields, *system)


def user_column_names(schema: Schema, layout: ShardKind) -> list[str]:
    """Return the names of the columns that are the user's, in order."""
    system = SYSTEM_COLUMNS[layout]
    return [field.name for field in schema.fields if field.name not in system]


def origin_columns(schema: Schema, layout: ShardKind) -> list[str]:
    """Return the columns that say where a row comes from: its batch and entry, or the time at which it appeared."""
    if layout is not ShardKind.APPEND_ONLY:
        return [TIME]
    return [name for name in SYSTEM_COLUMNS[layout] if name in schema.column_names]


def partition_spec(schema: Schema, key: Sequence[str], buckets: int) -> PartitionSpec:
    """Return ``bucket(buckets, column)`` on the first key column that can be bucketed; unpartitioned for one bucket."""
    if buckets <= 1:
        return UNPARTITIONED_PARTITION_SPEC
    for name in key:
        field = schema.find_field(name)
        if isinstance(field.field_type, _BUCKETABLE):
            transform: BucketTransform[Any] = BucketTransform(num_buckets=buckets)
            return PartitionSpec(PartitionField(field.field_id, 1000, transform, f"{name}_bucket"))
    return UNPARTITIONED_PARTITION_SPEC


def sort_order(schema: Schema, key: Sequence[str]) -> SortOrder:
    """Return the order by the primitive key columns."""
    fields = [schema.find_field(name) for name in key]
    sorts = [
        SortField(field.field_id, IdentityTransform())
        for field in fields
        if isinstance(field.field_type, PrimitiveType)
    ]
    return SortOrder(*sorts) if sorts else UNSORTED_SORT_ORDER
