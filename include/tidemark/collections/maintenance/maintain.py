"""Maintenance and compaction: removes old history, merges small files, applies declared retentions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from tidemark.clock import Clock, SystemClock
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Deployment
from tidemark.collections.holds import HISTORY_MS, find_overdue, release_dead
from tidemark.collections.isolation import run_one_by_one
from tidemark.collections.maintenance.dropped_tables import GRACE_MS, REMOVERS, Remover, remove_dropped
from tidemark.collections.maintenance.retain import Retained, retain
from tidemark.collections.mode import lead_to_write, refuse_when_read_only
from tidemark.collections.objects.standing import ObjectKind
from tidemark.collections.sources.scratch_folder import remove_abandoned_scratch
from tidemark.collections.staged.batches import kept_corrections
from tidemark.collections.staged.discard import discard_expired
from tidemark.collections.system.declarations import SYSTEM_DECLARATIONS
from tidemark.errors import Sealed
from tidemark.iceberg.commit.holds import downgrade_since
from tidemark.iceberg.commit.kept_files import ORPHAN_AGE_MS
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.leases.protection import MAINTENANCE, protect_writers
from tidemark.iceberg.leases.watching import end_lapsed
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.expiry import expire
from tidemark.iceberg.maintenance.orphans import remove_orphans, store_now_ms
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shards import COLLECTIONS, SYSTEM, Shards
from tidemark.iceberg.staging.branches import drop_staged, find_abandoned
from tidemark.interval import HOUR_MS
from tidemark.report import CollectionReport, Outcome, Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger(__name__)

SPARK_ROWS = 5_000_000  # with fewer rows this process compacts faster than Spark starts


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenancePolicy:
    """How long maintenance keeps everything; live holds keep longer what they need."""

    history_ms: int = HISTORY_MS  # the distance between ``since`` and the clock
    snapshot_age_ms: int = HOUR_MS  # a reader may still need a younger snapshot
    staged_age_ms: int = ORPHAN_AGE_MS  # of a staging branch that nobody published
    orphan_age_ms: int = ORPHAN_AGE_MS  # of a file that nothing names
    dropped_ms: int = GRACE_MS  # of a dropped table: people may change their mind


DEFAULT_POLICY = MaintenancePolicy()


def maintain_all(
    spark: SparkSession | None,
    deployment: Deployment,
    names: Sequence[str],
    *,
    policy: MaintenancePolicy = DEFAULT_POLICY,
    clock: Clock | None = None,
    removers: Mapping[ObjectKind, Remover] = REMOVERS,
) -> Report:
    """Maintain the stored collections ``names`` (empty for all) one after the other; failures are isolated.

    Without ``names`` also those that the system writes about itself, in many small commits, and of which no history is
    kept; and remove what dropped objects left, each kind by its remover. A paused collection keeps its rows and its
    staged batches, however old. Spark rewrites files that are too large for the driver; without ``spark`` the driver
    rewrites them in pieces.

    Raises:
        UnknownCollection: If a name is not stored; nothing was started.
        Unreachable: If the catalog does not answer.
    """
    clock = clock or SystemClock()
    started_at = clock.now_ms()
    shards = Shards.connect(deployment.settings)
    chosen = [shards.open(name) for name in names] or [*shards.all(), *_system_shards(shards)]
    paused = {name for name, standing in deployment.objects.read().items() if standing.is_paused}
    end_lapsed(deployment.settings, ())

    def maintain_one(shard: Shard) -> CollectionReport:
        shard.load_table()  # before its declaration: what is made anew from now on is another table
        declaration = SYSTEM_DECLARATIONS.get(shard.name) or deployment.registry.find(shard.name)
        if shard.name in paused:  # what is due by the declaration is none of its
            declaration = None
        kept = policy if shard.namespace == COLLECTIONS else replace(policy, history_ms=policy.snapshot_age_ms)
        return maintain(spark, shards, shard, deployment=deployment, policy=kept, clock=clock, declaration=declaration)

    report, _ = run_one_by_one(
        MAINTENANCE,
        chosen,
        maintain_one,
        deployment=deployment,
        clock=clock,
        started_at=started_at,
        goes_on_paused=True,
    )
    if not names:
        removed = remove_dropped(shards, deployment, clock=clock, grace_ms=policy.dropped_ms, removers=removers)
        report = replace(report, collections=report.collections | removed.collections, finished_at=clock.now_ms())
    if spark is not None and any(result.error is None for result in report.collections.values()):
        _clear_scratch(spark, deployment, older_than_ms=started_at - policy.orphan_age_ms)
    return report


def compact_all(
    deployment: Deployment, names: Sequence[str], *, start_spark: Callable[[], SparkSession], clock: Clock | None = None
) -> Report:
    """Compact the named collections one after the other; ``start_spark`` is called for large collections only.

    Raises:
        UnknownCollection: If a name is not stored; nothing was started.
        Unreachable: If the catalog does not answer.
    """
    clock = clock or SystemClock()
    started_at = clock.now_ms()
    shards = Shards.connect(deployment.settings)
    chosen = [shards.open(name) for name in dict.fromkeys(names)]

    def compact_one(shard: Shard) -> CollectionReport:
        writer = lead_to_write(shard, deployment, what="compaction")
        spark = start_spark() if shard.load().row_count > SPARK_ROWS else None
        result = compact(writer, spark=spark, cluster_by=_clustered_by(deployment.registry.find(shard.name)))
        state = shard.load().state
        # The contents stay the same; ``strategy`` says whether files were merged.
        was_idle = result.outcome in {"skipped", "discarded"}
        return CollectionReport(
            outcome=Outcome.SKIPPED if was_idle else Outcome.UNCHANGED,
            lower=state.lower,
            upper=state.upper,
            strategy=result.outcome,
            details={"compaction": asdict(result)},
        )

    report, _ = run_one_by_one(
        "compact", chosen, compact_one, deployment=deployment, clock=clock, started_at=started_at, goes_on_paused=True
    )
    return report


def _clustered_by(declaration: Declaration | None) -> tuple[str, ...]:
    """Return the columns that the files of the collection are to be sorted by; empty: as its table asks."""
    return () if declaration is None or declaration.cluster_by is None else declaration.cluster_by


def _system_shards(shards: Shards) -> list[Shard]:
    """Return the collections that the system has recorded anything in; its logs are not among them."""
    return [shard for shard in shards.all(SYSTEM) if shard.name in SYSTEM_DECLARATIONS]


def _clear_scratch(spark: SparkSession, deployment: Deployment, *, older_than_ms: int) -> None:
    """Remove scratch folders of killed runs."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415  # comes with Spark

    try:
        removed = remove_abandoned_scratch(spark, deployment.settings, older_than_ms=older_than_ms)
    except Py4JJavaError as error:  # the next maintenance tries again
        log.warning("what killed runs left could not be removed: %s", error.java_exception)
    else:
        log.info("%s folders of killed runs removed", removed)


def maintain(
    spark: SparkSession | None,
    shards: Shards,
    shard: Shard,
    *,
    deployment: Deployment,
    policy: MaintenancePolicy,
    clock: Clock,
    declaration: Declaration | None = None,
) -> CollectionReport:
    """Maintain one collection; every step may be repeated, and may lose to another writer.

    Only the declared retention changes the contents; compaction follows and rewrites the files that the retention left.
    A sealed collection has neither: only files that nobody can read any more are removed.

    Raises:
        Fenced: If a newer deployment leads, which does its own maintenance.
        ReadOnly: If the deployment is read-only.
    """
    try:
        writer = lead_to_write(shard, deployment, what="maintenance")
    except Sealed:
        refuse_when_read_only(deployment, f"maintenance of {shard.name!r}")
        return _maintain_sealed(shard, deployment, policy=policy, now_ms=_now_ms(shard, clock))
    now_ms = _now_ms(shard, clock)
    released = _release_dead(shard, writer, deployment)
    before = shard.load()
    discarded = discard_expired(shards, shard, declaration, deployment, now_ms=now_ms, clock=clock)
    retained: Retained | None = None
    if declaration is not None and declaration.retention is not None:
        retained = retain(shard, declaration.retention, deployment=deployment, now_ms=now_ms)
    since = downgrade_since(shard, max(0, now_ms - policy.history_ms), now_ms=now_ms)
    overdue = find_overdue(shard.name, before.state, before.oldest_ms, now_ms=now_ms, registry=deployment.registry)
    for held in overdue:
        log.warning("%s → %s", held.warning, held.hint)
    kept = kept_corrections(before, deployment)
    abandoned = find_abandoned(before, now_ms=now_ms, max_age_ms=policy.staged_age_ms, kept=kept)
    if abandoned and (since_ms := protect_writers(deployment.settings, shard.name)) is not None:
        last_ms = min(now_ms - policy.staged_age_ms, since_ms)
        abandoned = find_abandoned(before, now_ms=last_ms, max_age_ms=0, kept=kept)
    dropped = drop_staged(shard, abandoned)
    compaction = compact(writer, spark=spark, cluster_by=_clustered_by(declaration))
    expiry = expire(writer, older_than_ms=now_ms - policy.snapshot_age_ms)
    orphans = remove_orphans(shard, older_than_ms=now_ms - policy.orphan_age_ms)
    return CollectionReport(
        outcome=Outcome.CORRECTED if retained and retained.rows else Outcome.UNCHANGED,  # of the contents
        lower=before.state.lower,
        upper=retained.upper if retained else before.state.upper,
        retracted=retained.rows if retained else 0,
        strategy=compaction.outcome,
        details={
            "since": str(since),
            **(retained.to_json() if retained else {}),
            **({"released_holds": released} if released else {}),
            **({"overdue_holds": [held.to_json() for held in overdue]} if overdue else {}),
            **({"discarded": [batch.to_json() for batch in discarded]} if discarded else {}),
            "compaction": asdict(compaction),
            "expiry": asdict(expiry),
            "orphans": asdict(orphans),
            "abandoned_branches": dropped,
        },
    )


def _now_ms(shard: Shard, clock: Clock) -> int:
    """Return the time by which ages count: a clock that is ahead of the store's makes nothing too old."""
    return min(clock.now_ms(), store_now_ms(shard))


def _release_dead(shard: Shard, writer: Writer, deployment: Deployment) -> list[str]:
    released = sorted(release_dead(shard, deployment, writer=writer))
    for reader in released:
        log.warning("%s held history of %s for a sink that is gone: released", reader, shard.identifier)
    return released


def _maintain_sealed(
    shard: Shard, deployment: Deployment, *, policy: MaintenancePolicy, now_ms: int
) -> CollectionReport:
    """Remove old history of a sealed collection, which no writer can join."""
    state = shard.load().state
    writer = Writer(shard, state.token, state.token.generation)
    released = _release_dead(shard, writer, deployment)
    expiry = expire(writer, older_than_ms=now_ms - policy.snapshot_age_ms)
    orphans = remove_orphans(shard, older_than_ms=now_ms - policy.orphan_age_ms)
    return CollectionReport(
        outcome=Outcome.UNCHANGED,
        lower=state.lower,
        upper=state.upper,
        strategy="sealed",
        details={
            "since": str(state.since),
            **({"released_holds": released} if released else {}),
            "expiry": asdict(expiry),
            "orphans": asdict(orphans),
        },
    )
