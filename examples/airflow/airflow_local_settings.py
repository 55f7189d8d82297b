"""Airflow's policy in the demo: the clock starts no DAG, as its runs would do the work of later steps of the demo.

Assets start DAGs as ever, and so do people and backfills. Airflow imports this module by its name.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow.sdk import AssetOrTimeSchedule

if TYPE_CHECKING:
    from airflow.sdk import DAG

NOT_IN_THIS_DEMO = datetime(2999, 1, 1, tzinfo=UTC)


def dag_policy(dag: DAG) -> None:
    """Put off what the clock starts; of a DAG that assets start, too, keep the clock, for people and backfills."""
    if isinstance(dag.timetable, AssetOrTimeSchedule):
        dag.timetable = dag.timetable.timetable
    if dag.start_date:
        dag.start_date = NOT_IN_THIS_DEMO
        for task in dag.tasks:
            task.start_date = NOT_IN_THIS_DEMO
