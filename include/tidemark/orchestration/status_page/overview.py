"""All objects in one table, and before it what needs a person. Pure rules over one look at the stores."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, NamedTuple

from tidemark.collections.declarations.collection import Declaration, Kind
from tidemark.collections.deployment import CatalogObject, Mode, StatusKind
from tidemark.collections.holds import list_holds
from tidemark.collections.system.rules import Status, resting
from tidemark.collections.system.status_table import ObjectStatus
from tidemark.errors import CorruptState
from tidemark.frontier import frontier_json
from tidemark.iceberg.shard.state_reader import ShardSummary
from tidemark.interval import duration_text, milliseconds
from tidemark.orchestration.status_page.history import DAYS
from tidemark.orchestration.status_page.observed import Contents, Observed

LATE_MS: Final = 15 * 60_000  # what waits longer is late; and a run that is overdue by less is not
LATE_GAPS: Final = 3  # an object is late once so many of its usual gaps between two runs have passed without one
# What needs a person, the most urgent first; the order in which the page tells it.
URGENCY: Final = ("catalog", "damaged", "failed", "suspended", "read-only", "late", "buffer", "hold", "stale", "paused")
_STATUS: Final = tuple(field.name for field in fields(ObjectStatus))
_RESTING: Final = {Status.STALLED: "failed", Status.SUSPENDED: "suspended", Status.PAUSED: "paused"}
_DAGS = {  # that run an object, the one that does most of its work first
    StatusKind.COLLECTION: ("reconcile_collections", "maintain_collections"),
    StatusKind.INGESTION: ("ingest_write_buffer", "buffer_lifecycle", "maintain_collections"),
    StatusKind.SINK: ("run_sinks",),
}
_PACED = "run_storage_workers"


class Lateness(NamedTuple):
    """Since when an object is late, why it is, and what to do about that."""

    since_ms: int
    why: str
    hint: str


def show_overview(seen: Observed, storage: Mapping[str, Any], *, generation: int, now_ms: int) -> dict[str, Any]:
    """Return what needs a person, and one entry for each object in order of name; docs/page.md lists the fields.

    ``storage`` is the view of storage workers, with what they run.
    """
    objects = list_objects(seen, now_ms=now_ms)
    found = [
        *_of_objects(objects),
        *_of_contents(seen.contents),
        *_of_mode(seen.contents),
        *_of_storage(storage),
        *_of_holds(seen, now_ms=now_ms),
    ]
    needs = sorted(found, key=lambda need: (URGENCY.index(need["what"]), need["name"]))
    return {"generation": generation, "days": DAYS, "needs": needs, "objects": objects}


def list_objects(seen: Observed, *, now_ms: int) -> list[dict[str, Any]]:
    """Return one entry for each collection, ingestion and sink, in order of name."""
    known = dict(seen.contents.objects)
    if seen.contents.obstacle is not None:  # then the tables alone tell what there is
        known |= {name: CatalogObject(StatusKind.COLLECTION, 0) for name in seen.states}
    return [row_of(name, each, seen, now_ms=now_ms) for name, each in sorted(known.items())]


def status_of(name: str, known: CatalogObject, seen: Observed) -> ObjectStatus:
    """Return how one object is: the catalog decides whether it rests; all else is what runs have recorded."""
    records = seen.statuses.get((name, known.id), ())
    last: Mapping[str, Any] = records[-1] if records else {}
    since_ms = None
    for record in reversed(records):
        if record["status"] != last["status"]:
            break
        since_ms = milliseconds(record["occurred_at"])
    state, measured = seen.states.get(name), seen.history.summaries.get((name, known.id))
    summary = state if isinstance(state, ShardSummary) else None
    status, reason = last.get("status"), str(state) if isinstance(state, CorruptState) else last.get("error")
    standing = seen.contents.standings.get(name)
    if standing is not None:
        told = resting(standing)
        status, reason, since_ms = told.status.value, told.error, standing.since_ms
    return ObjectStatus(
        name=name,
        kind=known.kind.value,
        status=status,
        since_ms=since_ms,
        reason=reason,
        hint=_hint_of(last) if status == last.get("status") else None,
        retry_at_ms=None if standing is None else standing.retry_at_ms,
        rows=None if summary is None else summary.rows,
        upper=None if summary is None else frontier_json(summary.state.upper),
        lag_ms=None if measured is None else measured.lag_ms,
        seconds=None if measured is None else measured.seconds,
        last_run_ms=None if measured is None else measured.last_ms,
    )


def _hint_of(record: Mapping[str, Any]) -> str | None:
    hints = json.loads(record["details"]).get("hints", []) if record.get("details") else []
    return hints[0] if hints else None


def row_of(name: str, known: CatalogObject, seen: Observed, *, now_ms: int) -> dict[str, Any]:
    """Return the entry of one object; times are ms since the Unix epoch."""
    status, state = status_of(name, known, seen), seen.states.get(name)
    summary = state if isinstance(state, ShardSummary) else None
    measured = seen.history.summaries.get((name, known.id))
    late = _lateness(status, known, seen, now_ms=now_ms)
    return {
        **{field: getattr(status, field) for field in _STATUS},  # ten times as fast as `to_json`
        "layout": None if summary is None else summary.state.layout.value,
        "damaged": isinstance(state, CorruptState),
        "staged": 0 if summary is None else len(summary.staged),
        "stale": 0 if summary is None else len(summary.stale),
        "last_good_run_ms": None if measured is None else measured.last_good_ms,
        "late_since_ms": late.since_ms if late else None,
        "late_why": late.why if late else None,
        "late_hint": late.hint if late else None,
        "rows_by_day": [] if measured is None else measured.rows_of_days(now_ms),
    }


def _lateness(status: ObjectStatus, known: CatalogObject, seen: Observed, *, now_ms: int) -> Lateness | None:
    """Return how an object that runs is late; None if it is not, or nobody can tell."""
    measured, mode = seen.history.summaries.get((status.name, known.id)), seen.contents.mode
    if measured is None or mode is None or status.status != Status.RUNNING:
        return None
    dags = dags_of(known, seen.contents.applied.declarations.get(status.name))
    dag = _PACED if _PACED in dags else dags[0]
    if (measured.lag_ms or 0) > LATE_MS:
        waiting, ago = duration_text(measured.lag_ms or 0), duration_text(now_ms - measured.last_ms)
        why = f"what it had not carried at the end of its last run, {ago} ago, had waited for {waiting}"
        return Lateness(
            measured.last_ms - (measured.lag_ms or 0), why, f"run `{dag}` now, or more often if it stays late"
        )
    # A read-only deployment records no run: there is no gap to measure, and after that mode it begins at the switch.
    heard_ms, gap_ms = max(measured.last_ms, mode.since_ms), measured.usual_gap_ms
    if mode.mode is Mode.READ_ONLY or gap_ms is None or now_ms - heard_ms <= max(LATE_GAPS * gap_ms, LATE_MS):
        return None
    silent = duration_text(now_ms - heard_ms)
    since = ", since the deployment became read-write" if heard_ms > measured.last_ms else ""
    why = f"no run for {silent}{since}; usually there is one every {duration_text(gap_ms)}"
    return Lateness(heard_ms + gap_ms, why, f"see in Airflow whether `{dag}` is paused, or what it waits for")


def dags_of(known: CatalogObject, declaration: Declaration | None) -> list[str]:
    """Return the DAGs that run an object, the one that does most of its work first."""
    dags = _DAGS[known.kind]
    if known.kind is StatusKind.COLLECTION and declaration is not None and declaration.kind is Kind.APPEND_ONLY:
        dags = ("append_batches", "flush_staged_batches", "maintain_collections")
    return [*dags, *([_PACED] if declaration is not None and declaration.every_ms is not None else ())]


def _of_objects(objects: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    for each in objects:
        view, since_ms, hint = f"collections/{each['name']}", each["since_ms"], each["hint"]
        if each["damaged"]:
            yield _need("damaged", each["name"], each["reason"], view=view, hint=f"tidemark repair {each['name']}")
        elif each["status"] in _RESTING:
            yield _need(
                _RESTING[Status(each["status"])], each["name"], each["reason"], view=view, since_ms=since_ms, hint=hint
            )
        elif each["late_why"] is not None:
            yield _need(
                "late",
                each["name"],
                each["late_why"],
                view=view,
                since_ms=each["late_since_ms"],
                hint=each["late_hint"],
            )
        if each["stale"]:
            why = f"{each['stale']} staged corrections are of contents that have changed since"
            yield _need("stale", each["name"], why, view="staged", hint="the next flush reconciles them")


def _of_contents(contents: Contents) -> Iterable[dict[str, Any]]:
    if (obstacle := contents.obstacle) is not None:
        yield _need("catalog", "the catalog", obstacle.message, view="catalog", hint=obstacle.hint)


def _of_mode(contents: Contents) -> Iterable[dict[str, Any]]:
    mode = contents.mode
    if mode is None or mode.mode is not Mode.READ_ONLY:
        return
    name, effect = f"deployment {mode.generation}", "what runs bring is staged, and no run is recorded"
    if mode.generation not in mode.led:  # the mode, its time and its reason are those of the deployment before
        hint = f"run `promote_deployment` again in {name}"
        yield _need("read-only", name, f"its promotion is under way, or died; {effect}", view="deployments", hint=hint)
        return
    reason = f": {mode.why}" if mode.why else ""
    why = f"{mode.who} made it read-only{reason}; {effect}"
    hint = f"once the reason is gone: `tidemark mode read-write` in {name}, or its DAG `switch_mode`"
    yield _need("read-only", name, why, view="staged", since_ms=mode.since_ms, hint=hint)


def _of_storage(storage: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    for each in storage["objects"]:
        if each["error"]:
            hint = (
                f"the workers try again; if the error stays: `tidemark storage restart {each['name']}`, and the log of"
            )
            yield _need("buffer", each["name"], each["error"], view="buffers", hint=f"{hint} their task `work`")


def _of_holds(seen: Observed, *, now_ms: int) -> Iterable[dict[str, Any]]:
    for name, state in seen.states.items():
        for held in holds_of(name, state, seen, now_ms=now_ms):
            if held["overdue"]:
                view, since_ms = f"collections/{name}", held["since"] or None
                yield _need("hold", name, held["warning"], view=view, since_ms=since_ms, hint=held["hint"])


def holds_of(name: str, state: ShardSummary | CorruptState, seen: Observed, *, now_ms: int) -> Sequence[dict[str, Any]]:
    """Return the holds on a collection, as ``ReaderHold.to_json``."""
    if isinstance(state, CorruptState) or not state.state.holds:
        return []
    sink_holds = seen.contents.sink_holds
    found = list_holds(name, state.state, state.oldest_ms, now_ms=now_ms, sink_holds=sink_holds)
    return [held.to_json() for held in found]


def _need(
    what: str, name: str, why: str | None, *, view: str, since_ms: int | None = None, hint: str | None = None
) -> dict[str, Any]:
    return {"what": what, "name": name, "why": why or "", "since_ms": since_ms, "hint": hint or "", "view": view}
