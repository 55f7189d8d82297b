"""Runs sinks: each asks its target how far it came, and carries what came since, exactly once.

The target is claimed first, which fences every older run; ``carrying`` has the steps after that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter

from tidemark.clock import Clock
from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.collections.deployment import Applied, AppliedSink, Deployment, Mode
from tidemark.collections.holds import moment_text
from tidemark.collections.isolation import run_one_by_one, skipped
from tidemark.collections.mode import read_mode
from tidemark.collections.schema.renaming import refuse_if_pending
from tidemark.errors import CatalogOutOfSync, Dropped, HistoryGone, NotPossible, UnknownCollection, UnknownSink
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shards import Shards
from tidemark.report import CollectionReport, Outcome, Report
from tidemark.settings import Settings
from tidemark.sinks.carrying import DECLARE_AGAIN, Carrying, StartSpark, follow, has_news, load
from tidemark.sinks.history import is_applied, refuse_dropped
from tidemark.sinks.large_loads import owner_of
from tidemark.sinks.progress import Owner, Progress, check_owner, lag_ms
from tidemark.sinks.reading.rows import columns_of
from tidemark.sinks.target import Target
from tidemark.sinks.targets.registry import open_target
from tidemark.sinks.turns import taking_turn

FAIL_POINTS = ("sink.looked", "sink.claimed")
_ROUNDS = 3  # what comes during a long round is carried by the next one: other runs were skipped meanwhile

OpenTarget = Callable[[SinkDeclaration, Settings], Target]


def choose_sinks(deployment: Deployment, names: Sequence[str]) -> list[AppliedSink]:
    """Return the named sinks, or all. Raises ``UnknownSink``, with near matches, if some are not applied."""
    sinks = deployment.registry.read().sinks
    if unknown := [name for name in dict.fromkeys(names) if name not in sinks]:
        raise UnknownSink.all_named(unknown, sinks)
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
        Unreachable: If the target does not answer, or a folder that the sink wrote is empty; history stays held.
        SchemaMismatch: If the target has other columns; nothing was written.
        NotPossible: If the target belongs to somebody else.
        HistoryGone: If updates that the target lacks are gone.
        Fenced: If another run, or a newer deployment, took the target over.
        ReadOnly: If the deployment became read-only meanwhile.
        Dropped: If the sink was dropped, whoever has its name now; the target keeps no progress of the sink.
    """
    if read_mode(deployment) is Mode.READ_ONLY:
        return skipped(f"deployment {deployment.generation} is read-only: the one that leads runs the sinks")
    with taking_turn(deployment.settings, applied) as other:
        if not is_applied(deployment, applied):  # after the lease began, which a drop looks for after the catalog
            return skipped("the sink was dropped after it was chosen to run")
        if other is not None:
            since = moment_text(other.began_ms)
            return skipped(f"another run of the sink is under way since {since}, in {other.writer}")
        report = _run_in_turn(shards, applied, deployment=deployment, open_target=open_target, start_spark=start_spark)
    if not isinstance(report.upper, int) or not report.upper:
        return report
    changed = shards.open(applied.collection).load().state.changed
    return replace(report, details={**report.details, "lag_ms": lag_ms(report.upper, changed, now_ms=clock.now_ms())})


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
        registered = deployment.registry.read()  # after the head: an apply changes the columns first
        _refuse_other_columns(sink, head, registered)
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
        fail_point("sink.looked")
        claimed = target.claim(owner, generation=deployment.generation)
        fail_point("sink.claimed")
        kept = {*registered.declarations[sink.collection].key}
        run = Carrying(
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
                load(run)
            for _ in range(_ROUNDS):
                if not follow(run):
                    break
        except NotPossible as error:  # also of a target that a drop has freed
            if is_applied(deployment, applied):
                raise
            target.forget(owner)
            raise Dropped.meanwhile(sink.name) from error
        return _report(run, claimed.time or 0)


def _refuse_other_columns(sink: SinkDeclaration, head: ShardHead, registered: Applied) -> None:
    """Refuse to run by names that columns have no longer: an apply that renames them is under way, or died."""
    present = {column.name for column in columns_of(head)}
    named = (*sink.key_columns, *sink.to.columns)
    if missing := [name for name in named if name not in present]:
        raise CatalogOutOfSync(
            f"sink {sink.name!r} needs {', '.join(map(repr, missing))}, and {sink.collection!r} has no such columns",
            hint="run again; if that does not help, an apply died: run `tidemark apply` with the same files again",
        )
    if sink.collection not in registered.declarations:
        raise UnknownCollection.named(sink.collection, registered.declarations, renamed=registered.renamed)
    renames = registered.declarations[sink.collection].renames
    refuse_if_pending(named, head.table.properties, renames=renames, collection=sink.collection)
    now = registered.sinks.get(sink.name)
    if now is not None and (*now.declaration.key_columns, *now.declaration.to.columns) != named:
        raise CatalogOutOfSync(f"an apply renamed columns of the sink {sink.name!r} meanwhile", hint="run again")


def _check_target(target: Target, found: Progress | None, owner: Owner, head: ShardHead) -> None:
    """Refuse a target that another sink wrote, or one with other columns, before anything is written.

    A sink with `existing: replace` takes the target of an earlier sink of its name, but not back from one that another
    installation runs, which took the target from this sink: the two would undo each other for ever.
    """
    if found is not None:
        is_robbed = target.sink.hold in head.state.holds and found.owner.table_uuid != owner.table_uuid
        check_owner(found, owner, replaces=target.sink.to.replaces and not is_robbed, where=target.title)
    target.refuse_away(found, head.state.holds)
    if found is None or found.owner != owner or found.time is None:
        target.inspect(columns_of(head))
    elif isinstance(head.state.upper, int) and found.time > head.state.upper:
        raise HistoryGone(
            f"{target.title} has the updates up to {found.time}, and the collection {owner.collection!r} ends at "
            f"{head.state.upper}",
            hint=f"the collection was restored from a backup, or the target's progress was edited: {DECLARE_AGAIN}",
        )


def _is_due(sink: SinkDeclaration, head: ShardHead, progress: Progress) -> bool:
    """Tell whether a run has anything to carry, to evolve or to hold: else it leaves the target alone."""
    time, held = progress.time, head.state.holds.get(sink.hold)
    if time is None or held is None or not held.is_durable:
        return True
    return held.since not in {max(time - 1, 0), time} or has_news(head, progress, sink)


def _report(run: Carrying, start: int) -> CollectionReport:
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
