"""### Persist what came through write buffers

Rows of a collection that reads a write buffer are visible at once, in many small files. For collections with
`event_time`, each run is one pass over one snapshot: a partition is due once enough of its rows are older than
`late_arrive_window`, its oldest open row is older than `persist_age`, no row came for `late_arrive_window`, or more is
open than `soft_limit`. The rows that are due are written anew, sorted by event time, into files that overlap with no
others of the same pass; younger rows stay open.
**One commit** replaces the files, and says what is persisted. The contents stay as they are, row by row, but for
duplicates of a declared `key`. With `visible: when-persisted` this commit makes rows visible, and each collection
that got some emits its asset event. Where nothing is due, small files are merged of partitions with many open rows, or
to which no row came for `late_arrive_window` (`strategy: compacted`).

`wait_until_led` waits while the system's own catalog is moved → `persist` makes the pass, and does what needs no JVM →
`persist_with_spark` does the rest, if there is any, in **one Spark application** → `show_result` is one light task per
collection, whose log has every decision with its reason.

- `strategy: discarded`: a compaction, another engine or another pass took the same files; the next run does it.
- `given_up`: an earlier run died between its beginning and its commit, or is slower; nothing of it was visible.
- `strategy: skipped`: somebody moved `main` by hand; the reason says what to do.
- `ReadOnly` (77): the deployment is read-only; runs go on when that ends.
- A collection that fails has a red `show_result`; what others got done is told at once, and the next run tries it
  again. Only if no collection got done, and it may pass by itself (69, 75, 77 by epoch), the task is tried again.

### Replay a collection

With the param `replay`, the name of a collection, a run replays that collection in place of the pass: what is not
persisted is read again from the buffer, and takes the place of the rows that are on `main`. For when rows were
deleted, damaged, or decoded wrongly. `replay_partitions` names the partitions, if not all are meant; `replay_from` has
texts such as `0:17`: of sequencer 0 all rows from number 17 on come back, persisted or not. The task `replay` does it,
for five hours at most; `persist` only leaves it the collection. One commit replaces the rows; runs with a pass wait
meanwhile.

- `NoLongerExists` (66): the buffer has lost entries; `replay_skip_lost` goes on without them, on the record.
  `AfterWatermark` (76): the buffer was cut, or is another one.

Every task may be killed, retried, cleared or run twice at once. Ingests and appends go on meanwhile.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import CronDataIntervalTimetable, Param, XComArg, dag

from tidemark.orchestration.driver_or_spark import LEFT, REPORT, SPARK_ARGUMENTS, list_both
from tidemark.orchestration.results import tell_results
from tidemark.orchestration.retry_policy import RETRIES
from tidemark.orchestration.sensors.leader import LONGEST_MOVE, LedSensor
from tidemark.orchestration.spark_application import SparkApplicationOperator
from tidemark.orchestration.tasks.persist import LIST, WITH_SPARK, persist_small, replay


@dag(
    schedule=CronDataIntervalTimetable("*/10 * * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,  # a run takes all that is due by now
    max_active_runs=1,  # politeness only: of two passes at once one is discarded
    dagrun_timeout=LONGEST_MOVE + timedelta(hours=6),
    default_args={"owner": "tidemark", "execution_timeout": timedelta(minutes=30), **RETRIES},
    params={
        "collections": Param(
            None,
            type=["null", "array"],
            items={"type": "string"},
            description="The collections: names, or `tag:TAG`; empty for all with event times.",
        ),
        "engine": Param(
            "auto", enum=["auto", "spark"], type="string", description="Spark even for what needs no JVM, or as needed."
        ),
        "now": Param(default=False, type="boolean", description="All rows, however young, and whatever is declared."),
        "replay": Param(
            "", type="string", description="The name of a collection: read what is not persisted of it again instead."
        ),
        "replay_partitions": Param(
            None,
            type=["null", "array"],
            items={"type": "string"},
            description="Only these partitions come back; empty for all.",
        ),
        "replay_from": Param(
            None,
            type=["null", "array"],
            items={"type": "string", "pattern": "^[0-9]+:[0-9]+$"},
            description="SEQUENCER:NUMBER: all rows from there on come back, persisted or not.",
        ),
        "replay_skip_lost": Param(
            default=False, type="boolean", description="Go on without entries that the buffer has lost, on the record."
        ),
    },
    tags=["tidemark", "ingest", "maintenance"],
    doc_md=__doc__,
)
def buffer_lifecycle() -> None:
    persisted = persist_small.override(task_id="persist")()
    with_spark = SparkApplicationOperator(
        task_id=WITH_SPARK,
        application="buffer_lifecycle.py",
        application_args=XComArg(persisted.operator, key=SPARK_ARGUMENTS),
        fence_on_retry=False,  # an earlier try that publishes after all has done the work
        pool="spark",
        execution_timeout=timedelta(hours=5),
    )
    replayed = replay.override(execution_timeout=timedelta(hours=5))()
    results = list_both.override(task_id=LIST)(
        XComArg(persisted.operator, key=REPORT), XComArg(persisted.operator, key=LEFT), [with_spark.output, replayed]
    )
    LedSensor(task_id="wait_until_led") >> persisted >> replayed
    tell_results(results)


buffer_lifecycle()
