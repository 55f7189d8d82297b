"""One collection or sink: how it is, what it is made of, what it did last, and who reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tidemark.catalog.deployment.modes import look_at_mode
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import CatalogObject, StatusKind
from tidemark.collections.system.rules import CARRYING
from tidemark.errors import UnknownObject
from tidemark.frontier import frontier_json
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shard.state_reader import ShardSummary
from tidemark.ingest.partitions.state import PartitionRules, Partitions
from tidemark.orchestration.status_page.contents import (
    describe_history,
    describe_schema,
    read_contents,
    read_corrections,
)
from tidemark.orchestration.status_page.history import DAYS
from tidemark.orchestration.status_page.lineage import neighbours, show_lineage
from tidemark.orchestration.status_page.observed import Observed, Observer
from tidemark.orchestration.status_page.overview import dags_of, holds_of, row_of
from tidemark.orchestration.status_page.staged import staged_in
from tidemark.report import plain

# What is said of a collection in a table of its own is left out of its declaration.
_SHOWN_APART = frozenset({"name", "kind", "guards", "schema"})


def find_object(seen: Observed, name: str) -> CatalogObject:
    """Return a collection, ingestion or sink, or the quarantine of one.

    Raises ``UnknownObject``, with near matches, if there is none of that name.
    """
    if name in seen.contents.objects:
        return seen.contents.objects[name]
    if name in seen.states:  # a quarantine, or the catalog cannot be read
        return CatalogObject(StatusKind.COLLECTION, 0)
    raise UnknownObject.named(name, {*seen.contents.objects, *seen.states}, renamed=seen.contents.applied.renamed)


def show_collection(observer: Observer, name: str, reports: Mapping[str, Any], *, now_ms: int) -> dict[str, Any]:
    """Return all that is known of an object, without its rows; docs/page.md lists the fields."""
    seen = observer.look()
    known = find_object(seen, name)
    state = seen.states.get(name)
    declaration, sink = seen.contents.applied.declarations.get(name), seen.contents.applied.sinks.get(name)
    declared = declaration.to_json() if declaration else sink.declaration.to_json() if sink else {}
    row = row_of(name, known, seen, now_ms=now_ms)
    shown = {
        **row,
        "days": DAYS,
        "key": list(declaration.key) if declaration else [],
        "guards": plain(declared.get("guards", {})) | plain(declared.get("expect") or {}),
        "declaration": {
            field: plain(value)
            for field, value in declared.items()
            if field not in _SHOWN_APART and value not in ([], {}, "")
        },
        "runs": seen.history.runs((name, known.id)),
        "reports": list(_results_of(name, reports, row["last_good_run_ms"] or 0)),
        "lineage": neighbours(lineage_of(observer, seen), name),
        "dags": dags_of(known, declaration),
    }
    if not isinstance(state, ShardSummary):
        return shown
    return shown | {
        "since": frontier_json(state.state.since),
        "generation": state.state.token.generation,
        "epoch": state.state.token.epoch,
        "has_changes": state.state.layout is ShardKind.DIFFERENTIAL,
        "schema": observer.of_head(name, describe_schema),
        "history": observer.of_head(name, describe_history),
        "holds": holds_of(name, state, seen, now_ms=now_ms),
        "partitions": list(_partitions_of(declaration, state)),
        "staged_batches": staged_in(observer, name, look_at_mode(observer.catalog.ends)) if state.staged else [],
    }


def lineage_of(observer: Observer, seen: Observed) -> dict[str, Any]:
    """Return ``show_lineage`` of all objects."""
    return observer.remember("lineage", seen.contents_version, lambda: show_lineage(seen.contents.applied))


def show_contents(observer: Observer, name: str, as_of: int | None, *, limit: int) -> dict[str, Any]:
    """Return rows of a collection; errors are those of ``read_arrow``, and ``UnknownCollection``."""
    return read_contents(observer.shard(name), as_of, limit=limit)


def show_corrections(observer: Observer, name: str) -> dict[str, Any]:
    """Return the last corrections of a collection; none of one that has no change log."""
    seen, shard = observer.look(), observer.shard(name)
    declared = seen.contents.applied.declarations
    key = declared[name].key if name in declared else ()
    version = (observer.location(name), key)
    found = observer.remember(("corrections", name), version, lambda: read_corrections(shard, observer.head(name), key))
    return {"corrections": found}


def _results_of(name: str, reports: Mapping[str, Any], last_good_ms: int) -> Iterable[dict[str, Any]]:
    """Yield what the last report of each DAG says of the object.

    A failure to carry rows ``is_over`` once a later run, of whatever DAG, has carried them.
    """
    for dag_id, report in reports.items():
        if (result := report.get("collections", {}).get(name)) is not None:
            facts = ("outcome", "inserted", "retracted", "strategy", "error")
            finished_ms = report.get("finished_at")
            is_over = report.get("operation") in CARRYING and (finished_ms or 0) <= last_good_ms
            shown = {"dag_id": dag_id, "finished_ms": finished_ms, "is_over": is_over}
            yield shown | {fact: result.get(fact) for fact in facts}


def _partitions_of(declaration: Declaration | None, state: ShardSummary) -> Iterable[dict[str, Any]]:
    """Yield the partitions by event time that the collection remembers, the earliest first."""
    if declaration is None or (rules := PartitionRules.of(declaration)) is None:
        return
    found = Partitions.parse(state.properties, rules.column, rules.unit).state.partitions
    for name, each in sorted(found.items()):
        yield {"partition": name, "rows": each.rows, "late_rows": each.late_rows, "closed": each.is_closed}
