"""Runs sinks: each asks its target how far it came, and carries what came since, exactly once.

The order of the durable steps: the target is claimed, history is held, rows and progress are committed in the target,
and only then the hold moves. A run that dies in between leaves a hold that is too old, which the next run moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.clock import Clock
from tidemark.collections.declarations.sink import SinkDeclaration, SinkMode
from tidemark.collections.deployment import AppliedSink, Deployment, Mode
from tidemark.collections.holds import moment_text
from tidemark.collections.isolation import run_one_by_one
from tidemark.collections.mode import read_mode, refuse_when_read_only
from tidemark.errors import (
    AsOfBeforeSince,
    CatalogOutOfSync,
    Dropped,
    HistoryGone,
    NotPossible,
    StaleState,
    UnknownSink,
)
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.reading.arrow import scan_updates
from tidemark.iceberg.shard.column_names import DIFF
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import NEVER, ShardKind
from tidemark.iceberg.shards import Shards
from tidemark.report import SKIPPED_BECAUSE, CollectionReport, Outcome, Report
from tidemark.settings import Settings
from tidemark.sinks.appended_rows import AppendedCommit, list_commits
from tidemark.sinks.history import hold_history, is_applied, refuse_dropped
from tidemark.sinks.large_loads import is_large, owner_of
from tidemark.sinks.net_changes import check_unique, net_by_key, order_updates
from tidemark.sinks.progress import Owner, Progress, check_epoch, check_owner, known_columns, lag_ms
from tidemark.sinks.rows import (
    appended_rows,
    carried_snapshot,
    columns_of,
    cut_commits,
    cut_times,
    first_rows,
    keyed_rows,
    read_keys,
)
from tidemark.sinks.target import Target
from tidemark.sinks.targets.registry import open_target
from tidemark.sinks.turns import taking_turn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAIL_POINTS = ("sink.claimed", "sink.held", "sink.carried", "sink.moved")
QUIET_MS = 3_600_000  # a target that nothing comes for learns the time this often, or it would hold history for ever
PIECE_ROWS = 65_536
_ROUNDS = 3  # what comes during a long round is carried by the next one: other runs were skipped meanwhile
_DECLARE_AGAIN = "drop the sink, and declare it again with `existing: replace`, which loads all rows anew"

OpenTarget = Callable[[SinkDeclaration, Settings], Target]
StartSpark = Callable[[], "SparkSession"]


def choose_sinks(deployment: Deployment, names: Sequence[str]) -> list[AppliedSink]:
    """Return the named sinks, or all. Raises ``UnknownSink``, with near matches, if one is not applied."""
    sinks = deployment.registry.read().sinks
    for name in names:
        if name not in sinks:
            raise UnknownSink.named(name, sinks)
    return [sinks[name] for name in dict.fromkeys(names)] if names else list(sinks.values())


def run_sinks(
    shards: Shards,
    deployment: Deployment,
    sinks: Sequence[AppliedSink],
    *,
    clock: Clock,
    start_spark: StartSpark | None = None,
) -> Report:
    """Run the sinks one after the other; the failure of one leaves the others alone. As ``run_sink``."""
    report, _ = run_one_by_one(
        "sink",
        sinks,
        lambda applied: run_sink(shards, applied, deployment=deployment, clock=clock, start_spark=start_spark),
        deployment=deployment,
        clock=clock,
        started_at=clock.now_ms(),
        shard_of=attrgetter("collection"),
    )
    return report


@dataclass(slots=True, kw_only=True)
class _Run:
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


def run_sink(
    shards: Shards,
    applied: AppliedSink,
    *,
    deployment: Deployment,
    clock: Clock,
    open_target: OpenTarget = open_target,
    start_spark: StartSpark | None = None,
) -> CollectionReport:
    """Carry everything below the present upper of the collection into the target.

    ``start_spark`` is called only for a first load that ``is_large``; without it, this process carries all rows itself.

    Raises:
        Unreachable: If the target does not answer; history stays held.
        SchemaMismatch: If the target has other columns; nothing was written.
        NotPossible: If the target belongs to somebody else.
        HistoryGone: If updates that the target lacks are gone.
        Fenced: If another run, or a newer deployment, took the target over.
        ReadOnly: If the deployment became read-only meanwhile.
        Dropped: If the sink was dropped, whoever has its name now; the target keeps no progress of the sink.
    """
    if read_mode(deployment) is Mode.READ_ONLY:
        return _skipped(f"deployment {deployment.generation} is read-only: the one that leads runs the sinks")
    if not is_applied(deployment, applied):
        return _skipped("the sink was dropped after it was chosen to run")
    with taking_turn(deployment.settings, applied.name, applied.collection) as other:
        if other is not None:
            since = moment_text(other.began_ms)
            return _skipped(f"another run of the sink is under way since {since}, in {other.writer}")
        report = _run_in_turn(shards, applied, deployment=deployment, open_target=open_target, start_spark=start_spark)
    if not isinstance(report.upper, int) or not report.upper:
        return report
    changed = shards.open(applied.collection).load().state.changed
    return replace(report, details={**report.details, "lag_ms": lag_ms(report.upper, changed, now_ms=clock.now_ms())})


def _skipped(why: str) -> CollectionReport:
    return CollectionReport(outcome=Outcome.SKIPPED, details={SKIPPED_BECAUSE: why})


def _run_in_turn(
    shards: Shards,
    applied: AppliedSink,
    *,
    deployment: Deployment,
    open_target: OpenTarget,
    start_spark: StartSpark | None,
) -> CollectionReport:
    sink = applied.declaration
    shard = shards.open(sink.collection)
    writer = Writer.join(shard, deployment.generation)  # a newer deployment owns its collections
    with open_target(sink, deployment.settings) as target:
        target.check()
        found = target.look()
        head = shard.load()  # after the target, which has nothing that the collection lacks
        _refuse_missing_columns(sink, head)
        owner = owner_of(applied, head)
        _check_target(target, found, owner, head)
        if head.state.upper == 0:  # the first rows are then a load, not one huge correction
            waits = {"waits_for": f"the first commit of {sink.collection!r}"}
            return CollectionReport(outcome=Outcome.UNCHANGED, upper=0, details={"target": target.title, **waits})
        if found is not None and found.owner == owner and not _is_due(sink, head, found):
            strategy, details = sink.mode.value, {"collection": sink.collection, "target": target.title}
            return CollectionReport(
                outcome=Outcome.UNCHANGED, lower=found.time, upper=found.time, strategy=strategy, details=details
            )
        claimed = target.claim(owner, generation=deployment.generation)
        fail_point("sink.claimed")
        kept = {*deployment.registry.get(sink.collection).key}
        run = _Run(
            applied=applied,
            writer=writer,
            target=target,
            deployment=deployment,
            progress=claimed,
            is_key_kept=bool(kept) and kept <= {*sink.key_columns},
            start_spark=start_spark,
        )
        try:
            refuse_dropped(deployment, applied)  # a drop leaves the catalog first, and forgets the progress second
            if claimed.time is None:
                _load(run)
            for _ in range(_ROUNDS):
                if not _follow(run):
                    break
        except NotPossible as error:  # also of a target that a drop has freed
            if is_applied(deployment, applied):
                raise
            target.forget(owner)
            raise Dropped.meanwhile(sink.name) from error
        return _report(run, claimed.time or 0)


def _refuse_missing_columns(sink: SinkDeclaration, head: ShardHead) -> None:
    """Refuse to run by names that columns have no longer: an apply that renames them is under way, or died."""
    present = {column.name for column in columns_of(head)}
    if missing := [name for name in (*sink.key_columns, *sink.to.columns) if name not in present]:
        raise CatalogOutOfSync(
            f"sink {sink.name!r} needs {', '.join(map(repr, missing))}, and {sink.collection!r} has no such columns",
            hint="run again; if that does not help, an apply died: run `tidemark apply` with the same files again",
        )


def _check_target(target: Target, found: Progress | None, owner: Owner, head: ShardHead) -> None:
    """Refuse a target that another sink wrote, or one with other columns, before anything is written.

    A sink with `existing: replace` takes the target of an earlier sink of its name only once: two installations would
    else undo each other for ever.
    """
    if found is not None:
        has_loaded = target.sink.hold in head.state.holds  # then whoever has the target now took it from this sink
        check_owner(found, owner, replaces=target.sink.to.replaces and not has_loaded, where=target.title)
    if found is None or found.owner != owner or found.time is None:
        target.inspect(columns_of(head))
    elif isinstance(head.state.upper, int) and found.time > head.state.upper:
        raise HistoryGone(
            f"{target.title} has the updates up to {found.time}, and the collection {owner.collection!r} ends at "
            f"{head.state.upper}",
            hint=f"the collection was restored from a backup, or the target's progress was edited: {_DECLARE_AGAIN}",
        )


def _is_due(sink: SinkDeclaration, head: ShardHead, progress: Progress) -> bool:
    """Tell whether a run has anything to carry, to evolve or to hold: else it leaves the target alone."""
    time, held = progress.time, head.state.holds.get(sink.hold)
    if time is None or held is None or not held.is_durable:
        return True
    return held.since not in {max(time - 1, 0), time} or _has_news(head, progress)


def _has_news(head: ShardHead, progress: Progress) -> bool:
    upper, time = head.state.upper, progress.time or 0
    is_late = not isinstance(upper, int) or upper - time >= QUIET_MS
    return head.state.changed > time or is_late or not {*columns_of(head)} <= {*progress.columns}


def _load(run: _Run) -> None:
    """Carry the contents of now, after history is held from here on."""
    sink = run.sink
    hold_history(run.shard, run.applied, deployment=run.deployment, writer=run.writer)
    fail_point("sink.held")
    head = _load_head(run)
    upper = head.state.open_upper(f"collection {sink.collection!r}")
    after = replace(run.progress, time=upper, snapshot=carried_snapshot(head), columns=columns_of(head))
    refuse_when_read_only(run.deployment, f"run of sink {sink.name!r}")
    if run.start_spark is not None and is_large(run.target, head):
        from tidemark.sinks.spark_load import load_with_spark  # noqa: PLC0415 - imports pyspark, for few runs

        run.inserted = load_with_spark(
            run.start_spark(),
            run.shard,
            head,
            run.target,
            before=run.progress,
            after=after,
            check=partial(_check_right, run),
        )
    else:
        run.inserted = _load_alone(run, after, head)
    run.details["loaded"] = run.inserted
    _move_on(run, after)


def _load_alone(run: _Run, after: Progress, head: ShardHead) -> int:
    """Carry the contents without Spark; return the number of rows."""
    sink, names = run.sink, [column.name for column in after.columns]
    if sink.mode is SinkMode.MIRROR:
        if not run.is_key_kept:
            _check_key(run, head)
        rows = keyed_rows(first_rows(head, names, time=None), sink.key_columns, where=f"sink {sink.name!r}")
    else:
        rows = first_rows(head, names, time=max((after.time or 0) - 1, 0))
    return run.target.load(run.progress, after, _until_checked(run, _measured(run, rows)))


def _until_checked(run: _Run, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows; before their end, after which a target commits, check that the sink may still write.

    A target that is not there yet may be unable to keep a claim, so that neither a switch to read-only nor a drop can
    fence its first load.
    """
    yield from rows
    _check_right(run)


def _check_right(run: _Run) -> None:
    """Raise ``ReadOnly`` or ``Dropped`` if the sink may not write any more."""
    refuse_when_read_only(run.deployment, f"run of sink {run.sink.name!r}")
    refuse_dropped(run.deployment, run.applied)


def _follow(run: _Run) -> bool:
    """Carry the updates since the progress, in one transaction or more; return whether there was anything to carry."""
    head = _load_head(run)
    start = run.progress.time
    assert start is not None, "the first contents are loaded"  # noqa: S101 - for mypy
    _keep_history(run, head, start)
    upper = head.state.open_upper(f"collection {run.sink.collection!r}")
    columns = columns_of(head)
    if not _has_news(head, run.progress):
        return False
    if head.state.layout is ShardKind.APPEND_ONLY:
        commits = list_commits(head, start, run.progress.snapshot, collection=run.sink.collection)
        *earlier, last = cut_commits(commits)
        for group in earlier:
            end = group[-1].state.open_upper("a commit")
            _append(run, head, group, time=end, snapshot=group[-1].snapshot.snapshot_id)
        _append(run, head, last, time=upper, snapshot=carried_snapshot(head))
        return True
    ends = cut_times(head, start, upper)
    if run.sink.mode is SinkMode.MIRROR and not run.is_key_kept:
        _check_key(run, head)
        ends = [upper]  # between, two rows could have one key
    for end in ends:
        refuse_when_read_only(run.deployment, f"run of sink {run.sink.name!r}")
        after = replace(run.progress, time=end, columns=columns)
        _carry(run, after, head, start, end)
        _move_on(run, after)
        start = end
    return True


def _append(run: _Run, head: ShardHead, commits: Sequence[AppendedCommit], *, time: int, snapshot: int) -> None:
    """Append the rows of the commits, which end at ``time`` and ``snapshot``, in one transaction."""
    refuse_when_read_only(run.deployment, f"run of sink {run.sink.name!r}")
    columns = columns_of(head)
    after = replace(run.progress, time=time, snapshot=snapshot, columns=columns)
    rows = appended_rows(head, commits, [column.name for column in columns])
    run.target.append(run.progress, after, _counted(run, rows))
    _move_on(run, after)


def _check_key(run: _Run, head: ShardHead) -> None:
    """Refuse a key that two rows of the contents share, of which a mirror would lose one (``Refused``)."""
    check_unique(read_keys(head, run.sink.key_columns), where=f"sink {run.sink.name!r}")


def _carry(run: _Run, after: Progress, head: ShardHead, start: int, end: int) -> None:
    """Write the updates at times ``[start, end)``."""
    names = [column.name for column in after.columns]
    updates = scan_updates(head, start, end)
    if run.sink.mode is SinkMode.MIRROR:
        net = net_by_key(updates, names, run.sink.key_columns, where=f"sink {run.sink.name!r}")
        run.target.mirror(run.progress, after, net.deletes, net.upserts)
        run.carried_bytes += net.deletes.nbytes + net.upserts.nbytes
        run.inserted += net.upserts.num_rows
        run.retracted += net.deletes.num_rows
    else:
        ordered = order_updates(updates, names)
        pieces = iter(ordered.to_batches(max_chunksize=PIECE_ROWS))
        run.target.append(run.progress, after, _measured(run, pieces))
        diffs = ordered.column(DIFF)
        run.inserted += pc.sum(pc.max_element_wise(diffs, 0), min_count=0).as_py()
        run.retracted -= pc.sum(pc.min_element_wise(diffs, 0), min_count=0).as_py()


def _counted(run: _Run, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in _measured(run, rows):
        run.inserted += batch.num_rows
        yield batch


def _measured(run: _Run, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        run.carried_bytes += batch.nbytes
        yield batch


def _keep_history(run: _Run, head: ShardHead, time: int) -> None:
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


def _move_on(run: _Run, after: Progress) -> None:
    """Note what the target has committed, and let go of the history before."""
    run.progress = replace(after, columns=known_columns(run.progress, after))
    fail_point("sink.carried")
    assert after.time is not None  # noqa: S101 - for mypy
    try:
        _hold_from(run, after.time)
    except AsOfBeforeSince as error:
        raise StaleState(f"another run of sink {run.sink.name!r} has come further", hint="run it again") from error
    fail_point("sink.moved")


def _hold_from(run: _Run, time: int) -> None:
    """Hold the contents at ``time - 1``, from which the next updates are told, for ever."""
    since = run.shard.load().state.since
    start = time if since == time else max(time - 1, 0)
    hold_history(run.shard, run.applied, deployment=run.deployment, writer=run.writer, since=start)


def _gone(run: _Run, time: int, since: object) -> HistoryGone:
    """Return the error for history that the target lacks; raise ``Fenced`` if another run has carried it meanwhile."""
    check_epoch(run.target.look(), run.progress, where=run.target.title)
    return HistoryGone(
        f"the updates of {run.sink.collection!r} in [{time}, {since}) are gone, and {run.target.title} lacks them",
        hint=f"its hold {run.sink.hold!r} was released by hand, or the target was restored from a backup: "
        + _DECLARE_AGAIN,
    )


def _load_head(run: _Run) -> ShardHead:
    head = run.shard.load()
    if str(head.table.metadata.table_uuid) != run.progress.owner.table_uuid:
        raise StaleState(f"the collection {run.sink.collection!r} was dropped and made anew during the run")
    return head


def _report(run: _Run, start: int) -> CollectionReport:
    is_any = run.inserted or run.retracted or "loaded" in run.details
    measured = {"bytes": run.carried_bytes} if run.carried_bytes else {}
    return CollectionReport(
        outcome=Outcome.CARRIED if is_any else Outcome.UNCHANGED,
        lower=start,
        upper=run.progress.time,
        inserted=run.inserted,
        retracted=run.retracted,
        strategy=run.sink.mode.value,
        details={"collection": run.sink.collection, "target": run.target.title, **measured, **run.details},
    )
