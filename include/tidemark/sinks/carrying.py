"""Carries rows from a collection into a target that the run has claimed: the contents first, then what came since.

The order of the durable steps: history is held, rows and progress are committed in the target, and only then the hold
moves. A run that dies in between leaves a hold that is too old, which the next run moves.

More updates of one commit than a process should hold at once are summed up on disk for a log. A mirror then gets all
contents anew, piece by piece, in one transaction as with the first load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.collections.declarations.sink import SinkDeclaration, SinkMode
from tidemark.collections.deployment import AppliedSink, Deployment
from tidemark.collections.mode import refuse_when_read_only
from tidemark.errors import AsOfBeforeSince, HistoryGone, StaleState
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.reading.arrow import scan_updates
from tidemark.iceberg.shard.column_names import DIFF
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import NEVER, ShardKind
from tidemark.sinks.history import hold_history, refuse_dropped
from tidemark.sinks.large_loads import is_large
from tidemark.sinks.progress import Progress, check_epoch, known_columns
from tidemark.sinks.reading.appended_rows import AppendedCommit, list_commits
from tidemark.sinks.reading.net_changes import check_unique, net_by_key, order_updates
from tidemark.sinks.reading.rows import (
    TimeCut,
    appended_rows,
    carried_snapshot,
    columns_of,
    cut_commits,
    cut_times,
    first_rows,
    keyed_rows,
    read_keys,
)
from tidemark.sinks.reading.spooled_updates import spooled_updates
from tidemark.sinks.target import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAIL_POINTS = ("sink.held", "sink.carried", "sink.moved")
QUIET_MS = 3_600_000  # a target that nothing comes for learns the time so often, or it would hold history for ever
MOST_IN_MEMORY = 4_000_000  # updates: more of one transaction go to disk, or a mirror gets all contents anew
PIECE_ROWS = 65_536
DECLARE_AGAIN = "drop the sink, and declare it again with `existing: replace`, which loads all rows anew"

StartSpark = Callable[[], "SparkSession"]


@dataclass(slots=True, kw_only=True)
class Carrying:
    """One run of one sink: what it works on, and how far it came."""

    applied: AppliedSink
    writer: Writer  # that a switch of the mode fences, so that no hold is taken or moved after it
    target: Target
    deployment: Deployment
    progress: Progress
    is_key_kept: bool  # whether the collection itself keeps the key of the sink unique
    start_spark: StartSpark | None
    inserted: int = 0
    retracted: int = 0
    carried_bytes: int = 0  # of the rows in memory; 0 where Spark wrote them
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def sink(self) -> SinkDeclaration:
        return self.applied.declaration

    @property
    def shard(self) -> Shard:
        return self.writer.shard


def has_news(head: ShardHead, progress: Progress, sink: SinkDeclaration) -> bool:
    """Tell whether there are updates since the progress, or columns, or the time has to be told again.

    That is before somebody is warned of the age of the history that a target without news holds.
    """
    upper, time = head.state.upper, progress.time or 0
    is_late = not isinstance(upper, int) or upper - time >= min(QUIET_MS, sink.warn_after_ms // 2)
    return head.state.changed > time or is_late or not {*columns_of(head)} <= {*progress.columns}


def load(run: Carrying) -> None:
    """Carry the contents of now, after history is held from here on."""
    hold_history(run.shard, run.applied, deployment=run.deployment, writer=run.writer)
    fail_point("sink.held")
    _load_contents(run, _load_head(run))


def _load_contents(run: Carrying, head: ShardHead) -> None:
    """Let the target have the contents that ``head`` pins, and no other rows, in one transaction."""
    upper = head.state.open_upper(f"collection {run.sink.collection!r}")
    after = replace(run.progress, time=upper, snapshot=carried_snapshot(head), columns=columns_of(head))
    refuse_when_read_only(run.deployment, f"run of sink {run.sink.name!r}")
    if run.start_spark is not None and is_large(run.target, head):
        from tidemark.sinks.spark_load import load_with_spark  # noqa: PLC0415 - imports pyspark, for few runs

        loaded = load_with_spark(
            run.start_spark(),
            run.shard,
            head,
            run.target,
            before=run.progress,
            after=after,
            check=partial(_check_right, run),
        )
    else:
        loaded = _load_alone(run, after, head)
    run.inserted += loaded
    run.details["loaded"] = loaded
    _move_on(run, after)


def _load_alone(run: Carrying, after: Progress, head: ShardHead) -> int:
    """Carry the contents without Spark; return the number of rows."""
    sink, names = run.sink, [column.name for column in after.columns]
    if sink.mode is SinkMode.MIRROR:
        if not run.is_key_kept:
            _check_key(run, head)
        rows = keyed_rows(first_rows(head, names, time=None), sink.key_columns, where=f"sink {sink.name!r}")
    else:
        rows = first_rows(head, names, time=max((after.time or 0) - 1, 0))
    return run.target.load(run.progress, after, _until_checked(run, _measured(run, rows)))


def _until_checked(run: Carrying, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows; before their end, after which a target commits, check that the sink may still write.

    A target that is not there yet may be unable to keep a claim, so that neither a switch to read-only nor a drop can
    fence its first load.
    """
    yield from rows
    _check_right(run)


def _check_right(run: Carrying) -> None:
    """Raise ``ReadOnly`` or ``Dropped`` if the sink may not write any more."""
    refuse_when_read_only(run.deployment, f"run of sink {run.sink.name!r}")
    refuse_dropped(run.deployment, run.applied)


def follow(run: Carrying) -> bool:
    """Carry the updates since the progress, in one transaction or more; return whether there was anything to carry."""
    head = _load_head(run)
    start = run.progress.time
    assert start is not None, "the first contents are loaded"  # noqa: S101 - for mypy
    _keep_history(run, head, start)
    upper = head.state.open_upper(f"collection {run.sink.collection!r}")
    columns = columns_of(head)
    if not has_news(head, run.progress, run.sink):
        return False
    if head.state.layout is ShardKind.APPEND_ONLY:
        commits = list_commits(head, start, run.progress.snapshot, collection=run.sink.collection)
        *earlier, last = cut_commits(commits)
        for group in earlier:
            end = group[-1].state.open_upper("a commit")
            _append(run, head, group, time=end, snapshot=group[-1].snapshot.snapshot_id)
        _append(run, head, last, time=upper, snapshot=carried_snapshot(head))
        return True
    cuts = cut_times(head, start, upper)
    if run.sink.mode is SinkMode.MIRROR:
        if not run.is_key_kept:  # between, two rows could have one key
            cuts = [TimeCut(upper, sum(cut.updates for cut in cuts))]
        if run.target.reloads and max(cut.updates for cut in cuts) > _most_net(head):
            _load_contents(run, head)
            return True
        if not run.is_key_kept:
            _check_key(run, head)
    for end, updates in cuts:
        refuse_when_read_only(run.deployment, f"run of sink {run.sink.name!r}")
        after = replace(run.progress, time=end, columns=columns)
        if run.sink.mode is SinkMode.MIRROR:
            _carry_net(run, after, head, start)
        else:
            _carry_log(run, after, head, start, updates)
        _move_on(run, after)
        start = end
    return True


def _most_net(head: ShardHead) -> int:
    """Return of how many updates a mirror is told the net changes; of a huge collection a few times more."""
    return min(max(MOST_IN_MEMORY, head.row_count // 10), 5 * MOST_IN_MEMORY)


def _append(run: Carrying, head: ShardHead, commits: Sequence[AppendedCommit], *, time: int, snapshot: int) -> None:
    """Append the rows of the commits, which end at ``time`` and ``snapshot``, in one transaction."""
    refuse_when_read_only(run.deployment, f"run of sink {run.sink.name!r}")
    columns = columns_of(head)
    after = replace(run.progress, time=time, snapshot=snapshot, columns=columns)
    rows = appended_rows(head, commits, [column.name for column in columns])
    run.target.append(run.progress, after, _counted(run, rows))
    _move_on(run, after)


def _check_key(run: Carrying, head: ShardHead) -> None:
    """Refuse a key that two rows of the contents share, of which a mirror would lose one (``Refused``)."""
    check_unique(read_keys(head, run.sink.key_columns), where=f"sink {run.sink.name!r}")


def _carry_net(run: Carrying, after: Progress, head: ShardHead, start: int) -> None:
    """Write what the updates from ``start`` up to the time of ``after`` come to."""
    names, end = [column.name for column in after.columns], after.time
    net = net_by_key(scan_updates(head, start, end), names, run.sink.key_columns, where=f"sink {run.sink.name!r}")
    run.target.mirror(run.progress, after, net.deletes, net.upserts)
    run.carried_bytes += net.deletes.nbytes + net.upserts.nbytes
    run.inserted += net.upserts.num_rows
    run.retracted += net.deletes.num_rows


def _carry_log(run: Carrying, after: Progress, head: ShardHead, start: int, updates: int) -> None:
    """Append the updates from ``start`` up to the time of ``after``, which are about so many."""
    names, end = [column.name for column in after.columns], after.time
    assert end is not None  # noqa: S101 - for mypy
    if updates <= MOST_IN_MEMORY:
        ordered = order_updates(scan_updates(head, start, end), names)
        run.target.append(run.progress, after, _counted(run, iter(ordered.to_batches(max_chunksize=PIECE_ROWS))))
    else:
        with spooled_updates(head, start, end, names, run.sink.key_columns or names, updates=updates) as pieces:
            run.target.append(run.progress, after, _counted(run, pieces))


def _counted(run: Carrying, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in _measured(run, rows):
        diffs = batch.column(DIFF)
        run.inserted += pc.sum(pc.max_element_wise(diffs, 0), min_count=0).as_py()
        run.retracted -= pc.sum(pc.min_element_wise(diffs, 0), min_count=0).as_py()
        yield batch


def _measured(run: Carrying, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        run.carried_bytes += batch.nbytes
        yield batch


def _keep_history(run: Carrying, head: ShardHead, time: int) -> None:
    """See that history from the contents at ``time - 1`` on is held, whatever an earlier run, or a person, left."""
    since = head.state.since
    if not since <= time:
        raise _gone(run, time, since)
    present = head.state.holds.get(run.sink.hold)
    if present is None or present.expires_at_ms != NEVER or present.since != max(time - 1, 0):
        try:
            _hold_from(run, time)
        except AsOfBeforeSince as error:
            raise _gone(run, time, run.shard.load().state.since) from error


def _move_on(run: Carrying, after: Progress) -> None:
    """Note what the target has committed, and let go of the history before."""
    run.progress = replace(after, columns=known_columns(run.progress, after))
    fail_point("sink.carried")
    assert after.time is not None  # noqa: S101 - for mypy
    try:
        _hold_from(run, after.time)
    except AsOfBeforeSince as error:
        raise StaleState(f"another run of sink {run.sink.name!r} has come further", hint="run it again") from error
    fail_point("sink.moved")


def _hold_from(run: Carrying, time: int) -> None:
    """Hold the contents at ``time - 1``, from which the next updates are told, for ever."""
    since = run.shard.load().state.since
    start = time if since == time else max(time - 1, 0)
    hold_history(run.shard, run.applied, deployment=run.deployment, writer=run.writer, since=start)


def _gone(run: Carrying, time: int, since: object) -> HistoryGone:
    """Return the error for history that the target lacks; raise ``Fenced`` if another run has carried it meanwhile."""
    check_epoch(run.target.look(), run.progress, where=run.target.title)
    return HistoryGone(
        f"the updates of {run.sink.collection!r} in [{time}, {since}) are gone, and {run.target.title} lacks them",
        hint="the target or the collection was restored from a backup, or another tool took the hold "
        f"{run.sink.hold!r} out of the table: {DECLARE_AGAIN}",
    )


def _load_head(run: Carrying) -> ShardHead:
    head = run.shard.load()
    if str(head.table.metadata.table_uuid) != run.progress.owner.table_uuid:
        raise StaleState(f"the collection {run.sink.collection!r} was dropped and made anew during the run")
    return head
