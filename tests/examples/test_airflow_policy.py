"""The policy of the demo's Airflow: people, backfills and assets start DAGs, the clock does not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

from examples.airflow.airflow_local_settings import dag_policy
from examples.downstream_shown import FOLDER
from tidemark.settings import PROJECT_ROOT

if TYPE_CHECKING:
    from airflow.sdk import DAG

LONG_AFTER = datetime(2900, 1, 1, tzinfo=UTC)


def as_scheduled(dag: DAG) -> Any:
    """The DAG as the scheduler has it."""
    return DagSerialization.from_dict(DagSerialization.to_dict(dag))


@pytest.mark.parametrize("name", ["reconcile_collections", "flush_staged_batches"])
def test_the_clock_starts_nothing_and_a_backfill_may(name: str) -> None:
    dag = DagBag(PROJECT_ROOT / "dags" / f"{name}.py").dags[name]
    due = as_scheduled(dag).next_dagrun_info(last_automated_run_info=None)
    assert due.run_after < LONG_AFTER
    dag_policy(dag)
    seen = as_scheduled(dag)
    assert seen.next_dagrun_info(last_automated_run_info=None).run_after > LONG_AFTER
    assert seen.timetable.periodic
    assert not seen.timetable.asset_condition
    days = seen.iter_dagrun_infos_between(datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC))
    assert next(iter(days)).logical_date == datetime(2013, 1, 1, tzinfo=UTC)


def test_assets_start_dags_as_ever() -> None:
    dag = DagBag(FOLDER).dags["monthly_weather"]
    before = as_scheduled(dag)
    dag_policy(dag)
    after = as_scheduled(dag)
    assert after.timetable.asset_condition == before.timetable.asset_condition
    assert after.start_date is None
