"""### Make collections equal to their sources

`wait_until_led` waits while the system's own catalog is moved → `prepare` checks connections and the stores, and leaves
out the collections whose sources have not changed since they were made equal to them (seconds, no JVM) → `reconcile`
runs **one Spark application** over the others, if there are any, in parallel, each one's failure isolated →
`show_result` is one light task per collection, named after it: green means equal to its source, red says why not, and
green ones emit the asset `tidemark_NAME` with the frontiers. `announce_changes` emits one event of the asset
`tidemark_changed` for all of them, by which the sinks start.

A run starts by the clock, for all collections; and when a source changes that names its `asset`, or has its files
watched (`watch`), for the collections that read it and those above. `show_event` is named after the event, and the
report has it as `triggered_by`. An event has no data interval: such a run looks at all slices.

| you want | do |
|---|---|
| correct some collections now | trigger with `collections`: names, `tag:reference`, `+flights`, `planes+` |
| see what would change | trigger with `dry_run` |
| compare all rows, whatever has changed | trigger with `full` (once a week it happens by itself: `verify_after`) |
| let a guard pass once | trigger with `max_delete_ratio` or `allow_empty`; the report records it |
| repair history | backfill it: what has a `scope` is repaired slice by slice, the rest equals its source as of now |
| do it again | clear the run: what is right already is left untouched |
| leave one out for a while | `tidemark pause NAME --why …`: its `show_result` is skipped and says why |

**What fails where.** A failure of the whole run (store unreachable 69, fenced 77, bug 70, …) fails `reconcile`. A
failure of one collection fails that collection's `show_result` only; if trying again may help, `reconcile` is retried
first. Every task may be killed, retried, cleared or run twice at once: the token and compare-and-append in the data
layer make that safe. `max_active_runs` and the pool are politeness.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import CronDataIntervalTimetable, Param, XComArg, dag

from tidemark.orchestration.driver_or_spark import LEFT, REPORT, SPARK_ARGUMENTS, list_both
from tidemark.orchestration.results import tell_results
from tidemark.orchestration.retry_policy import RETRIES
from tidemark.orchestration.sensors.leader import LONGEST_MOVE, LedSensor
from tidemark.orchestration.sensors.source_assets import or_when_sources_change
from tidemark.orchestration.spark_application import SparkApplicationOperator
from tidemark.orchestration.tasks.reconcile import IS_SMALL, LIST, WITH_SPARK, prepare_reconcile
from tidemark.orchestration.triggering_events import list_events, show_event


@dag(
    # The clock is the safety net of events that nobody told, and repairs what no event tells of.
    schedule=or_when_sources_change(CronDataIntervalTimetable("0 0 * * *", timezone="UTC")),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,  # politeness only: the token, not this line, makes two writers safe
    dagrun_timeout=LONGEST_MOVE + timedelta(hours=6),
    default_args={"owner": "tidemark", "execution_timeout": timedelta(minutes=5), **RETRIES},
    params={
        "collections": Param(
            None,
            type=["null", "array"],
            items={"type": "string"},
            description="The collections to reconcile: names, `tag:TAG`, `+NAME` (with all that it reads), `NAME+` "
            "(with all that read it); empty for all that are declared.",
        ),
        "dry_run": Param(default=False, type="boolean", description="Report the corrections; change nothing."),
        "full": Param(
            default=False, type="boolean", description="Compare all rows, also where the source has not changed."
        ),
        "allow_empty": Param(
            None, type=["null", "boolean"], description="Once: accept an empty source, or refuse it; empty as declared."
        ),
        "max_delete_ratio": Param(
            None,
            type=["null", "number"],
            minimum=0,
            maximum=1,
            description="Once: the largest share of the rows that may vanish; empty as declared.",
        ),
    },
    tags=["tidemark", "reconcile"],
    doc_md=__doc__,
)
def reconcile_collections() -> None:
    prepared = prepare_reconcile.override(task_id="prepare")()
    reconcile = SparkApplicationOperator(
        task_id=WITH_SPARK,
        application="reconcile_collections.py",
        application_args=XComArg(prepared.operator, key=SPARK_ARGUMENTS),
        is_small=XComArg(prepared.operator, key=IS_SMALL),
        pool="spark",
        execution_timeout=timedelta(hours=5),
    )
    results = list_both.override(task_id=LIST)(
        XComArg(prepared.operator, key=REPORT), XComArg(prepared.operator, key=LEFT), [reconcile.output]
    )
    LedSensor(task_id="wait_until_led") >> prepared
    events = list_events()
    prepared >> events
    show_event.expand(event=events)
    tell_results(results)


reconcile_collections()
