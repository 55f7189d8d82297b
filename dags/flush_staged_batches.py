"""### Publish what was staged, as soon as read-only mode ends

`wait_until_led` waits while the system's own catalog is moved → `wait_until_writable` looks at the mode first, and
waits in the triggerer only if it has to; it sees a switch within a second, whoever made it → `list_staged` writes down
what is this deployment's to publish → `flush` publishes it, **one commit per collection**: rows, ledgers and the
removal of the staging branches, all or nothing. A Spark application does so instead (`flush_with_spark`) if batches
are large, or if corrections are stale, that is, were computed against contents that have changed since: it reconciles
their slices right after → `verify_flush` looks into the ledgers, and whether any correction is left → `show_result` is
one light task per collection, which emits its asset event with the published ranges.

A run starts at every switch of the mode (asset `tidemark_mode`, whether the switch came from the command line or from
`switch_mode`), and every ten minutes as a safety net. A run that starts in read-only mode waits for its end.

| you see | it means |
|---|---|
| `wait_until_writable` deferred | the deployment is read-only; `tidemark mode read-write` lets it go on |
| everything after `list_staged` skipped | nothing was staged, or only for paused collections: its log says so |
| `show_result[NAME (not flushed)]` red | that batch or slice stays staged, its log says why; the others are published |
| `wait_until_writable` red, *a newer deployment leads* | stop this one: it will never write again |

Every task may be killed, retried, cleared or run twice at once: a second flush finds everything to do, or nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import AssetOrTimeSchedule, CronDataIntervalTimetable, Param, dag

from tidemark.orchestration.retry_policy import RETRIES
from tidemark.orchestration.sensors.leader import LedSensor
from tidemark.orchestration.sensors.mode_asset import MODE
from tidemark.orchestration.sensors.writable import WritableSensor
from tidemark.orchestration.tasks.flush import flush_staged

LONGEST_WAIT = timedelta(days=7)  # read-only for longer is an accident, and fails so that somebody looks


@dag(
    schedule=AssetOrTimeSchedule(timetable=CronDataIntervalTimetable("*/10 * * * *", timezone="UTC"), assets=[MODE]),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,  # politeness only: of two flushes one finds nothing to do
    dagrun_timeout=LONGEST_WAIT + timedelta(days=1),
    default_args={"owner": "tidemark", "execution_timeout": timedelta(minutes=30), **RETRIES},
    params={
        "collections": Param(
            None,
            type=["null", "array"],
            items={"type": "string"},
            description="Names of the collections to flush; empty for all that have anything staged.",
        ),
        "engine": Param(
            "auto", enum=["auto", "spark"], type="string", description="As a Spark application, or only if it is large."
        ),
    },
    tags=["tidemark", "flush"],
    doc_md=__doc__,
)
def flush_staged_batches() -> None:
    # Without a triggerer: deferrable=False looks once a minute instead.
    writable = WritableSensor(task_id="wait_until_writable", timeout=LONGEST_WAIT.total_seconds(), poll_seconds=1.0)
    staged, _ = flush_staged()
    LedSensor(task_id="wait_until_led") >> writable >> staged


flush_staged_batches()
