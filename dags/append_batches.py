"""### Append what producers delivered, hour by hour

Each run appends what is due of every append-only collection whose source is cut by `{start}` and `{end}`: all declared
`intervals` that are over and not there yet, or, where none are declared, the run's data interval `[start, end)`. The
interval in ms is the batch's range, and the ledger knows it from the commit that makes the rows visible.

`wait_until_led` waits while the system's own catalog is moved → `append` does what needs no JVM: an interval that is
there already, or a slice of small Parquet files, about 0.1 s each → `append_with_spark` does the rest, if there is any,
in **one Spark application** → `show_result` is one light task per collection: green means published, *or staged while
the deployment is read-only* (its log says which). Published ranges are in the `extra` of the asset event
`tidemark_NAME`; what is staged has no event until it is flushed. Of a collection that declares `writes_to`, the rows go
into that buffer (`forwarded`), and the event is that of the collection which ingests them.

| you want | do |
|---|---|
| catch up | declare `intervals` with their `start`, and unpause: the first run appends all that is over, in one batch |
| fill a hole, repeat a month | backfill it, or trigger with `start` and `end`: only what is missing is appended |
| do it again | clear the run: ranges in the ledger are left alone |
| leave one out for a while | `tidemark pause NAME --why …`: its `show_result` is skipped and says why |

A batch is appended once. Rows that reach the source after their hour was appended are not looked for: append them as a
batch of their own, or declare the collection differential. Every task may be killed, retried, cleared or run twice at
once: the ledger, in the commit of the data, makes that safe. `max_active_runs` and the pool are politeness.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import CronDataIntervalTimetable, Param, XComArg, dag

from tidemark.orchestration.driver_or_spark import LEFT, REPORT, SPARK_ARGUMENTS, list_both
from tidemark.orchestration.results import tell_results
from tidemark.orchestration.retry_policy import RETRIES
from tidemark.orchestration.sensors.leader import LONGEST_MOVE, LedSensor
from tidemark.orchestration.spark_application import SparkApplicationOperator
from tidemark.orchestration.tasks.append import LIST, WITH_SPARK, append_small_batches


@dag(
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,  # a run appends what those before it did not; collections declare since when
    max_active_runs=4,  # politeness only: hours may come at once and in any order
    dagrun_timeout=LONGEST_MOVE + timedelta(hours=6),
    default_args={"owner": "tidemark", "execution_timeout": timedelta(minutes=10), **RETRIES},
    params={
        "collections": Param(
            None,
            type=["null", "array"],
            items={"type": "string"},
            description="The collections to append to: names, `tag:TAG`, `+NAME` (with all that it reads), `NAME+` "
            "(with all that read it); empty for all whose source is cut by an interval.",
        ),
        "start": Param(None, type=["null", "string"], description="First instant, instead of the data interval."),
        "end": Param(None, type=["null", "string"], description="End of that interval, not included."),
        "engine": Param(
            "auto", enum=["auto", "spark"], type="string", description="Spark even for what needs no JVM, or as needed."
        ),
    },
    tags=["tidemark", "append"],
    doc_md=__doc__,
)
def append_batches() -> None:
    appended = append_small_batches.override(task_id="append")()
    with_spark = SparkApplicationOperator(
        task_id=WITH_SPARK,
        application="append_batches.py",
        application_args=XComArg(appended.operator, key=SPARK_ARGUMENTS),
        fence_on_retry=False,  # a batch that an earlier try publishes after all is found in the ledger
        pool="spark",
        execution_timeout=timedelta(hours=5),
    )
    results = list_both.override(task_id=LIST)(
        XComArg(appended.operator, key=REPORT), XComArg(appended.operator, key=LEFT), [with_spark.output]
    )
    LedSensor(task_id="wait_until_led") >> appended
    tell_results(results, of_many_runs=True)


append_batches()
