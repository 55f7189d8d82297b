"""Runs sinks: each asks its target how far it came, and carries what came since, exactly once.

The order of the durable steps: the target is claimed, history is held, rows and progress are committed in the target,
and only then the hold moves. A run that dies in between leaves a hold that is too old, which the next run moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.clock import Clock
from tidemark.collections.declarations.sink import SinkDeclaration, SinkMode
from tidemark.collections.deployment import AppliedSink, Deployment, Mode
from tidemark.collections.isolation import run_one_by_one
from tidemark.collections.mode import read_mode, refuse_when_read_only
from tidemark.errors import AsOfBeforeSince, Dropped, HistoryGone, StaleState, UnknownSink
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.holds import hold, release
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.reading.arrow import scan_updates
from tidemark.iceberg.shard.column_names import DIFF
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import NEVER, ShardKind
from tidemark.iceberg.shards import Shards
from tidemark.report import CollectionReport, Outcome, Report
from tidemark.settings import Settings
from tidemark.sinks.appended_rows import list_commits
from tidemark.sinks.net_changes import check_unique, net_by_key, order_updates
from tidemark.sinks.progress import Owner, Progress, SinkColumn, check_owner
from tidemark.sinks.rows import appended_rows, columns_of, cut_times, first_rows, keyed_rows, read_keys
from tidemark.sinks.target import Target
from tidemark.sinks.targets.registry import open_target

FAIL_POINTS = ("sink.claimed", "sink.held", "sink.carried", "sink.moved")
QUIET_MS = 3_600_000  # a target that nothing comes for learns the time this often, or it would hold history for ever
PIECE_ROWS = 65_536
_DECLARE_AGAIN = "drop the sink, and declare it again with `existing: replace`, which loads all rows anew"

OpenTarget = Callable[[SinkDeclaration, Settings], Target]


def choose_sinks(deployment: Deployment, names: Sequence[str]) -> list[AppliedSink]:
    """Return the named sinks, or all. Raises ``UnknownSink``, with near matches, if one is not applied."""
    sinks = deployment.registry.read().sinks
    for name in names:
        if name not in sinks:
            raise UnknownSink.named(name, sinks)
    return [sinks[name] for name in dict.fromkeys(names)] if names else list(sinks.values())


def run_sinks(shards: Shards, deployment: Deployment, sinks: Sequence[AppliedSink], *, clock: Clock) -> Report:
    """Run the sinks one after the other; the failure of one leaves the others alone."""
    report, _ = run_one_by_one(
        "sink",
        sinks,
        lambda applied: run_sink(shards, applied, deployment=deployment),
        deployment=deployment,
        clock=clock,
        started_at=clock.now_ms(),
        shard_of=attrgetter("collection"),
    )
    return report


@dataclass(slots=True, kw_only=True)
class _Run:
    """One run of one sink: what it works on, and how far it came."""

    sink: SinkDeclaration
    writer: Writer  # that a switch of the mode fences, so that no hold is taken or moved after it
    target: Target
    deployment: Deployment
    progress: Progress
    is_key_kept: bool  # whether the collection itself keeps the key of the sink unique
    inserted: int = 0
    retracted: int = 0
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def shard(self) -> Shard:
        return self.writer.shard


def run_sink(
    shards: Shards, applied: AppliedSink, *, deployment: Deployment, open_target: OpenTarget = open_target
) -> CollectionReport:
    """Carry everything below the present upper of the collection into the target.

    Raises:
        Unreachable: If the target does not answer; history stays held.
        SchemaMismatch: If the target has other columns; nothing was written.
        NotPossible: If the target belongs to somebody else.
        HistoryGone: If updates that the target lacks are gone.
        Dropped: If the sink was dropped meanwhile.
        Fenced: If another run, or a newer deployment, took the target over.
        ReadOnly: If the deployment became read-only meanwhile.
    """
    sink = applied.declaration
    if read_mode(deployment) is Mode.READ_ONLY:
        why = f"deployment {deployment.generation} is read-only: the one that leads runs the sinks"
        return CollectionReport(outcome=Outcome.SKIPPED, details={"skipped_because": why})
    shard = shards.open(sink.collection)
    writer = Writer.join(shard, deployment.generation)  # a newer deployment owns its collections
    with open_target(sink, deployment.settings) as target:
        target.check()
        head = shard.load()
        owner = Owner(sink.name, applied.id, sink.collection, str(head.table.metadata.table_uuid))
        found = _check_target(target, owner, head)
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
            sink=sink,
            writer=writer,
            target=target,
            deployment=deployment,
            progress=claimed,
            is_key_kept=bool(kept) and kept <= {*sink.key_columns},
        )
        start = claimed.time or 0
        if claimed.time is None:
            _load(run)
        _follow(run)
        return _report(run, start)


def _check_target(target: Target, owner: Owner, head: ShardHead) -> Progress | None:
    """Return what the target says of itself.

    Refuse a target that another sink wrote, or one with other columns, before anything is written.
    """
    found = target.look()
    if found is not None:
        check_owner(found, owner, replaces=target.sink.to.replaces, where=target.title)
    if found is None or found.owner != owner or found.time is None:
        target.inspect(columns_of(head))
    return found


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
    _hold(run)
    fail_point("sink.held")
    head = _load_head(run)
    upper = head.state.open_upper(f"collection {sink.collection!r}")
    after = replace(run.progress, time=upper, snapshot=_carried_snapshot(head), columns=columns_of(head))
    names = [column.name for column in after.columns]
    if sink.mode is SinkMode.MIRROR:
        if not run.is_key_kept:
            _check_key(run, head)
        rows = keyed_rows(first_rows(head, names, time=None), sink.key_columns, where=f"sink {sink.name!r}")
    else:
        rows = first_rows(head, names, time=max(upper - 1, 0))
    refuse_when_read_only(run.deployment, f"run of sink {sink.name!r}")
    run.inserted = run.target.load(run.progress, after, rows)
    run.details["loaded"] = run.inserted
    _move_on(run, after)


def _follow(run: _Run) -> None:
    """Carry the updates since the progress, in one transaction or more."""
    head = _load_head(run)
    start = run.progress.time
    assert start is not None, "the first contents are loaded"  # noqa: S101 - for mypy
    _keep_history(run, head, start)
    upper = head.state.open_upper(f"collection {run.sink.collection!r}")
    columns = columns_of(head)
    if not _has_news(head, run.progress):
        return
    names = [column.name for column in columns]
    if head.state.layout is ShardKind.APPEND_ONLY:
        refuse_when_read_only(run.deployment, f"run of sink {run.sink.name!r}")
        after = replace(run.progress, time=upper, snapshot=_carried_snapshot(head), columns=columns)
        commits = list_commits(head, start, run.progress.snapshot, collection=run.sink.collection)
        run.target.append(run.progress, after, _counted(run, appended_rows(head, commits, names)))
        _move_on(run, after)
        return
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


def _carried_snapshot(head: ShardHead) -> int:
    return head.own.snapshot_id if head.state.layout is ShardKind.APPEND_ONLY else 0


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
        run.inserted += net.upserts.num_rows
        run.retracted += net.deletes.num_rows
    else:
        ordered = order_updates(updates, names)
        run.target.append(run.progress, after, iter(ordered.to_batches(max_chunksize=PIECE_ROWS)))
        diffs = ordered.column(DIFF)
        run.inserted += pc.sum(pc.max_element_wise(diffs, 0), min_count=0).as_py()
        run.retracted -= pc.sum(pc.min_element_wise(diffs, 0), min_count=0).as_py()


def _counted(run: _Run, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        run.inserted += batch.num_rows
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
    run.progress = replace(after, columns=_known_columns(run.progress, after))
    fail_point("sink.carried")
    assert after.time is not None  # noqa: S101 - for mypy
    if run.sink.hold in run.shard.load().state.holds:  # else the sink was dropped, and nobody would release a new hold
        try:
            _hold_from(run, after.time)
        except AsOfBeforeSince as error:
            raise StaleState(f"another run of sink {run.sink.name!r} has come further", hint="run it again") from error
    fail_point("sink.moved")


def _known_columns(before: Progress, after: Progress) -> tuple[SinkColumn, ...]:
    """Return the columns of the target: those of the rows, and those that the collection dropped before."""
    ids = {column.id for column in after.columns}
    return (*after.columns, *(column for column in before.columns if column.id not in ids))


def _hold_from(run: _Run, time: int) -> None:
    """Hold the contents at ``time - 1``, from which the next updates are told, for ever."""
    since = run.shard.load().state.since
    _hold(run, time if since == time else max(time - 1, 0))


def _hold(run: _Run, since: int | None = None) -> None:
    """Hold history from ``since`` on (default: all that is there) for ever.

    A drop takes the sink from the catalog, and releases its hold afterwards. So a run that holds first, and finds the
    sink in the catalog afterwards, leaves no hold that nobody releases.

    Raises ``Dropped`` if the sink is gone; then nothing is held for it.
    """
    hold(run.shard, run.sink.hold, since=since, expires_at_ms=NEVER, writer=run.writer)
    applied = run.deployment.registry.read().sinks.get(run.sink.name)
    if applied is not None and applied.id == run.progress.owner.sink_id:
        return
    if applied is None:  # else the hold is that of the sink which has the name now
        release(run.shard, run.sink.hold)
    raise Dropped(f"the sink {run.sink.name!r} was dropped during its run", hint="rows that it wrote before stay there")


def _gone(run: _Run, time: int, since: object) -> HistoryGone:
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
    return CollectionReport(
        outcome=Outcome.CARRIED if is_any else Outcome.UNCHANGED,
        lower=start,
        upper=run.progress.time,
        inserted=run.inserted,
        retracted=run.retracted,
        strategy=run.sink.mode.value,
        details={"collection": run.sink.collection, "target": run.target.title, **run.details},
    )
