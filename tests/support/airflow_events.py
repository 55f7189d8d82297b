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
        for number, (run_id, map_index) in enumerate([("manual__1", -1), ("scheduled__2026-01-01T00:00:00+00:00", 3)]):
            event = {"source_dag_id": "reconcile_collections", "source_task_id": "show_result"}
            at = datetime(2026, 1, 1, number, tzinfo=UTC)
            session.add(
                AssetEvent(
                    asset_id=1, source_run_id=run_id, source_map_index=map_index, timestamp=at, extra={}, **event
                )
            )
        session.add(AssetEvent(asset_id=1, timestamp=datetime(2026, 1, 2, tzinfo=UTC), extra={}))
        session.flush()
        yield session
    engine.dispose()
