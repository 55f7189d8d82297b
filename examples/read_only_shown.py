"""A step of the demo: hours are appended while the deployment is read-only, and come all at once when that ends."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from examples.prepare import EVENTS, load_table
from examples.steps import RUN_SECONDS, console, finish_run, run_dag, say, start_dag, tidemark
from tidemark.errors import StaleState
from tidemark.iceberg.shard.state_reader import read_state
from tidemark.settings import Settings

if TYPE_CHECKING:
    from tools.local_airflow.client import AirflowClient

APPEND, FLUSH = "append_batches", "flush_staged_batches"
FIRST = datetime(2013, 1, 1, tzinfo=UTC)


def show_read_only(client: AirflowClient, environment: dict[str, str]) -> None:
    """Append a day, then three days in read-only mode; let them be flushed, and append one of them again.

    Raises:
        StaleState: If anything is visible before its time, not at all, or twice.
    """
    console.rule("4. nothing may change for a while, and the producers go on")
    append_day(client, 1)
    visible = expect(environment, days=1, staged_days=0)
    tidemark(environment, "mode", "read-only", "--why", "an upgrade")
    for day in (2, 3, 4):
        append_day(client, day)
        expect(environment, days=1, staged_days=day - 1)
    tidemark(environment, "staged")
    with console.status(f"Airflow runs {FLUSH}, which waits"):
        waiting = start_dag(client, FLUSH)
        client.wait_until(lambda: is_waiting(client, waiting), what="the flush to wait", timeout_s=RUN_SECONDS)
    say(f"{FLUSH} waits for the end of read-only mode")
    tidemark(environment, "mode", "read-write", "--why", "the upgrade is done")
    switched, settings = time.monotonic(), Settings.load(environment)
    with console.status("the flush goes on"):
        client.wait_until(
            lambda: read_state(settings, EVENTS).rows > visible,
            what="the staged rows to become visible",
            timeout_s=RUN_SECONDS,
        )
        say(f"the staged rows were visible {time.monotonic() - switched:.1f} s after the switch, in one commit")
        finish_run(client, FLUSH, waiting)
    expect(environment, days=4, staged_days=0)
    append_day(client, 3)
    expect(environment, days=4, staged_days=0)
    say("Every hour is there exactly once.")


def append_day(client: AirflowClient, day: int) -> None:
    """Append the hours of one day of January 2013, as a person does who triggers the DAG."""
    start = FIRST + timedelta(days=day - 1)
    conf = {"collections": [EVENTS], "start": start.isoformat(), "end": (start + timedelta(days=1)).isoformat()}
    run = run_dag(client, APPEND, conf)
    [result] = client.xcom(APPEND, run, "list_appended")
    say(f"{APPEND} of {start:%Y-%m-%d}: {result['outcome']}")


def expect(environment: dict[str, str], *, days: int, staged_days: int) -> int:
    """Say how many rows are visible, and check that it is those of the first ``days``; return how many.

    Raises:
        StaleState: If not.
    """
    visible, staged = seen(environment)
    say(f"{EVENTS}: {visible:,} rows visible, {staged:,} staged")
    wanted = rows_until(days), rows_until(days + staged_days) - rows_until(days)
    if (visible, staged) != wanted:
        raise StaleState(f"{EVENTS}: {wanted} rows were to be visible and staged, {(visible, staged)} are")
    return visible


def seen(environment: dict[str, str]) -> tuple[int, int]:
    """Return how many rows are visible, and how many are staged."""
    shown: dict[str, Any] = json.loads(tidemark(environment, "read", EVENTS, "--json", shown=False))
    staged = json.loads(tidemark(environment, "staged", EVENTS, "--json", shown=False))
    return int(shown["count"]), sum(int(batch["rows"]) for batch in staged["batches"])


def rows_until(days: int) -> int:
    """Return how many observations the package has of the first days of January 2013."""
    times = load_table("weather").column("time_hour").to_pylist()
    return sum(1 for time in times if time < FIRST + timedelta(days=days))


def is_waiting(client: AirflowClient, run: str) -> bool:
    """Say whether the flush waits in the triggerer."""
    return bool(client.tasks(FLUSH, run)["wait_until_writable"]["state"] == "deferred")
