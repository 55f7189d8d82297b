"""Reads how all objects are, without a JVM: from the catalog, the tables, and what runs have recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from tidemark.collections.deployment import CatalogObject, Deployment, StatusKind
from tidemark.collections.objects.standing import Standing
from tidemark.collections.system.declarations import KEPT_STATUSES, STATISTICS, STATUS
from tidemark.collections.system.rules import CARRYING, Status, resting
from tidemark.collections.system.tables import read_newest
from tidemark.errors import CorruptState, UnknownObject
from tidemark.frontier import frontier_json
from tidemark.iceberg.shard.state_reader import ShardSummary, read_states
from tidemark.iceberg.shards import Shards
from tidemark.interval import milliseconds

_OBJECT = ("object", "object_id")

Key = tuple[str, int]  # an object's name and id


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStatus:
    """One object; None is what nobody has recorded, and what a sink does not have. Times are ms since the Unix epoch.

    ``since_ms`` is the first time of the present status without another one since; ``reason`` and ``hint`` belong to
    the last record of that status. ``retry_at_ms`` is when a suspended object is tried again. The lag, the seconds and
    the last run are of the last run that carried rows.
    """

    name: str
    kind: str
    status: str | None
    since_ms: int | None = None
    reason: str | None = None
    hint: str | None = None
    retry_at_ms: int | None = None
    rows: int | None = None
    upper: int | str | None = None
    lag_ms: int | None = None
    seconds: float | None = None
    last_run_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_status_table(deployment: Deployment, names: Sequence[str] = ()) -> list[ObjectStatus]:
    """Return the objects of the catalog, or those of ``names``, in order of name.

    A dropped object is there if it is named, for as long as its statuses are kept.

    Raises:
        UnknownObject: If neither the catalog nor the history has a name; with near matches.
        Others as ``Registry.objects`` and ``Shard.load``.
    """
    settings = deployment.settings
    objects = deployment.registry.objects()
    shards = Shards.connect(settings)
    histories = _read_histories(shards)
    dropped = {name: known for name, known in _dropped(histories).items() if name in names and name not in objects}
    known = objects | dropped
    if unknown := [name for name in names if name not in known]:
        raise UnknownObject.named(unknown[0], known, renamed=deployment.registry.read().renamed)
    states, measures, standings = read_states(settings), _read_measures(shards), deployment.objects.read()
    chosen = {name: known[name] for name in sorted(names or known)}
    described = [
        _describe(name, found, histories.get((name, found.id), []), states.get(name), measures.get((name, found.id)))
        for name, found in chosen.items()
    ]
    return [_rest(each, standings[each.name]) if each.name in standings else each for each in described]


def _rest(found: ObjectStatus, standing: Standing) -> ObjectStatus:
    """Return the object as the catalog has it, which decides; what is recorded may lack the last change."""
    told = resting(standing)
    return replace(
        found,
        status=told.status.value,
        since_ms=standing.since_ms,
        reason=told.error,
        hint=found.hint if found.status == told.status else None,
        retry_at_ms=standing.retry_at_ms,
    )


def _describe(
    name: str,
    known: CatalogObject,
    history: Sequence[Mapping[str, Any]],
    state: ShardSummary | CorruptState | None,
    measured: Mapping[str, Any] | None,
) -> ObjectStatus:
    last = history[-1] if history else {}
    since: datetime | None = None
    for row in reversed(history):
        if row["status"] != last["status"]:
            break
        since = row["occurred_at"]
    summary = state if isinstance(state, ShardSummary) else None
    damage = str(state) if isinstance(state, CorruptState) else None
    measured = measured or {}
    return ObjectStatus(
        name=name,
        kind=known.kind.value,
        status=last.get("status"),
        since_ms=None if since is None else milliseconds(since),
        reason=damage or last.get("error"),
        hint=_first_hint(last.get("details")),
        rows=summary.rows if summary else None,
        upper=frontier_json(summary.state.upper) if summary else None,
        lag_ms=measured.get("lag_ms"),
        seconds=measured.get("seconds"),
        last_run_ms=milliseconds(measured["measured_at"]) if measured else None,
    )


def _first_hint(details: str | None) -> str | None:
    hints = json.loads(details).get("hints", []) if details else []
    return hints[0] if hints else None


def _read_histories(shards: Shards) -> dict[Key, list[dict[str, Any]]]:
    """Return the statuses of each object that ever had any, oldest first."""
    histories: dict[Key, list[dict[str, Any]]] = {}
    for row in read_newest(shards, STATUS, key=_OBJECT, keep=KEPT_STATUSES):
        histories.setdefault((row["object"], row["object_id"]), []).insert(0, row)
    return histories


def _dropped(histories: Mapping[Key, Sequence[Mapping[str, Any]]]) -> dict[str, CatalogObject]:
    """Return the objects whose last status says that they were dropped; of one name the latest."""
    last = sorted((history[-1] for history in histories.values()), key=lambda row: row["occurred_at"])
    return {
        row["object"]: CatalogObject(StatusKind(row["kind"]), row["object_id"])
        for row in last
        if row["status"] == Status.DROPPED
    }


def _read_measures(shards: Shards) -> dict[Key, dict[str, Any]]:
    """Return the measures of the last run over each object that carried rows."""
    measures: dict[Key, dict[str, Any]] = {}
    for row in read_newest(shards, STATISTICS, key=(*_OBJECT, "operation"), keep=1):
        key = row["object"], row["object_id"]
        is_later = key not in measures or measures[key]["measured_at"] < row["measured_at"]
        if row["operation"] in CARRYING and is_later:
            measures[key] = row
    return measures
