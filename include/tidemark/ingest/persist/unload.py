"""Drops the staged copies of rows that are persisted: files that only the history of the tag ``tidemark-open`` has.

Maintenance drops them by itself once nobody can be reading them any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from tidemark.clock import Clock
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Deployment
from tidemark.collections.isolation import run_one_by_one
from tidemark.collections.mode import lead_to_write
from tidemark.iceberg.maintenance.expiry import expire
from tidemark.iceberg.shard.head import OPEN
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shards import Shards
from tidemark.interval import LATEST_MS
from tidemark.report import CollectionReport, Outcome, Report


def unload_all(shards: Shards, deployment: Deployment, declarations: Sequence[Declaration], *, clock: Clock) -> Report:
    """Unload each collection. A reader of open rows that is at work meanwhile may miss a file, and reads again."""

    def unload_one(declaration: Declaration) -> CollectionReport:
        return unload(shards.open(declaration.name), deployment)

    report, _ = run_one_by_one(
        "unload",
        declarations,
        unload_one,
        deployment=deployment,
        clock=clock,
        started_at=clock.now_ms(),
        goes_on_paused=True,
    )
    return report


def unload(shard: Shard, deployment: Deployment) -> CollectionReport:
    """Unload one collection; rows that are not persisted stay, and so do the contents.

    Raises:
        ReadOnly: If the deployment is read-only.
        FencedByGeneration: If a newer deployment leads.
        ConflictsUnsettled: If other commits kept winning.
    """
    writer = lead_to_write(shard, deployment, what="unload")
    expiry = expire(writer, older_than_ms=LATEST_MS, branch=OPEN)
    state = shard.load().state
    return CollectionReport(
        outcome=Outcome.UNCHANGED, lower=state.lower, upper=state.upper, details={"expiry": asdict(expiry)}
    )
