"""The log layout: small typed updates, written and read in this process; the persist catalog is one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

from tidemark.errors import AsOfBeforeSince, NotYetAvailable
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.shard.layout import DIFF, TIME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from tidemark.iceberg.commit.publisher import Published
    from tidemark.iceberg.commit.writer import Writer
    from tidemark.iceberg.shard.head import ShardHead

LOG_SCHEMA = Schema(
    NestedField(1, "kind", StringType(), required=True),
    NestedField(2, "key", StringType(), required=True),
    NestedField(3, "value", StringType(), required=True),
)


class LogUpdate(NamedTuple):
    """One update of a log: ``value`` is JSON text, ``diff`` +1 or -1."""

    kind: str
    key: str
    value: str
    diff: int


def append_to_log(
    writer: Writer,
    updates: Sequence[LogUpdate],
    *,
    lower: int,
    time: int,
    commit_id: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> Published:
    """Publish ``updates`` at ``time`` if the log's upper is still ``lower``; the new upper is ``time + 1``.

    ``properties`` become table properties in the same commit: what a sensor is to read without opening the log.
    Raises as ``Writer.compare_and_append``.
    """
    table = writer.shard.load().table
    batch = Batch(added=write_updates(table, updates, time=time), schema_id=table.schema().schema_id)
    return writer.compare_and_append(batch, lower=lower, new_upper=time + 1, commit_id=commit_id, properties=properties)


def write_updates(table: Table, updates: Sequence[LogUpdate], *, time: int) -> tuple[DataFile, ...]:
    """Write ``updates`` at ``time`` as data files of a log; nothing becomes visible."""
    rows = {
        "kind": pa.array([update.kind for update in updates], pa.string()),
        "key": pa.array([update.key for update in updates], pa.string()),
        "value": pa.array([update.value for update in updates], pa.string()),
        TIME: pa.array([time] * len(updates), pa.int64()),
        DIFF: pa.array([update.diff for update in updates], pa.int64()),
    }
    return write_rows(table, pa.table(rows))


def read_log(head: ShardHead, *, as_of: int | None = None) -> Counter[tuple[str, str, str]]:
    """Return the contents of a log at ``as_of`` (default: now) as ``(kind, key, value)`` with multiplicities.

    Raises:
        AsOfBeforeSince: If history there is gone.
        NotYetAvailable: If ``as_of`` is not below the upper.
    """
    if as_of is not None and as_of < head.state.since:
        raise AsOfBeforeSince(f"history before {head.state.since} is gone, asked for {as_of}")
    if as_of is not None and not as_of < head.state.upper:
        raise NotYetAvailable(f"contents below {head.state.upper} are known, asked for {as_of}")
    scan = head.table.scan(snapshot_id=head.contents.snapshot_id)
    if as_of is not None:
        scan = scan.filter(f"{TIME} <= {as_of}")
    totals: Counter[tuple[str, str, str]] = Counter()
    for row in scan.to_arrow().to_pylist():
        totals[row["kind"], row["key"], row["value"]] += row[DIFF]
    return Counter({item: diff for item, diff in totals.items() if diff})
