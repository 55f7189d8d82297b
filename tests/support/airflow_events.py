"""The part of Airflow's database that the status page reads, with some events of assets in it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow.models.asset import AssetEvent, AssetModel
from sqlalchemy import StaticPool, create_engine
from sqlalchemy.orm import Session

if TYPE_CHECKING:
    from collections.abc import Iterator


def airflow_events() -> Iterator[Session]:
    """Airflow's database with the asset events of planes alone: two of a run, and one that came from outside."""
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    AssetModel.metadata.create_all(engine, [AssetModel.__table__, AssetEvent.__table__])
    with Session(engine) as session:
        session.add(AssetModel(id=1, name="tidemark_planes", uri="x-tidemark://collections/planes", group="asset"))
        add_event(session, "manual__1")
        add_event(session, "scheduled__2026-01-01T00:00:00+00:00", hour=1, map_index=3)
        session.add(AssetEvent(asset_id=1, timestamp=datetime(2026, 1, 2, tzinfo=UTC), extra={}))
        session.flush()
        yield session
    engine.dispose()


def add_event(session: Session, run_id: str, *, hour: int = 0, map_index: int = -1) -> None:
    """Let a task of that run tell of a change of planes."""
    source = {"source_dag_id": "reconcile_collections", "source_run_id": run_id, "source_task_id": "show_result"}
    at = datetime(2026, 1, 1, hour, tzinfo=UTC)
    session.add(AssetEvent(asset_id=1, source_map_index=map_index, timestamp=at, extra={}, **source))
