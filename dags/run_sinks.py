"""### Carry collections into other systems

Each **sink** carries a collection, or its changes, into a table, a topic or a folder. A run starts when a collection
has changed (asset `tidemark_changed`, one event of a run for all that it changed), and every ten minutes.

`wait_until_led` waits while the system's own catalog is moved → `list_sinks` checks the stores → `run_sink` is one
mapped task for each sink, named after it: it asks the target how far it came, and carries what came since, rows and
progress in one transaction of the target, without a JVM. The first run carries the contents. A task that carried
something emits the asset `tidemark_sink_NAME`.

A first load of many rows (`spark_from_rows` of the sink, 100 million without) is left for **one Spark application**,
beside the other sinks: `check_large_loads` goes on only if there is one → `load_with_spark` runs these sinks, whose
parts the executors write → `show_load` is one task for each of them, as `run_sink` is for the others. Where some of
them were loaded, a load that failed is left to the next run. Topics of Kafka are always loaded by `run_sink`.

A sink that fails, or takes longer than five hours, is **suspended**: runs leave it out for a minute, then twice as long
after each further failure, an hour at most. The first run after that time tries it again; nothing starts a run for it,
so that is the next change of a collection, or ten minutes later at most. `tidemark status` shows it. A run that names
it in `sinks` tries it at once. A sink whose run was killed is suspended by the next run, which then goes on at once:
from the second kill in a row on the sink rests.

- `Unreachable`: the target is down, or a folder is not mounted. The collection keeps the history that the sink needs;
  other sinks go on.
- `FencedByEpoch`, retried: another run of the same sink took the target over.
- `SchemaMismatch`: the table that is there has other columns; the message shows both.
- `NotPossible`: another sink wrote to that target. Give this one a target of its own, or drop the other sink.
- `HistoryGone`: the target is older than the history that is kept, for example after it was restored from a backup.
  Drop the sink, and declare it again with `existing: replace`.
- `OutOfTime`: the run took longer than a task may. A first load begins anew: let Spark make it
  (`spark_from_rows` of the sink).
- `RunLost`: its last run was killed, for example out of memory.
- Skipped: the deployment is read-only, or somebody paused the sink, or it is suspended: it goes on where it was. Or it
  was dropped after it was listed; the message says when and by whom.
- Skipped because another run of the sink is under way: the message says where, and since when. A run waits for 20
  seconds for the other one, which carries what comes meanwhile. So a long first load, or a target that hangs, stops
  its own sink alone: several runs of this DAG go side by side.
- A sink that a live storage worker runs (`every` in its declaration) is not listed: the log of `list_sinks` says so.

Every task may be killed, retried, cleared or run twice at once: the target refuses all runs but the newest.
`max_active_runs` is politeness. If Spark cannot run, the sinks that wait for it are `stalled`; the last result of each
sink is on the status page. Trigger with `sinks` to run some only, as in `{"sinks": ["copies"]}`; a run with any other
param is refused.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import AssetOrTimeSchedule, CronDataIntervalTimetable, Param, XComArg, dag

from tidemark.orchestration.results import CHANGED, list_results
from tidemark.orchestration.retry_policy import RETRIES
from tidemark.orchestration.sensors.leader import LONGEST_MOVE, LedSensor
from tidemark.orchestration.spark_application import SparkApplicationOperator
from tidemark.orchestration.tasks.sinks import LARGE, WITH_SPARK, check_large_loads, list_sinks, run_sink, show_load


@dag(
    schedule=AssetOrTimeSchedule(timetable=CronDataIntervalTimetable("*/10 * * * *", timezone="UTC"), assets=[CHANGED]),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,  # a run carries all that came by now
    max_active_runs=4,  # sinks whose loads take hours, or hang, stop no other sink; each runs once at a time
    dagrun_timeout=LONGEST_MOVE + timedelta(hours=6),
    default_args={"owner": "tidemark", "execution_timeout": timedelta(hours=5), **RETRIES},
    params={
        "sinks": Param(
            None,
            type=["null", "array"],
            items={"type": "string"},
            description="Names of the sinks to run; empty for all.",
        )
    },
    tags=["tidemark", "sinks"],
    doc_md=__doc__,
)
def run_sinks() -> None:
    names = list_sinks()
    LedSensor(task_id="wait_until_led") >> names
    run_sink.expand(name=names)
    large = check_large_loads(XComArg(names.operator, key=LARGE))
    load = SparkApplicationOperator(
        task_id=WITH_SPARK,
        application="run_sinks.py",
        application_args=large,
        fence_on_retry=False,  # the target fences an earlier try when this one claims it
        pool="spark",
    )
    large >> load
    show_load.expand(result=list_results(load.output))


run_sinks()
