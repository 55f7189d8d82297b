"""One light task per collection: it shows what happened, fails if it failed, and emits the collection's asset event."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from airflow.sdk import Asset, AssetAlias, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tidemark.clock import SystemClock
from tidemark.errors import TidemarkError
from tidemark.iceberg.shard.state_reader import read_state
from tidemark.orchestration.connections import load_settings
from tidemark.orchestration.lineage.events import send_lineage
from tidemark.orchestration.metrics import send_result, send_staged
from tidemark.orchestration.retry_policy import LIGHT_RETRIES, LIGHT_RETRY_DELAY
from tidemark.report import SKIPPED_BECAUSE, UNNOTICED

log = logging.getLogger(__name__)

# Which collections there are is known at run time only, so the tasks name an alias, which becomes the assets.
COLLECTIONS = AssetAlias("tidemark_collections")
# A DAG that follows all collections need not know their names. A run that changes any is one event: from a task of its
# own that names the asset itself, as of two tasks that come to one asset by an alias for the first time, and end at
# once, Airflow fails the second.
CHANGED = Asset(name="tidemark_changed", uri="x-tidemark://changed")
FACTS = ("outcome", "lower", "upper", "inserted", "retracted", "generation")
INVISIBLE = frozenset({"staged", "forwarded", "skipped", "refused", "failed"})

_RESULT = "task.op_kwargs['result']"
_LABEL = f"{_RESULT}.get('label') or {_RESULT}['name']"


def collection_asset(name: str) -> Asset:
    """Return the asset of a collection; schedule a DAG on it to follow its corrections."""
    return Asset(name=f"tidemark_{name}", uri=f"x-tidemark://collections/{name}")


def closed_asset(name: str) -> Asset:
    """Return the asset of the closed partitions of a collection; schedule a DAG on it to work on complete hours.

    One task emits an event for each partition. Of events that come together Airflow 3.3 hands only the first to the run
    that they start (apache/airflow#54659): read them as ``inlet_events``; docs/write-buffer.md has an example.
    """
    return Asset(name=f"tidemark_{name}_closed", uri=f"x-tidemark://closed/{name}")


def reopened_asset(name: str) -> Asset:
    """Return the asset of partitions that late rows reopened, after readers were told that these were complete."""
    return Asset(name=f"tidemark_{name}_reopened", uri=f"x-tidemark://reopened/{name}")


def sink_asset(name: str) -> Asset:
    """Return the asset of what a sink carries; schedule a DAG on it to work on the target."""
    return Asset(name=f"tidemark_sink_{name}", uri=f"x-tidemark://sinks/{name}")


def results_of(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one entry per collection, in order of name: what ``show_result`` is mapped over."""
    return [
        {"name": name, "operation": report["operation"], "generation": report["generation"], **result}
        for name, result in sorted(report["collections"].items())
    ]


def published_facts(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the facts for a collection's asset event; None if ``result`` did not move `main`.

    A reconcile moves the frontier even if it corrects nothing. An append or a flush names all ranges that are published
    by now, also by an earlier try that died before its event: so readers hear of every range at least once. An ingest
    names the ranges of its own try only; a reader who needs every range reads the ledger. Maintenance changes contents
    only if a retention removes rows; a replay may change any rows.
    """
    ranges = result.get("details", {}).get("ranges")
    if result["operation"] in {"append", "ingest", "flush"}:
        is_published = bool(ranges) or result["outcome"] == "flushed"
    elif result["operation"] == "persist":
        is_published = result["outcome"] == "appended"
    elif result["operation"] in {"maintain", "replay"}:
        is_published = result["outcome"] == "corrected"
    else:
        is_published = result["operation"] == "reconcile" and result["outcome"] not in INVISIBLE
    if not is_published:
        return None
    return {fact: result[fact] for fact in FACTS} | ({"ranges": ranges} if ranges else {})


@task(retries=LIGHT_RETRIES, retry_delay=LIGHT_RETRY_DELAY)
def list_results(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Split the report of a run by collection."""
    return results_of(report)


# Named after the collection: positions shift when a collection is added, names do not.
@task(
    map_index_template=f"{{{{ {_LABEL} }}}}",
    outlets=[COLLECTIONS],
    retries=LIGHT_RETRIES,
    retry_delay=LIGHT_RETRY_DELAY,
)
def show_result(result: dict[str, Any], outlet_events: Any = None) -> dict[str, Any]:
    """Show one collection's result; fail if it failed, skip if it was skipped; else emit its asset events."""
    name = show(result)
    if facts := published_facts(result):
        outlet_events[COLLECTIONS].add(collection_asset(name), extra=facts)
    for closed in result.get("details", {}).get("closed", ()):  # an event for each partition
        outlet_events[COLLECTIONS].add(closed_asset(name), extra=closed)
    for reopened in result.get("details", {}).get("reopened", ()):
        outlet_events[COLLECTIONS].add(reopened_asset(name), extra=reopened)
    if result["outcome"] in {"staged", "flushed"}:
        with suppress(TidemarkError):  # a store that is away leaves a gap
            send_staged({name: read_state(load_settings(), name)}, now_ms=SystemClock().now_ms())
    return result


@task(outlets=[CHANGED], retries=LIGHT_RETRIES, retry_delay=LIGHT_RETRY_DELAY)
def announce_changes(results: list[dict[str, Any]], outlet_events: Any = None) -> list[str]:
    """Emit one event of all collections that a run has changed, with the facts by name; skip if it has changed none."""
    changed = {result["name"]: facts for result in results if (facts := published_facts(result))}
    if not changed:
        raise AirflowSkipException("no collection has changed")
    outlet_events[CHANGED].extra = {"collections": changed}
    return sorted(changed)


def tell_results(results: Any, *, of_many_runs: bool = False) -> Any:
    """Add the tasks to the present DAG that show each result and announce what has changed; return the former.

    ``of_many_runs``: runs of the DAG may end at once. Of two first events of one asset, Airflow fails the second task.
    """
    announce_changes(results)
    shown: Any = show_result.override(max_active_tis_per_dag=1) if of_many_runs else show_result
    return shown.expand(result=results)


def show(result: Mapping[str, Any]) -> str:
    """Write a result into the log, send its measures and lineage, and return the name of its collection or sink.

    Raises:
        AirflowFailException: If the result is a failure.
        AirflowSkipException: If the work was skipped.
    """
    name, error = str(result["name"]), result["error"]
    log.info("%s: %s", name, result["outcome"])
    for field, value in result.items():
        if value and field not in {"name", "label", "outcome", "error"}:
            log.info("  %s: %s", field, value)
    if unnoticed := result.get("details", {}).get(UNNOTICED):
        log.warning("%s: %s", name, unnoticed)
    send_result(result)
    send_lineage(result)
    if error:
        for row in error.get("sample") or []:
            log.error("  offending row: %s", row)
        hint = f" ({error['hint']})" if error.get("hint") else ""
        raise AirflowFailException(f"{name}: {error['kind']}: {error['message']}{hint}")
    if reason := result.get("details", {}).get(SKIPPED_BECAUSE):
        raise AirflowSkipException(f"{name}: {reason}")
    return name
