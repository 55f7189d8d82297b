"""### Run ingestions and sinks all the time

A scheduler's ten minutes are too slow for some tables. **Storage workers** run the collections and sinks that declare
`every`, as in `source: {buffer: events, every: 5s}`: each round reads what came, and makes it visible in one commit.

`wait_until_led` waits while the system's own catalog is moved → `plan_workers` checks the stores, and skips the rest
if nothing declares `every` → `work` is one mapped task for each worker; beside them `watch` waits in the triggerer,
and fails if one is lost. The workers share out what came, and any of them may die: the others go on at once, and the
task starts its worker again.

A run comes every 50 minutes, and its workers live for 55: the workers of the next run **take over** from those of the
last one, which end after the step in hand. Nothing stands still in between, and nothing is read twice: the ledger of
each collection says what is in it.

While the deployment is **read-only** the workers wait, and `ingest_write_buffer` stages as ever. Objects that a living
worker runs are left out by `ingest_write_buffer` and `run_sinks`, unless they are named; if no worker lives, these
DAGs do the work.

- A task that was killed, or lost with its machine: the scheduler starts it again, and its worker takes up what is
  stored. Kill, clear or repeat tasks as you like.
- `work` fails with exit code 77: a newer deployment leads. Its own workers go on; stop this DAG.
- `watch` fails: a worker is silent for two minutes, or has not begun within ten. Has the pool `storage` a free slot?
- `Unreachable`: the stores do not answer at the start. Once it runs, a worker waits for them.
- An object that fails is suspended, as after a scheduled run: `tidemark status` shows it, and `tidemark storage status`
  shows the last error of each object.

Trigger with `workers`, `minutes`, and `until_drained` for workers that end once nothing waits any more, as after an
outage. The workers of that run take over from those that run; a later scheduled run takes over from them.
Metrics: `tidemark.storage.lag_ms`, `.behind_ms`, `.waiting`, `.rows` and `.rounds` by object, every ten seconds,
through Airflow's StatsD (with tags) or OpenTelemetry.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import Param, dag

from tidemark.orchestration.retry_policy import RETRIES, RETRY_POLICY
from tidemark.orchestration.sensors.leader import LONGEST_MOVE, LedSensor
from tidemark.orchestration.sensors.workers import WorkersSensor
from tidemark.orchestration.storage_worker import StorageWorkerOperator
from tidemark.orchestration.tasks.storage import plan_workers

LONGEST = timedelta(hours=25)  # a run that was triggered with many minutes


@dag(
    schedule=timedelta(minutes=50),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=2,  # the next run begins while the last one ends
    dagrun_timeout=LONGEST_MOVE + LONGEST,
    default_args={"owner": "tidemark", "execution_timeout": LONGEST, **RETRIES},
    params={
        "workers": Param(2, type="integer", minimum=1, maximum=64, description="How many share the work."),
        "minutes": Param(55, type="integer", minimum=1, maximum=1440, description="How long they live."),
        "until_drained": Param(default=False, type="boolean", description="End once nothing waits any more."),
    },
    tags=["tidemark", "storage"],
    doc_md=__doc__,
)
def run_storage_workers() -> None:
    planned = plan_workers()
    LedSensor(task_id="wait_until_led") >> planned
    planned >> WorkersSensor(
        task_id="watch", workers="{{ params.workers }}", minutes="{{ params.minutes }}", timeout=LONGEST.total_seconds()
    )
    StorageWorkerOperator.partial(
        task_id="work",
        workers="{{ params.workers }}",
        minutes="{{ params.minutes }}",
        until_drained="{{ params.until_drained }}",
        map_index_template="{{ task.worker }}",
        pool="storage",
        retry_policy=RETRY_POLICY,
    ).expand(worker=planned)


run_storage_workers()
