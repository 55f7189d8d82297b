"""A step of the demo: weather is written to a buffer, and comes out of it into a collection, each observation once.

Months are complete once all partitions of the buffer have passed them. A late observation opens its month again, until
no other one came for a while.
"""

from __future__ import annotations

import itertools
import json
import time
from typing import TYPE_CHECKING, Any

from examples.downstream_shown import show_downstream, unpause_downstream
from examples.prepare import load_table
from examples.steps import console, run_dag, say, tidemark
from tidemark.errors import StaleState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tools.local_airflow.client import AirflowClient

    Follow = Callable[[list[str], list[dict[str, Any]]], None]  # of the closed months, and of all visible observations

DAG = "ingest_write_buffer"
COLLECTION, TABLE, PARTITIONS = "weather_readings", "weather", 4
WINDOW_SECONDS = 2  # how long observations may be late: minutes or hours where nobody watches
DECLARATION = """
version: 1
collections:
  {collection}:
    kind: append-only
    schema: "origin string, time_hour timestamp, temp double, humid double, wind_speed double, precip double"
    source: {{buffer: "{address}", table: {table}}}
    event_time: time_hour
    partition: month
    lifecycle: {{late_arrive_window: {window}s}}
"""
COLUMNS = ("origin", "time_hour", "temp", "humid", "wind_speed", "precip")
LATE = {"origin": "EWR", "time_hour": "2013-01-01T05:00:00Z", "temp": 39.0}
BROKEN = {"origin": "EWR", "time_hour": "2014-01-01T00:00:00Z", "temp": "warm"}  # one observation that is none


def show_buffer(
    environment: dict[str, str],
    folder: Path,
    address: str,
    *,
    ingest: Callable[[], dict[str, Any]],
    interrupt: Callable[[], None] | None = None,
    follow: Follow | None = None,
) -> None:
    """Write the year in two halves, ingest after each, look at what was put aside, and at what is late.

    Args:
        environment: Of the command line.
        folder: For files of rows.
        address: Of the buffer.
        ingest: Ingests all that waits, and returns the collection's part of the report.
        interrupt: Makes trouble between the two halves, and is back in order when it returns.
        follow: Shows what starts once months are closed.

    Raises:
        StaleState: If an observation is missing or there twice, or a month is not told to be complete.
    """
    declared = folder / "readings.yaml"
    declaration = DECLARATION.format(collection=COLLECTION, address=address, table=TABLE, window=WINDOW_SECONDS)
    declared.write_text(declaration, encoding="utf-8")
    tidemark(environment, "apply", str(declared))
    tidemark(environment, "buffer", "create", address, "--sequencers", str(PARTITIONS))
    observations = readings()
    half = len(observations) // 2
    write(environment, folder, address, observations[:half])
    console.print("[bold]what waits is ingested, and the numbers are committed with the rows[/bold]")
    first = ingest()
    expect(environment, first, inserted=half, total=half)
    expect_closed(first, observations[:half], follow, until="2013-06")
    if interrupt is not None:
        interrupt()
    write(environment, folder, address, [*observations[half:], BROKEN])
    tidemark(environment, "buffer", "status", address)
    second = ingest()
    expect(environment, second, inserted=len(observations) - half, total=len(observations))
    expect_closed(second, observations, follow, until="2013-11")
    say("Every observation is there exactly once; the one that is none waits in the quarantine:")
    tidemark(environment, "buffer", "quarantine", "list", COLLECTION)
    third = ingest_later(ingest)
    expect(environment, third, inserted=0, total=len(observations))
    expect_closed(third, observations, follow, until="2013-12")
    console.print("[bold]an observation of January comes late[/bold]")
    write(environment, folder, address, [LATE])
    late = ingest()
    observations = [*observations, LATE]
    expect(environment, late, inserted=1, total=len(observations))
    expect_months(late, "reopened", until="2013-01")
    say("What came in small files is written anew, in order of time; no row changes:")
    tidemark(environment, "buffer", "persist", COLLECTION, "--now")
    tidemark(environment, "buffer", "partitions", COLLECTION)
    last = ingest_later(ingest)
    expect(environment, last, inserted=0, total=len(observations))
    say("No other late observation came, and January is closed again:")
    expect_closed(last, observations, follow, until="2013-01")


def show_buffer_with_airflow(client: AirflowClient, environment: dict[str, str], folder: Path) -> None:
    """Let a DAG ingest from a buffer in a folder, and another one start when months are closed.

    Raises:
        StaleState: If an observation is missing or there twice, or the other DAG does not compute the closed months.
    """
    console.rule("6. readings are written to an ordered log, and ingested exactly once")

    def ingest() -> dict[str, Any]:
        run = run_dag(client, DAG, {"collections": [COLLECTION]})
        [result] = client.xcom(DAG, run, "list_ingested")
        return dict(result)

    runs = itertools.count()

    def follow(months: list[str], observations: list[dict[str, Any]]) -> None:
        show_downstream(client, months, observations, earlier_runs=next(runs))

    unpause_downstream(client)
    show_buffer(environment, folder, (folder / "buffer").as_uri(), ingest=ingest, follow=follow)


def ingest_later(ingest: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Ingest once no observation can come in time any more, so that the clock closes what is open."""
    time.sleep(WINDOW_SECONDS)
    return ingest()


def readings() -> list[dict[str, Any]]:
    """Return the observations of 2013 as JSON has them, in order of time."""
    rows = load_table(TABLE).select(list(COLUMNS)).sort_by("time_hour").to_pylist()
    return [
        {name: value for name, value in {**row, "time_hour": row["time_hour"].isoformat()}.items() if value is not None}
        for row in rows
    ]


def write(environment: dict[str, str], folder: Path, address: str, rows: list[dict[str, Any]]) -> None:
    """Write ``rows`` as any producer may, all observations of one place and hour to one partition."""
    file = folder / "readings.ndjson"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    tidemark(environment, "buffer", "write", address, str(file), "--table", TABLE, "--key", "origin,time_hour")


def expect_closed(
    result: dict[str, Any], observations: list[dict[str, Any]], follow: Follow | None, *, until: str
) -> None:
    """Say which months an ingest closed, check the last one, and show what starts then; raises as ``expect_months``."""
    months = expect_months(result, "closed", until=until)
    if follow is not None:
        follow(months, observations)


def expect_months(result: dict[str, Any], what: str, *, until: str) -> list[str]:
    """Say which months an ingest closed, or reopened; check the last one, and return all of them.

    Raises:
        StaleState: If it is another one.
    """
    months = [each["partition"] for each in result["details"].get(what, [])]
    say(f"months {what}: {', '.join(months)}")
    if months[-1:] != [until]:
        raise StaleState(f"the months up to {until} were to be {what}, and {months} were")
    return months


def expect(environment: dict[str, str], result: dict[str, Any], *, inserted: int, total: int) -> None:
    """Say what an ingest did, and check it.

    Raises:
        StaleState: If it is not what was to be done.
    """
    count = json.loads(tidemark(environment, "show", COLLECTION, "--json", shown=False))["rows"]
    say(f"{COLLECTION}: {result['outcome']}, {result['inserted']:,} rows; {count:,} rows in all")
    if (result["inserted"], count) != (inserted, total):
        raise StaleState(f"{inserted} rows were to come, {total} to be there; it were {result['inserted']} and {count}")
