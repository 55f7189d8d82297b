"""Persists rows that were ingested: one pass over one snapshot of a collection, in steps.

Rows are visible at once, in small files on main, or wait in such files on the tag ``tidemark-open``. A pass decides
which partitions are due, commits that their persist begins, writes the rows of all open files anew, and publishes the
files and both checkpoints in one commit. So a pass that dies leaves the contents as they were, and a persist under way
that the next pass gives up. What a living process has under way is left to it, unless everything is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyiceberg.table import FileScanTask
from pyiceberg.table.snapshots import Snapshot as TableSnapshot

from tidemark.clock import Clock
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.declarations.selection import choose
from tidemark.collections.deployment import Deployment
from tidemark.collections.isolation import NeedsSpark, run_one_by_one
from tidemark.collections.mode import lead_to_write
from tidemark.collections.objects.applied import open_applied
from tidemark.collections.publish import ATTEMPTS
from tidemark.errors import (
    ConflictsUnsettled,
    CorruptState,
    Fenced,
    FencedByEpoch,
    InputsGone,
    Sealed,
    Unreachable,
    UpperMismatch,
)
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.row_positions import deleted_by_file, read_deleted_positions
from tidemark.iceberg.leases.holding import find_lease
from tidemark.iceberg.maintenance.compaction import (
    Rewrite,
    compact,
    discard_rewrites,
    find_obstacle,
    publish_rewrites,
    use_of,
)
from tidemark.iceberg.maintenance.compaction_plan import FileUse
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.ledger import Ledger
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import CommitKind
from tidemark.iceberg.shards import Shards
from tidemark.ingest.partitions.state import PROPERTY, Begun, PartitionRules, Partitions, check_event_times
from tidemark.ingest.persist.duplicates import MERGED_FIELDS, Identity
from tidemark.ingest.persist.inputs import ALL_TIMES, Inputs, bounds_of, choose_files, intervals_of
from tidemark.ingest.persist.limits import as_chunks, decide_open
from tidemark.ingest.persist.split import Split, count_duplicates, split_here, split_with_spark
from tidemark.ingest.persist.time_order import add_time_order, find_time_order
from tidemark.ingest.persist.under_way import Other, find_others, share_files
from tidemark.interval import LATEST_MS, Interval, time_text
from tidemark.lifecycle.chunks import Action
from tidemark.lifecycle.policy import Decision, Snapshot, decide_all, find_next_due
from tidemark.lifecycle.state import StalePersist
from tidemark.report import CollectionReport, Outcome, Report
from tidemark.retry import retrying

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAIL_POINTS = ("persist.after-begin", "persist.after-files", "persist.after-commit")
SMALL_ROWS, SMALL_BYTES = 1_000_000, 32 * 1024 * 1024  # of the files to read, which are larger in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How a pass may do its work."""

    start_spark: Callable[[], SparkSession] | None = None  # called only for much work; None: raise ``NeedsSpark``
    everything: bool = False  # persist all rows, however young
    small_rows: int = SMALL_ROWS  # this process writes up to so many, Spark writes more


def choose_persisted(deployment: Deployment, words: Sequence[str]) -> list[Declaration]:
    """Return the collections that ``words`` select, or all whose rows have event times; rules leave out the others.

    Raises:
        UnknownCollection: If a name is not applied; with near matches.
        UsageError: If a named collection declares no event times, or no collection has a tag.
    """
    declared = deployment.registry.read().declarations
    return choose(declared, words, lambda each: each.event_time is not None, require=PartitionRules.required)


def persist_all(
    shards: Shards, deployment: Deployment, declarations: Sequence[Declaration], *, clock: Clock, engine: Engine
) -> tuple[Report, list[str]]:
    """Make one pass over each collection; return the report, and the names of those left for Spark."""

    def persist_one(declaration: Declaration) -> CollectionReport:
        shard = open_applied(shards, deployment, declaration)
        return persist(shard, declaration, deployment=deployment, clock=clock, engine=engine)

    return run_one_by_one(
        "persist", declarations, persist_one, deployment=deployment, clock=clock, started_at=clock.now_ms()
    )


@dataclass(slots=True, kw_only=True)
class _Pass:
    """One pass over one collection: the request, and the results of its steps."""

    shard: Shard
    deployment: Deployment
    rules: PartitionRules
    clock: Clock
    engine: Engine
    writer: Writer = field(init=False)
    head: ShardHead = field(init=False)
    decisions: list[Decision] = field(default_factory=list)
    nothing_due: str = ""  # why nothing is persisted
    others: list[Other] = field(default_factory=list)  # under way in living processes
    left: list[str] = field(default_factory=list)  # due partitions whose rows lie in files of theirs
    uncounted: dict[str, Ledger] = field(default_factory=dict)  # whose rows the state did not know at the beginning
    given_up: list[str] = field(default_factory=list)  # partitions whose persist another pass began, and never ended
    begun: list[Begun] = field(default_factory=list)
    due: list[Interval] = field(default_factory=list)  # the event times of what is persisted
    inputs: Inputs = field(init=False)
    rewrites: list[Rewrite] = field(default_factory=list)  # of main, and of the other branch if rows lie there
    duplicates: int = 0  # rows that were not written again

    @property
    def files(self) -> list[FileUse]:
        """What is written anew."""
        return [use for rewrite in self.rewrites for use in rewrite.files]

    def is_large(self, files: Sequence[FileUse]) -> bool:
        """Tell whether the files are more than this process should write anew."""
        return sum(use.rows for use in files) > self.engine.small_rows or sum(u.size_bytes for u in files) > SMALL_BYTES

    def check_size(self, files: Sequence[FileUse]) -> None:
        """Raise ``NeedsSpark`` if the files are more than this process should write anew."""
        if self.is_large(files):
            raise NeedsSpark


def persist(
    shard: Shard, declaration: Declaration, *, deployment: Deployment, clock: Clock, engine: Engine
) -> CollectionReport:
    """Make one pass over one collection. The contents stay as they are, but for duplicates.

    Raises:
        NeedsSpark: If too much is due for this process and there is no Spark; nothing was changed.
        UsageError: If the collection declares no event times.
        ReadOnly: If the deployment is read-only.
        CorruptState: If files hold other rows than their manifests say; the contents stay as they are.
        ConflictsUnsettled: If other commits kept winning; the next pass goes on.
    """
    rules = PartitionRules.required(declaration)
    run = _Pass(shard=shard, deployment=deployment, rules=rules, clock=clock, engine=engine)
    attempts = retrying(UpperMismatch, FencedByEpoch, attempts=ATTEMPTS, what=f"the persist of {shard.name!r}")
    if (reason := find_obstacle(shard.load())) is not None:
        return _report(run, "skipped", reason=reason)
    if not attempts(_begin, run):
        return _compact(run)
    fail_point("persist.after-begin")
    try:
        _write(run)
        fail_point("persist.after-files")
        _finish(run)
    except (InputsGone, StalePersist, FencedByEpoch) as error:  # a compaction, another pass or a switch was faster
        discard_rewrites(shard, run.head, run.rewrites)
        return _report(run, "discarded", reason=str(error))
    except (Fenced, Sealed, ConflictsUnsettled, CorruptState):
        with suppress(ConflictsUnsettled, Unreachable):
            discard_rewrites(shard, run.head, run.rewrites)
        raise
    fail_point("persist.after-commit")
    return _report(run, "persisted")


def _begin(run: _Pass) -> bool:
    """Decide on one head, choose the files of that head, and commit that the persists begin; tell whether any did.

    The commit requires that head, so that no row comes between what was decided and what is read.
    """
    shard, rules, now_ms = run.shard, run.rules, run.clock.now_ms()
    run.writer = lead_to_write(shard, run.deployment, what="persist")
    run.head = head = shard.load()
    check_event_times(rules, head.table.schema().column_names, collection=shard.name)
    partitions = Partitions.parse(head.table.properties, rules.column, rules.unit)
    run.uncounted = partitions.missing(head.state.ledgers)
    everything, settings = run.engine.everything, run.deployment.settings
    lease = find_lease(settings, shard.name)
    run.others = [] if everything else find_others(partitions, settings, own_lease=lease)
    partitions, run.given_up = partitions.drop_persists(but=[each.partition for each in run.others])
    snapshot = Snapshot(
        collection=shard.name,
        partitions=as_chunks(head, partitions, rules),
        running=frozenset(each.operation for each in run.others),
    )
    lifecycle = rules.while_waiting(head.open_rows)
    run.decisions = (decide_all if everything else decide_open)(snapshot, lifecycle, now_ms=now_ms)
    due = [each for each in run.decisions if each.action is Action.PERSIST]
    if run.others:
        shared = share_files(head, rules.column, due, run.others)
        run.left, due = sorted(shared), [each for each in due if each.partition not in shared]
        run.decisions = [each for each in run.decisions if each.partition not in shared]
    elif not due and (next_due := find_next_due(snapshot, lifecycle)) is not None:
        run.nothing_due = f"no partition is due: {next_due[1]} is at {time_text(next_due[0])}, if no more rows come"
    partitions, run.begun = partitions.start_persist(due, now_ms=now_ms, rules=lifecycle, lease=lease)
    run.inputs = Inputs([], [])
    if run.begun or everything:
        _choose_files(run)
    is_any = bool(run.begun or run.inputs.open)
    if is_any or run.given_up:
        run.writer.publish(
            lower=head.state.open_upper(f"collection {shard.name!r}"),
            new_upper=head.state.next_upper(now_ms),
            kind=CommitKind.ADVANCE,
            properties={PROPERTY: str(partitions)},
        )
    return is_any


def _compact(run: _Pass) -> CollectionReport:
    """Merge small files where nothing is persisted, and no row came for a while.

    Raises ``NeedsSpark`` as ``_choose_files``.
    """
    if run.others or not any(each.action is Action.COMPACT for each in run.decisions):
        return _report(run, "unchanged", reason=run.nothing_due)  # a merge would take the files of others
    try:
        done = compact(run.writer, check=run.check_size)
    except NeedsSpark:
        if run.engine.start_spark is None:
            raise
        done = compact(run.writer, spark=run.engine.start_spark())
    reason = {} if done.outcome != "discarded" else {"reason": done.reason}
    report = _report(run, done.outcome, **reason)
    if done.outcome == "compacted":
        report.details.update(files_before=done.files_before, files_after=done.files_after)
    return report


def _choose_files(run: _Pass) -> None:
    """Choose the files to write anew: of rows that are due, or all open ones, also those that the state knows not yet.

    Raises ``NeedsSpark`` if they are too large for this process, and there is no Spark.
    """
    head, rules = run.head, run.rules
    run.due = [ALL_TIMES] if run.engine.everything else intervals_of(run.begun)
    snapshots = [head.contents, *([] if head.open is None else [head.open])]
    live = [[*head.table.scan(snapshot_id=snapshot.snapshot_id).plan_files()] for snapshot in snapshots]
    run.inputs = choose_files(
        head.table,
        chain.from_iterable(live),
        rules.column,
        due=run.due,
        partitions=sorted(bounds_of(each.checkpoints.partition.partition) for each in run.begun),
        order_id=find_time_order(head.table, rules.column),
        with_duplicates=bool(rules.key),
    )
    chosen = {task.file.file_path for task in (*run.inputs.open, *run.inputs.persisted)}
    found = [
        _rewrite_of(head, snapshot, {task.file.file_path: task for task in tasks if task.file.file_path in chosen})
        for snapshot, tasks in zip(snapshots, live, strict=True)
    ]
    run.rewrites = [found[0], *(each for each in found[1:] if each.tasks)]
    if run.engine.start_spark is None:
        run.check_size(run.files)


def _rewrite_of(head: ShardHead, snapshot: TableSnapshot, tasks: dict[str, FileScanTask]) -> Rewrite:
    deletes = read_deleted_positions(head.table.io, snapshot) if tasks else {}
    deleted = deleted_by_file(deletes)
    return Rewrite(
        snapshot=snapshot,
        tasks=tasks,
        files=[use_of(task, deleted_rows=len(deleted.get(path, ()))) for path, task in tasks.items()],
        dropped=frozenset(path for path, named in deletes.items() if named.keys() <= tasks.keys()),
        pinned_deletes=frozenset(deletes),
    )


def _write(run: _Pass) -> None:
    """Write the persisted files and the remainder, unless no file has rows that are due."""
    head, rules, shard = run.head, run.rules, run.shard
    if not run.inputs.open:
        return
    split = Split(
        inputs=run.inputs,
        column=rules.column,
        unit=rules.unit,
        intervals=run.due,
        order_id=add_time_order(shard, rules.column),
        identity=Identity.of(rules.column, rules.key, rules.lifecycle.merge) if rules.key else None,
    )
    if run.is_large(run.files) and run.engine.start_spark is not None:
        split_with_spark(run.engine.start_spark(), shard, head, run.rewrites, split)
    else:
        split_here(head, run.rewrites, split)
    run.duplicates = count_duplicates(run.rewrites, split)
    moves_rows = len(run.rewrites) > 1
    for rewrite in run.rewrites:
        rewrite.changes_rows = run.duplicates > 0 or moves_rows


def _finish(run: _Pass) -> None:
    """Publish the files with the checkpoints, which were computed from the state that the pass began with."""

    def describe(head: ShardHead) -> dict[str, str]:
        present = Partitions.parse(head.table.properties, run.rules.column, run.rules.unit)
        if present.missing(run.uncounted) != run.uncounted:  # it took rows for open ones that this pass persists
            raise StalePersist("an ingest counted rows meanwhile", hint="the next pass goes on")
        remembered = {MERGED_FIELDS: "true"} if run.rules.merges_fields and run.duplicates else {}
        rules = run.rules.while_waiting(head.open_rows)
        return {PROPERTY: str(present.finish_persist(run.begun, rules)), **remembered}

    main, *opened = run.rewrites
    publish_rewrites(
        run.writer, main, opened=opened[0] if opened else None, describe=describe, now_ms=run.clock.now_ms()
    )


def _report(run: _Pass, strategy: str, *, reason: str = "") -> CollectionReport:
    state = run.shard.load().state
    details: dict[str, Any] = {
        "decisions": [
            {
                "action": each.action.value,
                "partition": each.partition,
                "reason": each.reason,
                "operation": each.operation_id,
            }
            | ({} if each.until_ms is None else {"until": time_text(min(each.until_ms, LATEST_MS))})
            for each in run.decisions
            if each.action is not Action.COMPACT or strategy == "compacted"  # others come after the persists
        ]
    }
    if strategy == "persisted":
        details["files_before"] = sum(len(rewrite.tasks) for rewrite in run.rewrites)
        details["files_after"] = sum(len(rewrite.added) for rewrite in run.rewrites)
        details |= {"duplicates": run.duplicates} if run.duplicates else {}
    under_way = [other.to_json() for other in run.others]
    told = {"given_up": run.given_up, "under_way": under_way, "left": run.left, "reason": reason}
    details |= {name: what for name, what in told.items() if what}
    shown = 0
    if strategy == "persisted" and len(run.rewrites) > 1:
        main = run.rewrites[0]
        shown = sum(file.record_count for file in main.added) - main.row_count + run.duplicates
    outcome = Outcome.APPENDED if shown else Outcome.UNCHANGED
    return CollectionReport(
        outcome=Outcome.SKIPPED if strategy == "skipped" else outcome,
        lower=state.lower,
        upper=state.upper,
        inserted=shown,
        strategy=strategy,
        details=details,
    )
