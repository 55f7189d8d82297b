"""Maintenance of collections: history that nobody needs goes, small files are merged; contents stay as they are."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from include.clock import SystemClock
from include.collections.mode import lead_to_write
from include.errors import TidemarkError
from include.exit_codes import ExitCode
from include.persist.compaction import compact
from include.persist.expiry import expire
from include.persist.orphans import MIN_AGE_MS, remove_orphans
from include.persist.shards import Shards
from include.persist.staging import drop_staged, find_abandoned
from include.report import CollectionReport, ErrorReport, Outcome, Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from include.clock import Clock
    from include.persist.shard import Shard
    from include.settings import Settings

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
    spark: SparkSession,
    settings: Settings,
    names: Sequence[str],
    *,
    policy: MaintenancePolicy = DEFAULT_POLICY,
    clock: Clock | None = None,
) -> Report:
    """Maintain collections one after the other, each one's failure its own.

    Args:
        spark: Rewrites what is too much for the driver.
        settings: Where things are, and which deployment this is.
        names: Stored collections; none means all of them.
        policy: How long things are kept.
        clock: Tells the time.

    Raises:
        UnknownCollection: If a name is not stored; nothing was started.
        Unreachable: If the catalog does not answer.
    """
    clock = clock or SystemClock()
    started_at = clock.now_ms()
    shards = Shards.connect(settings)
    chosen = [shards.open(name) for name in (names or shards.names())]
    results = {shard.name: _maintain_isolated(spark, shard, settings, policy, clock) for shard in chosen}
    return Report(
        operation="maintain",
        started_at=started_at,
        finished_at=clock.now_ms(),
        generation=settings.generation,
        collections=results,
    )


def maintain(
    spark: SparkSession, shard: Shard, settings: Settings, *, policy: MaintenancePolicy, now_ms: int
) -> CollectionReport:
    """Maintain one collection: every step is safe to do again, and to lose to a writer.

    Raises:
        Fenced: If a newer deployment leads; its own maintenance does this.
        ReadOnly: If the deployment is read-only: maintenance is a write.
    """
    writer = lead_to_write(shard, settings, what="maintenance")
    before = shard.load()
    since = shard.downgrade_since(max(0, now_ms - policy.history_ms), now_ms=now_ms)
    abandoned = find_abandoned(before, now_ms=now_ms, max_age_ms=policy.staged_age_ms)
    dropped = drop_staged(shard, abandoned)
    compaction = compact(writer, spark=spark)
    expiry = expire(writer, older_than_ms=now_ms - policy.snapshot_age_ms)
    orphans = remove_orphans(shard, older_than_ms=now_ms - policy.orphan_age_ms)
    return CollectionReport(
        outcome=Outcome.UNCHANGED,  # the contents, that is
        lower=before.state.lower,
        upper=before.state.upper,
        strategy=compaction.outcome,
        details={
            "since": str(since),
            "compaction": asdict(compaction),
            "expiry": asdict(expiry),
            "orphans": asdict(orphans),
            "abandoned_branches": dropped,
        },
    )


def _maintain_isolated(
    spark: SparkSession, shard: Shard, settings: Settings, policy: MaintenancePolicy, clock: Clock
) -> CollectionReport:
    started = clock.now_ms()
    try:
        report = maintain(spark, shard, settings, policy=policy, now_ms=started)
    except TidemarkError as error:
        report = CollectionReport(outcome=Outcome.FAILED, error=ErrorReport.of(error))
    except Exception as error:
        # A bug in what one collection does must not take the others' results away; it exits with 70.
        log.exception("%s failed", shard.name)
        failure = ErrorReport(kind=type(error).__name__, message=str(error), exit_code=ExitCode.BUG)
        report = CollectionReport(outcome=Outcome.FAILED, error=failure)
    return replace(report, seconds=(clock.now_ms() - started) / 1000)
