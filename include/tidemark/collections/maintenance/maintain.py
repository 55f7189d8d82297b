"""Maintenance of collections: history that nobody needs goes, small files are merged, declared retentions are kept."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from tidemark.clock import SystemClock
from tidemark.collections.isolation import isolate
from tidemark.collections.maintenance.retain import Retained, retain
from tidemark.collections.mode import lead_to_write, refuse_when_read_only
from tidemark.collections.sources.scratch_folder import remove_abandoned_scratch
from tidemark.collections.staged.staged_retention import discard_expired
from tidemark.errors import Sealed
from tidemark.iceberg.commit.holds import downgrade_since
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.expiry import expire
from tidemark.iceberg.maintenance.orphans import MIN_AGE_MS, remove_orphans
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging.branches import drop_staged, find_abandoned
from tidemark.report import CollectionReport, Outcome, Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from tidemark.clock import Clock
    from tidemark.collections.declarations.collection import Declaration
    from tidemark.collections.deployment import Deployment
    from tidemark.iceberg.shard.shard import Shard

log = logging.getLogger(__name__)

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenancePolicy:
    """How long things are kept; live holds keep what they need for longer."""

    history_ms: int = 7 * DAY_MS  # since follows the clock at this distance
    snapshot_age_ms: int = HOUR_MS  # somebody may be reading a younger one
    staged_age_ms: int = MIN_AGE_MS  # of a staging branch that nobody published
    orphan_age_ms: int = MIN_AGE_MS  # of a file that nothing names


DEFAULT_POLICY = MaintenancePolicy()


def maintain_all(
    spark: SparkSession | None,
    deployment: Deployment,
    names: Sequence[str],
    *,
    policy: MaintenancePolicy = DEFAULT_POLICY,
    clock: Clock | None = None,
) -> Report:
    """Maintain collections one after the other, each one's failure its own.

    Args:
        spark: Rewrites what is too much for the driver; without it the driver does it in pieces.
        deployment: Where things are, and whose this is.
        names: Stored collections; none means all of them.
        policy: How long things are kept.
        clock: Tells the time.

    Raises:
        UnknownCollection: If a name is not stored; nothing was started.
        Unreachable: If the catalog does not answer.
    """
    clock = clock or SystemClock()
    started_at = clock.now_ms()
    shards = Shards.connect(deployment.settings)
    chosen = [shards.open(name) for name in (names or shards.names())]
    declared = deployment.registry.read().declarations
    run = partial(maintain, spark, shards, deployment=deployment, policy=policy, clock=clock)
    results = {
        shard.name: isolate(shard.name, partial(run, shard, declaration=declared.get(shard.name)), clock=clock)
        for shard in chosen
    }
    if spark is not None and any(each.error is None for each in results.values()):
        _clear_scratch(spark, deployment, older_than_ms=started_at - policy.orphan_age_ms)
    return Report(
        operation="maintain",
        started_at=started_at,
        finished_at=clock.now_ms(),
        generation=deployment.generation,
        collections=results,
    )


def _clear_scratch(spark: SparkSession, deployment: Deployment, *, older_than_ms: int) -> None:
    """Remove what killed runs have left; whoever may maintain a collection may do this."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415  # comes with Spark

    try:
        removed = remove_abandoned_scratch(spark, deployment.settings, older_than_ms=older_than_ms)
    except Py4JJavaError as error:  # the collections are maintained, and this is done again the next time
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
    """Maintain one collection: every step is safe to do again, and to lose to a writer.

    Contents change by the declared retention alone; compaction comes after it and takes what it left behind. A sealed
    collection takes neither: only what nobody can read any more goes.

    Raises:
        Fenced: If a newer deployment leads; its own maintenance does this.
        ReadOnly: If the deployment is read-only: maintenance is a write.
    """
    now_ms = clock.now_ms()
    try:
        writer = lead_to_write(shard, deployment, what="maintenance")
    except Sealed:
        refuse_when_read_only(deployment, f"maintenance of {shard.name!r}")
        return _maintain_sealed(shard, policy=policy, now_ms=now_ms)
    before = shard.load()
    discarded = discard_expired(shards, shard, declaration, deployment, clock=clock)
    retained: Retained | None = None
    if declaration is not None and declaration.retention is not None:
        retained = retain(shard, declaration.retention, deployment=deployment, now_ms=now_ms)
    since = downgrade_since(shard, max(0, now_ms - policy.history_ms), now_ms=now_ms)
    abandoned = find_abandoned(before, now_ms=now_ms, max_age_ms=policy.staged_age_ms)
    dropped = drop_staged(shard, abandoned)
    compaction = compact(writer, spark=spark)
    expiry = expire(writer, older_than_ms=now_ms - policy.snapshot_age_ms)
    orphans = remove_orphans(shard, older_than_ms=now_ms - policy.orphan_age_ms)
    return CollectionReport(
        outcome=Outcome.CORRECTED if retained and retained.rows else Outcome.UNCHANGED,  # the contents, that is
        lower=before.state.lower,
        upper=retained.upper if retained else before.state.upper,
        retracted=retained.rows if retained else 0,
        strategy=compaction.outcome,
        details={
            "since": str(since),
            **(retained.to_json() if retained else {}),
            **({"discarded": [each.to_json() for each in discarded]} if discarded else {}),
            "compaction": asdict(compaction),
            "expiry": asdict(expiry),
            "orphans": asdict(orphans),
            "abandoned_branches": dropped,
        },
    )


def _maintain_sealed(shard: Shard, *, policy: MaintenancePolicy, now_ms: int) -> CollectionReport:
    """Drop what a sealed collection, which nobody can join, has kept for readers of its past."""
    state = shard.load().state
    writer = Writer(shard, state.token, state.token.generation)
    expiry = expire(writer, older_than_ms=now_ms - policy.snapshot_age_ms)
    orphans = remove_orphans(shard, older_than_ms=now_ms - policy.orphan_age_ms)
    return CollectionReport(
        outcome=Outcome.UNCHANGED,
        lower=state.lower,
        upper=state.upper,
        strategy="sealed",
        details={"since": str(state.since), "expiry": asdict(expiry), "orphans": asdict(orphans)},
    )
