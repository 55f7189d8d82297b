"""### Keep collections small and fast

Once a day, in one Spark application: merge small files and delete files of `main`, trim the change log up to `since`
(never past a live read hold), expire old snapshots, and remove files and staging branches that nothing refers to any
more. Contents and change feeds within `[since, upper)` stay exactly the same, but for rows of append-only collections
past their declared retention, which go in a commit of their own; staged batches past their `staged_retention` are
discarded on record. Of a paused collection both stay. Tables of dropped collections are removed a week after the drop,
once no hold needs them (`dropped.NAME` in the results). Writers need not wait: maintenance that loses a race is thrown
away, and done the next time. A collection that fails is left to the next run, unless no other one was maintained: then
`maintain` is tried again, if that may help.

`wait_until_led` waits while the system's own catalog is moved, `prepare` checks the stores, and `show_result` is one
light task per collection. Trigger with `collections` to maintain some only.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import CronDataIntervalTimetable, Param, dag

from tidemark.orchestration.preflight import prepare_maintenance
from tidemark.orchestration.results import list_results, tell_results
from tidemark.orchestration.retry_policy import RETRIES
from tidemark.orchestration.sensors.leader import LONGEST_MOVE, LedSensor
from tidemark.orchestration.spark_application import SparkApplicationOperator


@dag(
    schedule=CronDataIntervalTimetable("30 3 * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,  # politeness only: maintenance that loses a race is discarded
    dagrun_timeout=LONGEST_MOVE + timedelta(hours=6),
    default_args={"owner": "tidemark", "execution_timeout": timedelta(minutes=5), **RETRIES},
    params={
        "collections": Param(
            None,
            type=["null", "array"],
            items={"type": "string"},
            description="Names of the collections to maintain; empty for all.",
        ),
        "history_days": Param(
            7, type="number", minimum=0, description="How long changes stay readable; holds keep them for longer."
        ),
    },
    tags=["tidemark", "maintenance"],
    doc_md=__doc__,
)
def maintain_collections() -> None:
    prepared = prepare_maintenance.override(task_id="prepare")()
    maintain = SparkApplicationOperator(
        task_id="maintain",
        application="maintain_collections.py",
        application_args=prepared,
        fence_on_retry=False,  # two may do this at once, and writers must not be stopped for it
        pool="spark",
        execution_timeout=timedelta(hours=5),
    )
    LedSensor(task_id="wait_until_led") >> prepared
    tell_results(list_results(maintain.output))


maintain_collections()
