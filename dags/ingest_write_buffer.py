"""### Ingest what waits in write buffers

Each run reads every sequencer (Kafka partition) of the buffers that collections declare as their `source`, from the
number that the collection has, up to the watermark of now. Rows and the new numbers become visible in **one commit**
per collection; rows that cannot be read go to `NAME_quarantine`, durable before that. Nothing is kept in the broker.

`wait_until_led` waits while the system's own catalog is moved → `ingest` checks catalog, warehouse and brokers at once,
and does what needs no JVM: up to 10,000 entries take less than a second → `ingest_with_spark` does the rest, if there
is any, in **one Spark application**, partitions in parallel → `show_result` is one light task per collection: green
means published, *or staged while the deployment is read-only*. Its log has rows, bytes, what was put aside, and the lag
of each sequencer in numbers and in ms. Each partition that it closed is an event of the asset `tidemark_NAME_closed`.

Collections of `kind: latest` are ingested in `ingest`, however much waits: portion by portion, each a commit of its
own, so that a task that runs out of time loses nothing. While the deployment is read-only, their changes stay in the
buffer, and `show_result` is skipped.

- A collection that fails has a red `show_result`; all others go on, and what they got done is told at once. It is
  **suspended**: left out (`show_result` is skipped) for a minute, then two, four, at most an hour, and tried again by
  itself. A run with `collections` tries those at once; `tidemark status` lists all.
- Skipped because a storage worker runs it: the collection declares `every`, and a worker is live. If none is, or the
  deployment is read-only, it is ingested here. `tidemark storage status` shows how far it is.
- What another try may cure (75), or another process took over (77), suspends nothing: the next run tries the collection
  again. Only if no collection got done, the task itself is tried again.
- `HardLimit` (75): so much of a collection is open that its ingest pauses; what waits stays in the buffer, and the log
  has the lag. The task is not tried again for it: `buffer_lifecycle` makes room, and then a run goes on.
- `BufferUnreachable`: the broker is down. Other collections went on, and a later run resumes.
- `NoLongerExists`: retention took entries before they were ingested, as many as it says. Keep the log longer; declare
  `on_expired: earliest` if the loss is accepted.
- `LogRecreated`, `AfterWatermark`, `SequencerGone`: the topic was made anew, cut or shrunk. Find out who did; with
  `on_recreated: earliest` the new log is taken from its earliest entry.
- Bad rows in a result wait in the quarantine: `tidemark buffer quarantine list NAME`, then `retry`.
- `KeySpread`: changes of a key lie in several partitions, and the collection declares `on_key_spread: refuse`.
- `LateRows`: rows came for a partition that is closed, and the collection declares `late: refuse`.
- A lag that grows: more is written than a run takes. Raise `max_entries_per_run`, or run more often.

Every task may be killed, retried, cleared or run twice at once: the ledger, in the commit of the data, makes that safe.
`max_active_runs` and the pool are politeness.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import CronDataIntervalTimetable, Param, XComArg, dag

from tidemark.orchestration.driver_or_spark import LEFT, REPORT, SPARK_ARGUMENTS, list_both
from tidemark.orchestration.results import tell_results
from tidemark.orchestration.retry_policy import RETRIES
from tidemark.orchestration.sensors.leader import LONGEST_MOVE, LedSensor
from tidemark.orchestration.spark_application import SparkApplicationOperator
from tidemark.orchestration.tasks.ingest import LIST, WITH_SPARK, ingest_small


@dag(
    schedule=CronDataIntervalTimetable("*/5 * * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,  # a run takes all that waits, whenever that was written
    max_active_runs=1,  # politeness only: of two runs at once one finds its ranges done
    dagrun_timeout=LONGEST_MOVE + timedelta(hours=6),
    default_args={"owner": "tidemark", "execution_timeout": timedelta(minutes=10), **RETRIES},
    params={
        "collections": Param(
            None,
            type=["null", "array"],
            items={"type": "string"},
            description="The collections to ingest into: names, or `tag:TAG`; empty for all that read a buffer.",
        ),
        "max_entries_per_run": Param(
            10_000_000,
            type=["null", "integer"],
            minimum=1,
            description="The most entries that one collection gets, shared by what waits in each sequencer.",
        ),
        "engine": Param(
            "auto", enum=["auto", "spark"], type="string", description="Spark even for what needs no JVM, or as needed."
        ),
    },
    tags=["tidemark", "ingest"],
    doc_md=__doc__,
)
def ingest_write_buffer() -> None:
    ingested = ingest_small.override(task_id="ingest")()
    with_spark = SparkApplicationOperator(
        task_id=WITH_SPARK,
        application="ingest_write_buffer.py",
        application_args=XComArg(ingested.operator, key=SPARK_ARGUMENTS),
        fence_on_retry=False,  # what an earlier try publishes after all is found in the ledger
        pool="spark",
        execution_timeout=timedelta(hours=5),
    )
    results = list_both.override(task_id=LIST)(
        XComArg(ingested.operator, key=REPORT), XComArg(ingested.operator, key=LEFT), [with_spark.output]
    )
    LedSensor(task_id="wait_until_led") >> ingested
    tell_results(results)


ingest_write_buffer()
