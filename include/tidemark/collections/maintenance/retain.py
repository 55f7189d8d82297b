"""Retention: removes rows that a declaration does not keep, in one commit; the ledgers stay unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.clock import Clock
from tidemark.collections.declarations.append_only import Retention
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Deployment
from tidemark.collections.isolation import run_one_by_one
from tidemark.collections.maintenance.retention_policies import choose_removal
from tidemark.collections.mode import lead_to_write
from tidemark.collections.objects.applied import open_applied
from tidemark.collections.publish import ATTEMPTS
from tidemark.collections.schema.renaming import refuse_if_pending
from tidemark.errors import FencedByEpoch, InputsGone, UsageError
from tidemark.frontier import Frontier
from tidemark.iceberg.maintenance.row_removal import Removal, remove_rows
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shards import Shards
from tidemark.report import CollectionReport, Outcome, Report
from tidemark.retry import retrying


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """The rows that a retention removed, or would remove."""

    policy: str
    rows: int = 0
    files: int = 0  # files that were removed whole
    lower: Frontier
    upper: Frontier

    def report(self) -> CollectionReport:
        return CollectionReport(
            outcome=Outcome.CORRECTED if self.rows else Outcome.UNCHANGED,
            lower=self.lower,
            upper=self.upper,
            retracted=self.rows,
            strategy="retain",
            details=self.to_json(),
        )

    def to_json(self) -> dict[str, object]:
        return {"retention": self.policy, "files_dropped": self.files}


def retain_all(
    shards: Shards, deployment: Deployment, declarations: Sequence[Declaration], *, clock: Clock, dry_run: bool = False
) -> Report:
    """Apply the declared retentions, one collection after the other; failures are isolated."""
    started_at = clock.now_ms()

    def retain_one(declaration: Declaration) -> CollectionReport:
        shard, retention = open_applied(shards, deployment, declaration), require_retention(declaration)
        now_ms = clock.now_ms()
        if dry_run:
            return plan_retention(shard, retention, now_ms=now_ms).report()
        return retain(shard, retention, deployment=deployment, now_ms=now_ms).report()

    report, _ = run_one_by_one(
        "retain", declarations, retain_one, deployment=deployment, clock=clock, started_at=started_at
    )
    return report


def require_retention(declaration: Declaration) -> Retention:
    """Return the declared retention.

    Raises ``UsageError`` if there is none.
    """
    if declaration.retention is None:
        raise UsageError(
            f"{declaration.name!r} declares no retention: all its rows stay", hint="declare `retention`, and apply it"
        )
    return declaration.retention


def retain(shard: Shard, retention: Retention, *, deployment: Deployment, now_ms: int) -> Retained:
    """Remove the rows that ``retention`` does not keep at ``now_ms``, in one commit.

    Concurrent appends do not matter; after other maintenance the rows are chosen again from a new snapshot. A sealed
    collection, and one without any append, stays unchanged.

    Raises:
        ReadOnly: If the deployment is read-only; nothing was changed.
        FencedByGeneration: If a newer deployment leads.
        ConflictsUnsettled: If other commits kept winning; nothing was removed.
        CatalogOutOfSync: If an apply that renames the columns that decide is under way, or died; nothing was removed.
    """
    attempts = retrying(InputsGone, attempts=ATTEMPTS, what=f"the retention of {shard.name!r}")
    return attempts(_retain_once, shard, retention, deployment=deployment, now_ms=now_ms)


def _retain_once(shard: Shard, retention: Retention, *, deployment: Deployment, now_ms: int) -> Retained:
    state = shard.load().state
    if state.is_sealed or state.upper == 0:
        return _describe(retention, Removal(), state.upper, state.upper)
    writer = lead_to_write(shard, deployment, what="retention")
    head = shard.load()
    _refuse_old_names(head, retention, deployment.registry.find(shard.name))
    removal = choose_removal(head, retention, now_ms=now_ms)
    if not removal.rows:
        return _describe(retention, removal, head.state.upper, head.state.upper)
    try:
        published = remove_rows(writer, head, removal, now_ms=now_ms)
    except FencedByEpoch as error:  # a mode switch, or a flush, which raises the token
        raise InputsGone(f"another commit to {shard.name!r} was faster: {error}") from error
    return _describe(retention, removal, published.state.lower, published.state.upper)


def _refuse_old_names(head: ShardHead, retention: Retention, registered: Declaration | None) -> None:
    if registered is not None:
        named = (*retention.key, *retention.order_by, *filter(None, [retention.column]))
        refuse_if_pending(named, head.table.properties, renames=registered.renames, collection=registered.name)


def plan_retention(shard: Shard, retention: Retention, *, now_ms: int) -> Retained:
    """Return what ``retain`` would remove; allowed in read-only mode, too."""
    head = shard.load()
    upper = head.state.upper
    is_closed = head.state.is_sealed or upper == 0
    removal = Removal() if is_closed else choose_removal(head, retention, now_ms=now_ms)
    return _describe(retention, removal, upper, upper)


def _describe(retention: Retention, removal: Removal, lower: Frontier, upper: Frontier) -> Retained:
    return Retained(policy=str(retention), rows=removal.rows, files=len(removal.dropped), lower=lower, upper=upper)
