"""Consolidates a log: one file with the contents replaces all updates; the contents stay as they are."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table.snapshots import Operation

from tidemark.errors import InputsGone
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.branch_commit import delete_files
from tidemark.iceberg.commit.holds import downgrade_since
from tidemark.iceberg.commit.publisher import Proposal, Publication
from tidemark.iceberg.commit.snapshot_builder import SnapshotChange
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.files.manifests import read_data_files
from tidemark.iceberg.reading.arrow import consolidate_arrow, scan_snapshot
from tidemark.iceberg.shard.column_names import TIME
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.state import CommitKind

FAIL_POINTS = ("consolidate.after-since", "consolidate.after-write")


def consolidate_log(writer: Writer, *, now_ms: int) -> bool:
    """Give up history before the last time, as far as holds allow, and rewrite the log without it.

    Times before ``since`` become ``since``, and updates that cancel each other out vanish. A process that has read up
    to a time not after ``since`` has to read the whole log again.

    Return whether the log was rewritten; not if it is one file already, or if another commit removed a file meanwhile.
    Raises as ``Writer.check_token``.
    """
    shard = writer.shard
    upper = shard.load().state.upper
    since = downgrade_since(shard, upper - 1, now_ms=now_ms) if isinstance(upper, int) and upper else 0
    fail_point("consolidate.after-since")
    head = shard.load()
    writer.check_token(head)
    old = frozenset(read_data_files(head.table.io, head.contents))
    if len(old) <= 1 or not isinstance(since, int):
        return False
    files = write_rows(head.table, _consolidated(head, since))
    fail_point("consolidate.after-write")
    publication = Publication(shard)
    try:
        for fresh in publication.heads():
            writer.check_token(fresh)
            if missing := old - frozenset(read_data_files(fresh.table.io, fresh.contents)):
                raise InputsGone(
                    f"{len(missing)} files of shard {shard.name!r} were taken away while they were rewritten"
                )
            state = publication.next_state(fresh.state, CommitKind.COMPACT)
            change = SnapshotChange(operation=Operation.OVERWRITE, added=files, removed=old)  # rows do vanish
            publication.commit(fresh, Proposal(state=state, main=change))
    except InputsGone:
        delete_files(head.table, [file.file_path for file in files])
        return False
    return True


def _consolidated(head: ShardHead, since: int) -> pa.Table:
    rows = scan_snapshot(head, head.contents)
    times = pc.max_element_wise(rows.column(TIME), pa.scalar(since, pa.int64()))
    rows = rows.set_column(rows.schema.get_field_index(TIME), TIME, times)
    return consolidate_arrow(rows, ["kind", "key", "value", TIME])
