"""Records what runs did to the objects of the catalog, in the collections ``system_status`` and ``system_statistics``.

The edges of the system call these functions (the command line, the Spark applications, the tasks of the DAGs) after
they have given their own answer. Recording never fails: what cannot be recorded is in the log, and the next run says it
again, because a status is compared with those that are stored.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa

from tidemark.clock import Clock
from tidemark.collections.append.forward import user_columns
from tidemark.collections.append.row_writers import Appenders
from tidemark.collections.declarations.collection import QUARANTINE_SUFFIX, Kind, OnReadOnly
from tidemark.collections.deployment import CatalogObject, Deployment, Mode, StatusKind
from tidemark.collections.isolation import only_logging
from tidemark.collections.maintenance.maintain import MaintenancePolicy, maintain
from tidemark.collections.mode import read_mode, stands_by
from tidemark.collections.objects.standing import ObjectKind
from tidemark.collections.system.declarations import STATISTICS, STATUS, SYSTEM_DECLARATIONS
from tidemark.collections.system.findings import note_findings
from tidemark.collections.system.rules import SAYS_NOTHING, Status, StatusChange, resting, statistics_of, status_after
from tidemark.collections.system.tables import open_table, read_newest
from tidemark.fail_points import fail_point
from tidemark.iceberg.shards import SYSTEM, Shards
from tidemark.report import CollectionReport, Outcome, Report

log = logging.getLogger(__name__)

FAIL_POINTS = ("record.before", "record.after-statuses")
PRODUCER = "tidemark"
# A run records in a commit of its own, and each commit makes the next one slower: 64 of them by a tenth of a second.
MOST_OLD_COMMITS = 64
OLD_MS = 5 * 60_000  # a reader may still need a younger one

_KINDS = {ObjectKind.COLLECTION: (StatusKind.COLLECTION, StatusKind.INGESTION), ObjectKind.SINK: (StatusKind.SINK,)}

Rows = list[dict[str, Any]]


def record_run(deployment: Deployment, report: Report, *, clock: Clock, names: Sequence[str] = ()) -> None:
    """Record a run: each status that changed in one commit, and the measures of each object in another one.

    A deployment that stands by beside the leader notes what its run found, in a place of its own, and nothing else.
    What is in the report and is not an object of the catalog, such as a quarantine, is left out, and so is an object
    that was dropped meanwhile, whoever has its name now. A run that ended before its first object failed for each of
    ``names``; without names, for all objects that such a run is for.
    """
    if not report.collections and (report.error is None or report.error.exit_code in SAYS_NOTHING):
        return
    with only_logging(f"the run {report.operation!r}"):
        fail_point("record.before")
        objects = deployment.registry.objects()
        results = report.collections
        if report.error is not None and not results:
            failed = CollectionReport(outcome=Outcome.FAILED, error=report.error)
            results = dict.fromkeys(names or _everything(deployment, report.operation), failed)
        ran = [
            (name, objects[name], result)
            for name, result in results.items()
            if name in objects and result.object_id in {None, objects[name].id}
        ]
        if stands_by(deployment):
            note_findings(deployment, report.operation, ran, now_ms=clock.now_ms())
            return
        standings = deployment.objects.read()
        found = [
            (name, known, status_after(report.operation, result, standings.get(name))) for name, known, result in ran
        ]
        changes = [(name, known, change) for name, known, change in found if change is not None]
        measured = [statistics_of(report.operation, name, known, result) for name, known, result in ran]
        _record(deployment, changes, [row for row in measured if row is not None], clock=clock)


def _everything(deployment: Deployment, operation: str) -> list[str]:
    """Return the objects that a run without names is for; none of an operation that is always told the names."""
    if operation == "reconcile":
        declared = deployment.registry.read().declarations.values()
        reconciled = (each for each in declared if each.kind is Kind.DIFFERENTIAL and not each.is_handed_over)
        return [declaration.name for declaration in reconciled]
    kind = {"ingest": StatusKind.INGESTION, "sink": StatusKind.SINK}.get(operation)
    return [name for name, known in deployment.registry.objects().items() if known.kind is kind]


def record_standings(deployment: Deployment, names: Iterable[str], *, clock: Clock) -> None:
    """Record that somebody paused objects, or let them run again: what keeps them from running now, if anything."""
    with only_logging("a change of statuses"):
        objects, standings = deployment.registry.objects(), deployment.objects.read()
        changes = [
            (
                name,
                objects[name],
                resting(standings[name]) if name in standings else StatusChange(status=Status.STARTING),
            )
            for name in names
            if name in objects
        ]
        _record(deployment, changes, [], clock=clock)


def record_drops(deployment: Deployment, dropped: Mapping[str, CatalogObject], *, who: str, clock: Clock) -> None:
    """Record that somebody dropped objects, which the caller has read from the catalog before."""
    with only_logging("the drop of objects"):
        change = StatusChange(status=Status.DROPPED, namespaced={"who": who})
        _record(deployment, [(name, known, change) for name, known in dropped.items()], [], clock=clock)


def record_left_drops(deployment: Deployment, *, clock: Clock) -> None:
    """Record the drops that nobody has recorded, of objects that have left something: their process died before.

    Who dropped an ingestion is known, and not that it was one: what was recorded of it says so.
    """
    with only_logging("drops that nobody has recorded"):
        dropped = [each for each in deployment.objects.dropped() if not each.name.endswith(QUARANTINE_SUFFIX)]
        if not dropped:
            return
        shards = Shards.connect(deployment.settings)
        rows = read_newest(shards, STATUS, key=("object", "object_id", "kind"), keep=1)
        last = {(row["object"], row["object_id"], row["kind"]): row["status"] for row in rows}
        for each in dropped:
            kinds = _KINDS[each.kind]
            kind = next((kind for kind in kinds if (each.name, each.object_id, kind) in last), kinds[0])
            if last.get((each.name, each.object_id, kind)) != Status.DROPPED:
                record_drops(deployment, {each.name: CatalogObject(kind, each.object_id)}, who=each.who, clock=clock)


def _record(
    deployment: Deployment, changes: Sequence[tuple[str, CatalogObject, StatusChange]], measured: Rows, *, clock: Clock
) -> None:
    if not changes and not measured:
        return
    if read_mode(deployment) is Mode.READ_ONLY:
        log.info("deployment %s is read-only: nothing is recorded", deployment.generation)
        return
    now_us = clock.now_ms() * 1_000
    statuses = [
        {
            "occurred_at": now_us,
            "object": name,
            "object_id": known.id,
            "kind": known.kind.value,
            "status": change.status.value,
            "error": change.error,
            "details": change.details,
            "generation": deployment.generation,
        }
        for name, known, change in changes
    ]
    statistics = [{"measured_at": now_us, "generation": deployment.generation, **row} for row in measured]
    shards = Shards.connect(deployment.settings)
    with closing(Appenders(shards, deployment, clock, producer=PRODUCER)) as appenders:
        with only_logging("the change of a status"):  # the measures are worth as much without it
            _append(appenders, STATUS, statuses)
        fail_point("record.after-statuses")
        _append(appenders, STATISTICS, statistics)
    for name in (STATUS, STATISTICS):
        _merge_commits(shards, name, deployment, clock=clock)


def _append(appenders: Appenders, name: str, rows: Rows) -> None:
    """Append rows, if any, in one commit to a collection of the system, which is made, or altered, if need be."""
    if not rows:
        return
    shard = open_table(appenders.shards, name, generation=appenders.deployment.generation)
    # By the name alone: what has the name of a dropped object comes after it.
    sequence = "object" if name == STATUS else None
    appenders.register(name, namespace=SYSTEM, on_read_only=OnReadOnly.REJECT, sequence=sequence)
    appended = appenders.monotonic_appender(name).append(
        pa.Table.from_pylist(rows, schema=user_columns(shard.load().table))
    )
    log.debug("%s of %s rows are news for %s", appended.rows, len(rows), name)


def _merge_commits(shards: Shards, name: str, deployment: Deployment, *, clock: Clock) -> None:
    """Maintain a collection of the system if many commits have gathered since the last time: once a day is too late."""
    if not shards.exists(name, SYSTEM):
        return
    shard = shards.open(name, SYSTEM)
    times_ms = [commit.timestamp_ms for commit in shard.load().table.metadata.snapshots]
    if sum(time_ms < max(times_ms) - OLD_MS for time_ms in times_ms) > MOST_OLD_COMMITS:
        declared, policy = SYSTEM_DECLARATIONS[name], MaintenancePolicy(history_ms=OLD_MS, snapshot_age_ms=OLD_MS)
        maintain(None, shards, shard, deployment=deployment, policy=policy, clock=clock, declaration=declared)
