"""The tasks of Airflow that changed a collection, or carried it: each has emitted an event of the object's asset."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from airflow.models.asset import AssetEvent, AssetModel
from sqlalchemy import select
from sqlalchemy.orm import Session

from tidemark.interval import milliseconds
from tidemark.orchestration.results import collection_asset, sink_asset

EVENTS: Final = 10


def show_tasks(session: Session, name: str) -> dict[str, Any]:
    """Return the last tasks with an event of the collection or sink, the newest first.

    ``path`` is that of the task in Airflow's user interface.
    """
    uris = [asset.uri for asset in (collection_asset(name), sink_asset(name))]
    of_object = (
        select(AssetEvent).join(AssetModel, AssetModel.id == AssetEvent.asset_id).where(AssetModel.uri.in_(uris))
    )
    found = session.scalars(of_object.order_by(AssetEvent.timestamp.desc(), AssetEvent.id.desc()).limit(EVENTS))
    return {"tasks": [_task_of(event) for event in found if event.source_run_id is not None]}


def _task_of(event: AssetEvent) -> dict[str, Any]:
    dag_id, run_id, task_id = (str(id_) for id_ in (event.source_dag_id, event.source_run_id, event.source_task_id))
    path = f"dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"
    mapped = "" if event.source_map_index in {None, -1} else f"/mapped/{event.source_map_index}"
    return {
        "time_ms": milliseconds(event.timestamp),
        "dag_id": dag_id,
        "run_id": run_id,
        "task_id": task_id,
        "run_path": path,
        "path": f"{path}/tasks/{quote(task_id, safe='')}{mapped}",
    }
