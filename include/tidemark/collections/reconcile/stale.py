"""Reconciles what a flush left staged, because it does not fit the contents any more: in the same run, with Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemark.clock import Clock
from tidemark.collections.deployment import Deployment
from tidemark.collections.reconcile.run import reconcile_all
from tidemark.collections.staged.corrections import NEXT, REASONS, STALE
from tidemark.collections.staged.slices import reconcile_command, to_reconcile
from tidemark.fail_points import fail_point
from tidemark.iceberg.shards import Shards
from tidemark.interval import Interval
from tidemark.report import SKIPPED_BECAUSE, CollectionReport, Outcome, Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAIL_POINTS = ("flush.before-reconcile", "flush.after-reconcile")


def reconcile_stale(
    flushed: Report, deployment: Deployment, *, start_spark: Callable[[], SparkSession], clock: Clock
) -> Report:
    """Reconcile the slices of the corrections that ``flushed`` reports as stale; return the report of both.

    Each reconcile removes the corrections that it covers. A collection that is not declared any more, or whose rows a
    program hands over, has no source to be made equal to, so that its corrections stay. Spark is started only if there
    is anything to reconcile.
    """
    declared = deployment.registry.read().declarations
    shards = Shards.connect(deployment.settings)
    wanted: dict[Interval | None, list[str]] = {}
    for name, report in flushed.collections.items():
        if STALE in report.details and name in declared and not declared[name].is_handed_over:
            scope = declared[name].scope
            column = scope.column if scope else ""
            for interval in to_reconcile(shards.open(name).load(), report.details[STALE], column=column):
                wanted.setdefault(interval, []).append(name)
    fail_point("flush.before-reconcile")
    reconciled: dict[str, dict[str, CollectionReport]] = {}  # by collection and command
    for interval, names in wanted.items():
        done = reconcile_all(start_spark(), deployment, names, interval=interval, clock=clock)
        for name, report in done.collections.items():
            reconciled.setdefault(name, {})[reconcile_command(name, interval)] = report
        fail_point("flush.after-reconcile")
    joined = {name: _joined(flushed.collections[name], reports) for name, reports in reconciled.items()}
    return replace(flushed, finished_at=clock.now_ms(), collections=flushed.collections | joined)


def _joined(flushed: CollectionReport, reconciled: Mapping[str, CollectionReport]) -> CollectionReport:
    """Return the report of a flush and of the reconciles after it, by their commands."""
    reports = [flushed, *reconciled.values()]
    outcomes = {report.outcome for report in reports}
    errors = [report.error for report in reconciled.values() if report.error]
    if outcomes & {Outcome.STAGED, Outcome.SKIPPED} and flushed.error:  # read-only again, or an input is not right
        errors.append(flushed.error)
    details: dict[str, object] = {"reconciled": [*reconciled]}
    for report in reports:
        if SKIPPED_BECAUSE in report.details:
            details[SKIPPED_BECAUSE] = report.details[SKIPPED_BECAUSE]
    if not errors:
        outcome = Outcome.FLUSHED if outcomes & {Outcome.FLUSHED, Outcome.CORRECTED} else Outcome.UNCHANGED
        details |= {key: detail for key, detail in flushed.details.items() if key not in {STALE, REASONS, NEXT}}
    else:
        outcome = flushed.outcome
        details |= flushed.details
    return replace(
        flushed,
        outcome=outcome,
        upper=next(report.upper for report in reversed(reports) if report.upper is not None),
        inserted=sum(report.inserted for report in reports),
        retracted=sum(report.retracted for report in reports),
        details=details,
        error=errors[0] if errors else None,
    )
