"""Replays rows that are not persisted, or rows from some numbers on: read again from the buffer, row by row, in steps.

The plan is made once, of what is committed when the replay begins, unless values of rows are merged. Rows are read,
decoded and written into files that nobody sees; then one commit takes away the rows on `main` that the plan needs, and
adds the files. So a replay that dies leaves the contents as they were. Other commits go on meanwhile: if one of them
touched the same rows, all steps but the plan are taken again. A persist under way is given up, since its files lack the
rows that come back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tidemark.clock import Clock
from tidemark.collections.append.append import check_append_only
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Deployment
from tidemark.collections.isolation import run_one_by_one
from tidemark.collections.mode import lead_to_write
from tidemark.collections.objects.applied import open_applied
from tidemark.collections.publish import ATTEMPTS
from tidemark.collections.sources.formats.buffer import BufferSource
from tidemark.errors import (
    ConflictsUnsettled,
    CorruptState,
    Fenced,
    FencedByEpoch,
    InputsGone,
    NotPossible,
    Sealed,
    TidemarkError,
    UpperMismatch,
    UsageError,
)
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.branch_commit import delete_files
from tidemark.iceberg.commit.publisher import Published
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.compaction import find_obstacle
from tidemark.iceberg.maintenance.row_removal import Replacement, replace_rows
from tidemark.iceberg.shard.column_names import ENTRY
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.ledger import Ledger
from tidemark.iceberg.shards import Shards
from tidemark.ingest.batches import look_at_batches
from tidemark.ingest.buffer_log import BufferLog, check_buffer_source, look_at
from tidemark.ingest.order.log_turns import read_turns
from tidemark.ingest.partitions.counting import count_rows
from tidemark.ingest.partitions.state import PROPERTY, PartitionRules, Partitions, check_event_times
from tidemark.ingest.plan import check_same_log, check_sequencers
from tidemark.ingest.publish import Target, finish_pending
from tidemark.ingest.replay.entries import (
    Reading,
    Written,
    find_former_names,
    find_quarantined,
    find_retried,
    write_needed,
)
from tidemark.ingest.replay.merged import check_merged, find_ways, may_be_merged
from tidemark.ingest.replay.plan import Request, base_of, cut_ranges, make_plan
from tidemark.ingest.replay.search import Search
from tidemark.ingest.replay.stored import Replaced, find_replaced
from tidemark.lifecycle.checkpoints import PartitionCheckpoint
from tidemark.lifecycle.partitions import find_bounds, name_partition
from tidemark.lifecycle.replay_plan import ReplayPlan
from tidemark.lifecycle.state import LifecycleState
from tidemark.report import CollectionReport, Outcome, Report
from tidemark.retry import retrying
from tidemark.write_buffer.address import find_connection
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.reader import Reader
from tidemark.write_buffer.registry import open_reader

FAIL_POINTS = ("replay.after-plan", "replay.after-record", "replay.after-files", "replay.after-commit")
_FIRST_PAUSE_S = 0.05


def replay_all(
    shards: Shards,
    deployment: Deployment,
    declarations: Sequence[Declaration],
    request: Request,
    *,
    clock: Clock,
    who: str = "",
    is_dry: bool = False,
) -> Report:
    """Replay each collection; with ``is_dry`` only say what a replay would do. ``who`` is for the audit."""

    def replay_one(declaration: Declaration) -> CollectionReport:
        if is_dry:
            return look_at_plan(shards, declaration, request, deployment=deployment, clock=clock)
        return replay(shards, declaration, request, deployment=deployment, clock=clock, who=who)

    report, _ = run_one_by_one(
        "replay", declarations, replay_one, deployment=deployment, clock=clock, started_at=clock.now_ms()
    )
    return report


@dataclass(slots=True, kw_only=True)
class _Replay:
    """One replay of one collection: the plan, and the results of the steps of the present attempt."""

    target: Target
    rules: PartitionRules
    source: BufferSource
    connection: Connection
    reader: Reader
    head: ShardHead = field(init=False)
    partitions: Partitions = field(init=False)  # as of the head
    state: LifecycleState = field(init=False)  # with the rows that the partitions do not know yet
    plan: ReplayPlan = field(init=False)
    is_only_log: bool = True
    written: Written = field(default_factory=Written)
    on_main: Replaced = field(default_factory=Replaced)
    open: Replaced = field(default_factory=Replaced)  # on the tag ``tidemark-open``

    @property
    def log(self) -> BufferLog:
        return self.target.log

    @property
    def retried(self) -> dict[int, set[int]]:
        """The planned entries with rows that were retried, by sequencer: a replay leaves these rows alone."""
        return find_retried(self.head.state.ledgers, self.log, self.plan)

    @property
    def changes_rows(self) -> bool:
        return bool(self.written.rows or self.on_main.changes_rows or self.open.changes_rows)

    @property
    def name(self) -> str:
        return self.target.shard.name


def replay(
    shards: Shards, declaration: Declaration, request: Request, *, deployment: Deployment, clock: Clock, who: str = ""
) -> CollectionReport:
    """Replay one collection.

    Raises:
        UsageError: If the collection reads no buffer, declares no event times, or the request does not fit.
        ReadOnly: If the deployment is read-only.
        NotPossible: If somebody moved `main` by hand, or the table lacks the column of entries' numbers.
        LogRecreated: If the log is another one than before, and the declaration does not accept that.
        SequencerGone: If the log has lost a sequencer.
        AfterWatermark: If the log never gave some of the ingested numbers.
        NoLongerExists: If the log has lost entries, and the request does not skip them; says how many.
        EntriesUnknown: If rows that may have to be replaced do not bear the numbers of their entries.
        DamageNotCovered: If a damaged file may hold rows that do not come back.
        ConflictsUnsettled: If other commits kept winning; nothing was changed.
    """
    with _opened(shards, declaration, request, deployment=deployment, clock=clock) as run:
        lead_to_write(run.target.shard, deployment, what="replay")
        finish_pending(run.target, run.target.shard.load())  # what the quarantine has tells which rows are not bad
        _load(run)
        run.plan = _plan(run, request)
        fail_point("replay.after-plan")
        _record_lost(run, who)
        if all(numbers.is_empty for numbers in run.plan.numbers.values()):
            return _report(run, "unchanged", is_read=False)
        attempts = retrying(
            InputsGone,
            UpperMismatch,
            FencedByEpoch,
            attempts=ATTEMPTS,
            what=f"the replay of {declaration.name!r}",
            first_pause_s=_FIRST_PAUSE_S,
        )
        published = attempts(_replay_once, run, request)
    fail_point("replay.after-commit")
    return _report(run, "unchanged" if published is None else "replayed", published=published)


def look_at_plan(
    shards: Shards, declaration: Declaration, request: Request, *, deployment: Deployment, clock: Clock
) -> CollectionReport:
    """Return what a replay would read and replace, and what it would find lost; nothing is changed.

    Raises as ``replay``, but not because the deployment is read-only, or the log has lost entries.
    """
    with _opened(shards, declaration, request, deployment=deployment, clock=clock) as run:
        _load(run)
        run.plan = _plan(run, replace(request, skips_lost=True))
    _find(run, Search(log=run.log, plan=run.plan, rules=run.rules))
    return _report(run, "planned", is_read=False)


@contextmanager
def _opened(
    shards: Shards, declaration: Declaration, request: Request, *, deployment: Deployment, clock: Clock
) -> Iterator[_Replay]:
    """Yield a replay of the collection, with an open reader of its buffer."""
    source, rules = check_buffer_source(declaration), PartitionRules.required(declaration)
    for name in request.partitions or ():
        if name_partition(rules.unit, find_bounds(name).start_ms) != name:
            raise UsageError(
                f"{declaration.name!r} is cut by {rules.unit}, and {name!r} is no {rules.unit}",
                hint=f"list its partitions: tidemark buffer partitions {declaration.name}",
            )
    shard = open_applied(shards, deployment, declaration)
    connection = find_connection(source.buffer, deployment.settings.connections)
    with open_reader(connection) as reader:
        log = BufferLog.of(connection, identity=reader.identity, title=reader.name)
        target = Target(shards=shards, shard=shard, log=log, deployment=deployment, clock=clock)
        yield _Replay(target=target, rules=rules, source=source, connection=connection, reader=reader)


def _load(run: _Replay) -> None:
    """Load the head that the next steps are made for. Raises ``NotPossible`` if its rows cannot be replaced."""
    head = run.target.shard.load()
    check_append_only(head, run.name)
    if (reason := find_obstacle(head)) is not None:
        raise NotPossible(f"{run.name!r} cannot be replayed: {reason}", hint="do that first")
    columns = head.table.schema().column_names
    check_event_times(run.rules, columns, collection=run.name)
    if ENTRY not in columns:
        raise NotPossible(
            f"the rows of {run.name!r} do not bear the numbers of their entries",
            hint="apply the declaration again: rows that are ingested from then on do",
        )
    run.head, run.partitions = head, Partitions.parse(head.table.properties, run.rules.column, run.rules.unit)
    run.state = _catch_up(run)


def _catch_up(run: _Replay) -> LifecycleState:
    """Return the state as of the head, with the rows that came since; without them if a damaged file may have some."""
    try:
        return count_rows(run.head, run.rules, run.log, now_ms=run.target.clock.now_ms()).partitions.state
    except CorruptState:
        if may_be_merged(run.head.table.properties, run.rules):
            raise  # which rows have merged values is in that file
        return run.partitions.state


def _plan(run: _Replay, request: Request) -> ReplayPlan:
    """Plan from what is committed, within what the buffer has."""
    ledgers, log = run.head.state.ledgers, run.log
    present = look_at(run.reader)  # after the ledgers: newer ones could lie beyond the end of the log
    check_same_log(run.log, ledgers, run.source)
    check_sequencers(run.log, ledgers, present)
    ingested = _ingested(run)
    run.is_only_log = not any(map(log.is_other_log, ledgers))
    plan = make_plan(run.state, ingested, present, request, buffer=run.reader.name, is_only_log=run.is_only_log)
    if request.starts and may_be_merged(run.head.table.properties, run.rules):
        seen = look_at_batches(run.connection, log, run.reader.identity, {}, source=run.source)
        ways = find_ways(ledgers, map(log.producer, ingested), seen, run.source)
        check_merged(plan, {id_: ledger.ranges[0].start for id_, ledger in ingested.items()}, ways)
    return plan


def _ingested(run: _Replay) -> dict[int, Ledger]:
    """Return the published numbers by sequencer, as of the head."""
    ledgers = run.head.state.ledgers
    found = {run.log.sequencer_of(producer): ledger for producer, ledger in ledgers.items() if ledger.ranges}
    return {id_: ledger for id_, ledger in found.items() if id_ is not None}


def _replay_once(run: _Replay, request: Request) -> Published | None:
    """Write the rows that come back, find those that they replace, and publish both in one commit; None: no rows."""
    writer = lead_to_write(run.target.shard, run.target.deployment, what="replay")
    _load(run)
    if may_be_merged(run.head.table.properties, run.rules):
        run.plan = _plan(run, request)  # a persist since may have put values of older entries into the planned rows
    run.written = written = Written()
    try:
        _read(run)
        search = Search(
            log=run.log, plan=run.plan, rules=run.rules, decoded=written.decoded, undecoded=written.undecoded
        )
        _find(run, search)
    except TidemarkError:
        _discard(run)
        raise
    if not run.changes_rows:
        return None
    fail_point("replay.after-files")
    try:
        return _publish(run, writer)
    except (InputsGone, Fenced, Sealed, ConflictsUnsettled):  # with another error, the commit may have landed
        _discard(run)
        raise


def _find(run: _Replay, search: Search) -> None:
    run.on_main, run.open = (find_replaced(run.head, each, search) for each in (run.head.contents, run.head.open))


def _discard(run: _Replay) -> None:
    delete_files(run.head.table, [file.file_path for file in run.written.files])


def _read(run: _Replay) -> None:
    reading = Reading(
        shard=run.target.shard,
        table=run.head.table,
        log=run.log,
        rules=run.rules,
        source_table=run.source.table,
        plan=run.plan,
        base=base_of(run.state, is_only_log=run.is_only_log),
        turn=read_turns(run.head.table.properties).get(run.log.id, 0),
        former_names=find_former_names(run.head.table),
    )
    uncounted, ingested = run.partitions.missing(run.head.state.ledgers), _ingested(run)
    parts = {
        id_: cut_ranges(numbers, ingested[id_], uncounted.get(run.log.producer(id_), Ledger()))
        for id_, numbers in run.plan.numbers.items()
    }
    quarantined = find_quarantined(run.target.quarantine, run.log, run.plan)
    for id_, retried in run.retried.items():  # their rows stay, also if somebody has emptied the quarantine since
        run.written.undecoded[id_] = retried - {number for number, _ in quarantined.get(id_, ())}
    write_needed(run.written, reading, parts, quarantined, connection=run.connection, reader=run.reader)


def _record_lost(run: _Replay, who: str) -> None:
    """Record who goes on without how many entries, before rows are replaced."""
    if not run.plan.lost:
        return
    lost = {str(id_): count for id_, count in run.plan.lost.items()}
    details = {"collection": run.name, "buffer": run.reader.name, "lost": lost, "total": sum(lost.values())}
    run.target.deployment.losses.add(run.name, details, who=who)
    fail_point("replay.after-record")


def _publish(run: _Replay, writer: Writer) -> Published:
    persisted = _persisted(run.partitions)
    schema_id, now_ms = run.head.table.metadata.current_schema_id, run.target.clock.now_ms()

    def describe(head: ShardHead) -> dict[str, str]:
        if (reason := find_obstacle(head)) is not None:
            raise InputsGone(f"another engine wrote meanwhile: {reason}")
        if head.table.metadata.current_schema_id != schema_id:
            raise InputsGone(f"the columns of {run.name!r} were changed by another process", hint="run it again")
        if _persisted(Partitions.parse(head.table.properties, run.rules.column, run.rules.unit)) != persisted:
            raise InputsGone("rows were persisted by another process meanwhile", hint="run it again")
        if (present := Partitions.read(head.table.properties)) is None:
            return {}
        present, _ = present.drop_persists()
        to_merge, lifecycle = run.written.arrivals_to_merge.partitions, run.rules.lifecycle
        return {PROPERTY: str(present.open_again(to_merge, now_ms=now_ms, rules=lifecycle))}

    # What was persisted stays visible, whatever has to be merged: readers would miss it until the next pass.
    visible, opened = (*run.written.persisted, *run.written.to_merge), tuple(run.written.open)
    keeps_open = run.rules.keeps_open and run.is_only_log  # of several logs nobody knows what was persisted
    return replace_rows(
        writer,
        run.head,
        Replacement(run.on_main.removal, visible if keeps_open else visible + opened),
        Replacement(run.open.removal, opened if keeps_open else ()),
        describe=describe,
        now_ms=now_ms,
    )


def _persisted(partitions: Partitions) -> dict[str, PartitionCheckpoint | None]:
    return {name: each.checkpoint for name, each in partitions.state.partitions.items() if each.checkpoint is not None}


def _report(
    run: _Replay, strategy: str, *, is_read: bool = True, published: Published | None = None
) -> CollectionReport:
    state = run.head.state if published is None else published.state
    before, written = run.on_main.rows + run.open.rows, run.written
    sequencers = {
        str(id_): {"start": numbers.start, "end": numbers.end, "lost": run.plan.lost.get(id_, 0)}
        | ({"entries": written.entries[id_]} if is_read else {})
        for id_, numbers in sorted(run.plan.numbers.items())
    }
    partitions = [
        {"partition": name, "rows": before[name]} | ({"replayed": written.rows[name]} if is_read else {})
        for name in sorted({*before, *written.rows})
    ]
    details: dict[str, Any] = {"buffer": run.reader.name, "sequencers": sequencers, "partitions": partitions}
    told = {
        "lost": sum(run.plan.lost.values()),
        "warnings": list(run.plan.warnings),
        "damaged_files": {**run.on_main.damaged, **run.open.damaged},
        "quarantined": written.quarantined,
        "kept_rows": run.on_main.staying + run.open.staying,
        "kept_entries": _sorted(written.undecoded),
        "retried_entries": _sorted(run.retried),
    }
    details |= {name: what for name, what in told.items() if what}
    return CollectionReport(
        outcome=Outcome.UNCHANGED if published is None else Outcome.CORRECTED,
        lower=state.lower,
        upper=state.upper,
        inserted=sum(written.rows.values()) if published else 0,
        retracted=before.total() if published else 0,
        strategy=strategy,
        details=details,
    )


def _sorted(entries: Mapping[int, set[int]]) -> dict[str, list[int]]:
    return {str(id_): sorted(numbers) for id_, numbers in entries.items() if numbers}
