"""Compaction: fewer and larger files, no deleted rows, no history before since; the contents stay as they are.

One commit of kind ``compact`` publishes the new files; if another commit touched the old files, they are discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions.parser import parse
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER_ID

from tidemark.errors import ConflictsUnsettled, Fenced, InputsGone, Sealed, Unreachable
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.branch_commit import delete_files
from tidemark.iceberg.commit.checks import bounds
from tidemark.iceberg.commit.publisher import Proposal, Publication
from tidemark.iceberg.commit.snapshot_builder import NOTHING, SnapshotChange
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import sort_columns, write_position_deletes, write_rows
from tidemark.iceberg.files.manifests import partition_of, read_data_files, read_delete_files
from tidemark.iceberg.files.row_positions import as_delete_rows, deleted_by_file, read_deleted_positions
from tidemark.iceberg.maintenance.compaction_plan import (
    CompactionPolicy,
    DeleteFileUse,
    FileUse,
    choose_data_files,
    choose_delete_files,
    chunk,
)
from tidemark.iceberg.reading.arrow import scan_tasks
from tidemark.iceberg.shard.branch_names import COMPACTION
from tidemark.iceberg.shard.column_names import TIME
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import CommitKind, ShardKind
from tidemark.iceberg.staging.branches import branch_name, drop_staged
from tidemark.iceberg.staging.frames import cluster, stage

if TYPE_CHECKING:
    from pyiceberg.types import PrimitiveType
    from pyspark.sql import DataFrame, SparkSession

FAIL_POINTS = ("compact.before-write", "compact.after-write")
DEFAULT_POLICY = CompactionPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """The result of one compaction."""

    outcome: str  # "compacted", "unchanged" (not worth it), "skipped" (foreign commits), "discarded" (inputs gone)
    files_before: int = 0  # data files and delete files taken away, on main and updates
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class Rewrite:
    """The rewriting of one branch: old files and new files. ``row_filter`` keeps rows of ``since`` and later."""

    snapshot: Snapshot
    tasks: dict[str, FileScanTask] = field(default_factory=dict)  # files to rewrite
    files: list[FileUse] = field(default_factory=list)  # the same files
    dropped: frozenset[str] = frozenset()  # removed without being read
    row_filter: str | None = None
    sorted_by: tuple[str, ...] = ()  # the columns; empty: as the table asks, and each file by itself
    pinned_deletes: frozenset[str] = frozenset()
    kept_positions: pa.Table | None = None
    sizes: dict[str, int] = field(default_factory=dict)  # of all old files
    added: tuple[DataFile, ...] = ()
    deletes: tuple[DataFile, ...] = ()
    branches: tuple[tuple[str, int], ...] = ()
    staged: tuple[DataFile, ...] = ()  # those of the added files that lie on branches
    changes_rows: bool = False  # whether a reader sees other rows in the new files

    @property
    def removed(self) -> frozenset[str]:
        return frozenset(self.tasks) | self.dropped

    @property
    def row_count(self) -> int:
        """The rows of the files to rewrite, without deleted ones."""
        return sum(use.rows - use.deleted_rows for use in self.files)

    def change(self, operation: Operation) -> SnapshotChange:
        return SnapshotChange(operation=operation, added=self.added, deletes=self.deletes, removed=self.removed)


def compact(
    writer: Writer,
    *,
    spark: SparkSession | None = None,
    policy: CompactionPolicy = DEFAULT_POLICY,
    cluster_by: Sequence[str] = (),
    check: Callable[[Sequence[FileUse]], None] = lambda _: None,
) -> Compaction:
    """Rewrite small files and files with deleted rows on main; trim updates to since and merge its small files.

    The tag ``tidemark-open`` is rewritten as main is. What is rewritten of main is sorted by the columns
    ``cluster_by``, then as the table asks, so that each new file and row group has few of the values.

    ``spark`` rewrites what is too much for the driver; without Spark the driver works in pieces. ``check`` sees the
    files to rewrite before anything is written, and may raise.
    Raises as ``Writer.check_token``, and ``ConflictsUnsettled`` if other commits kept winning.
    """
    shard = writer.shard
    head = shard.load()
    writer.check_token(head)
    if (reason := find_obstacle(head)) is not None:
        return Compaction(outcome="skipped", reason=reason)
    main = _plan_rows(head, head.contents, policy, cluster_by=cluster_by)
    updates = None if head.updates is None else _plan_updates(head, head.updates, policy)
    opened = None if head.open is None else _plan_rows(head, head.open, policy)
    rewrites = [each for each in (main, updates, opened) if each is not None]
    if not any(rewrite.removed for rewrite in rewrites):
        return Compaction(outcome="unchanged")
    check([use for rewrite in rewrites for use in rewrite.files])
    fail_point("compact.before-write")
    for rewrite in rewrites:
        _write(shard, head, rewrite, spark, policy)
    fail_point("compact.after-write")
    try:
        publish_rewrites(writer, main, updates, opened=opened)
    except InputsGone as error:
        discard_rewrites(shard, head, rewrites)
        return Compaction(outcome="discarded", reason=str(error))
    except (Fenced, Sealed, ConflictsUnsettled):
        with suppress(ConflictsUnsettled, Unreachable):  # the next maintenance discards the rest
            discard_rewrites(shard, head, rewrites)
        raise
    new = [file for rewrite in rewrites for file in (*rewrite.added, *rewrite.deletes)]
    return Compaction(
        outcome="compacted",
        files_before=sum(len(rewrite.removed) for rewrite in rewrites),
        files_after=len(new),
        bytes_before=sum(sum(rewrite.sizes.values()) for rewrite in rewrites),
        bytes_after=sum(file.file_size_in_bytes for file in new),
    )


def find_obstacle(head: ShardHead) -> str | None:
    """Return the reason why the files must not be rewritten now, or None.

    Rewriting files on top of foreign commits would make foreign rows look like ours. Foreign appends to an append-only
    shard are valid contents. But after somebody moved main by hand, they may want the hidden rows back: the tag on our
    last commit keeps these rows until our next commit.
    """
    if head.state.layout is ShardKind.DIFFERENTIAL:
        if foreign := head.foreign or head.foreign_updates:
            return f"{foreign}; the next reconcile resets or refuses that, as `on_foreign_commit` says"
        return None
    if head.foreign and not head.foreign.lies_on_own:
        return f"{head.foreign}; move main to where it belongs, or append on top of it"
    return None


def _plan_rows(
    head: ShardHead, snapshot: Snapshot, policy: CompactionPolicy, *, cluster_by: Sequence[str] = ()
) -> Rewrite:
    sorted_by = sort_columns(head.table, cluster_by)
    tasks = {task.file.file_path: task for task in head.table.scan(snapshot_id=snapshot.snapshot_id).plan_files()}
    delete_files_ = read_delete_files(head.table.io, snapshot)
    deletes = read_deleted_positions(head.table.io, snapshot)
    deleted = deleted_by_file(deletes)
    uses = [
        use_of(
            task,
            deleted_rows=len(deleted.get(path, ())),
            is_apart=_is_sorted_apart(task, head),
            smallest=_find_smallest(task, head, sorted_by),
        )
        for path, task in tasks.items()
    ]
    chosen = choose_data_files(uses, policy)
    staying = frozenset(tasks) - chosen
    delete_uses = [
        DeleteFileUse(path, partition_of(file), frozenset(deletes[path])) for path, file in delete_files_.items()
    ]
    choice = choose_delete_files(delete_uses, staying, policy)
    kept = None
    if choice.merged:
        merged = deleted_by_file({path: deletes[path] for path in choice.merged})
        kept = as_delete_rows({path: positions for path, positions in merged.items() if path in staying})
    dropped = choice.dangling | choice.merged
    sizes = {use.path: use.size_bytes for use in uses if use.path in chosen}
    return Rewrite(
        snapshot=snapshot,
        tasks={path: tasks[path] for path in chosen},
        files=[use for use in uses if use.path in chosen],
        sorted_by=sorted_by,
        dropped=dropped,
        pinned_deletes=frozenset(delete_files_),
        kept_positions=kept,
        sizes=sizes | {path: delete_files_[path].file_size_in_bytes for path in dropped},
    )


def _is_sorted_apart(task: FileScanTask, head: ShardHead) -> bool:
    """Tell whether a file is sorted otherwise than the table asks."""
    usual = {None, UNSORTED_SORT_ORDER_ID, head.table.metadata.default_sort_order_id}
    return task.file.sort_order_id not in usual


def _find_smallest(task: FileScanTask, head: ShardHead, sorted_by: Sequence[str]) -> Any:
    """Return the smallest value of the first column to sort by; None if the file does not tell it."""
    if not sorted_by:
        return None
    column = head.table.schema().find_field(sorted_by[0])
    bound = task.file.lower_bounds.get(column.field_id)
    return None if bound is None else from_bytes(cast("PrimitiveType", column.field_type), bound)


def use_of(task: FileScanTask, *, deleted_rows: int = 0, is_apart: bool = False, smallest: Any = None) -> FileUse:
    """Return the data file of a task, as the choice of files sees it."""
    file = task.file
    return FileUse(
        path=file.file_path,
        size_bytes=file.file_size_in_bytes,
        rows=file.record_count,
        deleted_rows=deleted_rows,
        partition=partition_of(file),
        is_apart=is_apart,
        smallest=smallest,
    )


def _plan_updates(head: ShardHead, snapshot: Snapshot, policy: CompactionPolicy) -> Rewrite:
    since = head.state.since
    schema = head.table.schema()
    tasks = {task.file.file_path: task for task in head.table.scan(snapshot_id=snapshot.snapshot_id).plan_files()}
    too_old = frozenset(path for path, task in tasks.items() if bounds(task.file, schema, TIME)[1] < since)
    uses = [use_of(task) for path, task in tasks.items() if path not in too_old]
    chosen = choose_data_files(uses, policy)
    straddles = any(bounds(tasks[path].file, schema, TIME)[0] < since for path in chosen)
    return Rewrite(
        snapshot=snapshot,
        tasks={path: tasks[path] for path in chosen},
        files=[use for use in uses if use.path in chosen],
        dropped=too_old,
        row_filter=f"{TIME} >= {since}" if straddles else None,
        sizes={path: tasks[path].file.file_size_in_bytes for path in chosen | too_old},
    )


def _write(
    shard: Shard, head: ShardHead, rewrite: Rewrite, spark: SparkSession | None, policy: CompactionPolicy
) -> None:
    together = [use for use in rewrite.files if not use.is_apart]
    for use in (use for use in rewrite.files if use.is_apart):  # each by itself, which keeps its order
        task = rewrite.tasks[use.path]
        rewrite.added += write_rows(head.table, scan_tasks(head, [task]), order_id=task.file.sort_order_id)
    if spark is not None and sum(use.size_bytes for use in together) > policy.driver_bytes:
        _write_with_spark(shard, head, rewrite, spark, policy)
    else:
        row_filter = parse(rewrite.row_filter) if rewrite.row_filter else None
        for group in chunk(together, policy.chunk_bytes):
            tasks = [rewrite.tasks[use.path] for use in group]
            rows = scan_tasks(head, tasks, row_filter=row_filter)
            rewrite.added += write_rows(head.table, rows, cluster_by=rewrite.sorted_by)
    if rewrite.kept_positions is not None:
        live = read_data_files(head.table.io, rewrite.snapshot)
        rewrite.deletes = write_position_deletes(head.table, rewrite.kept_positions, live)


def read_rows_of(
    spark: SparkSession, shard: Shard, head: ShardHead, rewrite: Rewrite, *, places: Sequence[str] = ()
) -> DataFrame:
    """Return the live rows of the files to rewrite, with all columns, and with the metadata columns ``places``."""
    from pyspark.sql import functions as F  # noqa: PLC0415 - the driver alone compacts small tables, without Spark

    from tidemark.iceberg.reading.spark import FILE, read_snapshot  # noqa: PLC0415

    if rewrite.tasks.keys() == read_data_files(head.table.io, rewrite.snapshot).keys():
        return read_snapshot(spark, shard, head, rewrite.snapshot, metadata_columns=places)
    rows = read_snapshot(spark, shard, head, rewrite.snapshot, metadata_columns=tuple({FILE, *places}))
    # A join, because Iceberg warns about every filter on its metadata columns that it cannot push down.
    chosen = spark.createDataFrame([(path,) for path in sorted(rewrite.tasks)], f"{FILE} string")
    found = rows.join(F.broadcast(chosen), on=FILE, how="left_semi")
    return found if FILE in places else found.drop(FILE)


def _write_with_spark(
    shard: Shard, head: ShardHead, rewrite: Rewrite, spark: SparkSession, policy: CompactionPolicy
) -> None:
    together = {use.path: rewrite.tasks[use.path] for use in rewrite.files if not use.is_apart}
    rows = read_rows_of(spark, shard, head, replace(rewrite, tasks=together))
    if rewrite.row_filter:
        rows = rows.where(rewrite.row_filter)
    if rewrite.sorted_by:
        size = sum(use.size_bytes for use in rewrite.files if not use.is_apart)
        rows = cluster(rows, head.table, rewrite.sorted_by, parts=ceil(size / policy.chunk_bytes))
    branch = branch_name(generation=head.state.token.generation, writer=COMPACTION, batch=str(uuid4()))
    staged = stage(shard, rows, branch=branch, keeps_order=bool(rewrite.sorted_by))
    rewrite.added, rewrite.staged = (*rewrite.added, *staged.files), staged.files
    rewrite.branches = ((staged.branch, staged.snapshot_id),)


def publish_rewrites(
    writer: Writer,
    main: Rewrite,
    updates: Rewrite | None = None,
    *,
    opened: Rewrite | None = None,
    describe: Callable[[ShardHead], Mapping[str, str]] | None = None,
    now_ms: int = 0,
) -> None:
    """Publish the new files in the place of the old ones. ``opened`` is the rewriting of the tag ``tidemark-open``.

    ``describe`` returns the table properties that the same commit sets on top of a head, or raises to refuse. The upper
    then moves above ``now_ms``: who computed other properties from the head before must compute them again.

    Raises:
        InputsGone: If an old file is gone, or rows of the old files were deleted since they were read.
        ConflictsUnsettled: If other commits kept winning.
        Others as ``Writer.check_token``.
    """
    branches = tuple(branch for each in (main, updates, opened) if each is not None for branch in each.branches)
    main_change = NOTHING
    if main.removed:
        main_change = main.change(Operation.OVERWRITE if main.changes_rows else Operation.REPLACE)
    elif main.added:
        main_change = main.change(Operation.APPEND)
    updates_change = None
    if updates and updates.removed:
        # Trimming removes rows, which a replacement must not do.
        trims = updates.dropped or updates.row_filter
        updates_change = updates.change(Operation.OVERWRITE if trims else Operation.REPLACE)
    open_change = None
    if opened and opened.removed:
        open_change = opened.change(Operation.OVERWRITE if opened.changes_rows else Operation.REPLACE)
    publication = Publication(writer.shard)
    for head in publication.heads():
        writer.check_token(head)
        _check_inputs(head, main, updates, opened)
        state = publication.next_state(head.state, CommitKind.COMPACT)
        properties: Mapping[str, str] = {}
        if describe is not None:
            state, properties = replace(state, upper=head.state.next_upper(now_ms)), describe(head)
        proposal = Proposal(
            state=state,
            main=main_change,
            updates=updates_change,
            open=open_change,
            branches=branches,
            set_properties=properties,
        )
        publication.commit(head, proposal)


def _check_inputs(head: ShardHead, main: Rewrite, updates: Rewrite | None, opened: Rewrite | None) -> None:
    """Raise ``InputsGone`` if an old file is gone, or rows of the old files were deleted since they were read."""
    if (reason := find_obstacle(head)) is not None:
        raise InputsGone(f"another engine wrote meanwhile: {reason}")
    io = head.table.io
    for snapshot, rewrite in ((head.contents, main), (head.open, opened)):
        if rewrite is None or snapshot is None or snapshot.snapshot_id == rewrite.snapshot.snapshot_id:
            continue
        live_deletes = frozenset(read_delete_files(io, snapshot))
        live = live_deletes | frozenset(read_data_files(io, snapshot))
        _require(rewrite.removed, live)
        if rewrite.tasks and live_deletes - rewrite.pinned_deletes:
            raise InputsGone("rows were deleted while they were rewritten")
    if opened is not None and opened.removed and head.open is None:
        raise InputsGone("the tag of the open rows was removed while they were rewritten")
    if updates is not None and head.updates is not None and head.updates.snapshot_id != updates.snapshot.snapshot_id:
        _require(updates.removed, frozenset(read_data_files(io, head.updates)))


def _require(wanted: frozenset[str], live: frozenset[str]) -> None:
    if missing := wanted - live:
        raise InputsGone(f"{len(missing)} files were taken away while they were rewritten, for example {min(missing)}")


def discard_rewrites(shard: Shard, head: ShardHead, rewrites: Sequence[Rewrite]) -> None:
    """Delete what was written for rewrites that nobody publishes."""
    for rewrite in rewrites:
        if rewrite.branches:
            drop_staged(shard, [branch for branch, _ in rewrite.branches])
        staged = {file.file_path for file in rewrite.staged}
        delete_files(head.table, [file.file_path for file in rewrite.added if file.file_path not in staged])
        delete_files(head.table, [file.file_path for file in rewrite.deletes])
