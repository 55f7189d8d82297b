"""The status page of a large installation: a thousand collections that run every hour, with 30 days of history.

``python -m bench.page`` prints the table: of each route the 95th percentile of requests between which runs go on.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from fastapi.testclient import TestClient

from bench.figures import Figure, write_or_print
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import SystemClock
from tidemark.collections.append.append import append_rows
from tidemark.collections.append.forward import user_columns
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Mode
from tidemark.collections.mode import switch_mode
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.staged.batches import BatchName
from tidemark.collections.system.declarations import STATISTICS
from tidemark.collections.system.recorder import record_run
from tidemark.collections.system.tables import open_table
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shards import Shards
from tidemark.interval import HOUR_MS
from tidemark.locations import to_path
from tidemark.orchestration.status_page.app import API, status_app
from tidemark.report import CollectionReport, Outcome, Report
from tidemark.settings import Settings
from tools.local_airflow.settings import AirflowSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

MANY, HOURS, COMMITS, ROUND = 1_000, 30 * 24, 30, 20  # ROUND collections run between two rounds of requests
ROUTES = (
    "overview", "collections/c_0500", "collections/c_0500/corrections", "collections/c_0500/contents", "staged",
    "buffers", "catalog", "deployments", "lineage",
)  # fmt: skip
STANDS_BY = "deployments, of one that stands by"
AT_MOST_MS = 200


def measure_page(settings: Settings, *, rounds: int) -> Iterator[Figure]:
    """Yield the 95th percentile of each route, and the first request of all, which reads everything."""
    clock = SystemClock()
    shards = make_home(settings, clock.now_ms())
    deployment = deployment_of(settings)
    os.environ.update({**AirflowSettings.read().environment(), "TIDEMARK_HOME": str(settings.home)})
    create_auth_manager()
    app = status_app()
    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="operator", role="VIEWER")
    times: dict[str, list[float]] = {route: [] for route in (*ROUTES, STANDS_BY)}
    with TestClient(app) as client:
        yield Figure("page: first request, reads everything", "ms", (ask(client, "overview"),))
        for number in range(rounds):
            names = [name_of((number * ROUND + each) % MANY) for each in range(ROUND)]
            correct(shards.open(name_of(500)), settings, clock.now_ms())
            record_run(deployment, report_of(names, clock.now_ms()), clock=clock)
            gc.collect()  # what the runs left, which are other processes elsewhere
            for route in ROUTES:
                times[route].append(ask(client, route))
        os.environ["TIDEMARK_GENERATION"] = "2"
        newer = deployment_of(replace(settings, generation=2))
        record_run(newer, report_of([name_of(number) for number in range(MANY)], clock.now_ms()), clock=clock)
        for number in range(rounds):
            correct(shards.open(name_of(500)), settings, clock.now_ms())
            record_run(newer, report_of([name_of(number)], clock.now_ms()), clock=clock)
            gc.collect()
            times[STANDS_BY].append(ask(client, "deployments"))
    for route, measured in times.items():
        slowest = statistics.quantiles(measured, n=20)[-1] if len(measured) > 1 else measured[0]
        yield Figure(f"page: {route}, p95 of {rounds}", "ms", (slowest,), at_most=AT_MOST_MS)


def ask(client: TestClient, route: str) -> float:
    """Return the ms that a request takes."""
    started = time.perf_counter()
    answer = client.get(f"{API}/{route}")
    took_ms = (time.perf_counter() - started) * 1_000
    assert answer.status_code == 200, answer.text
    return took_ms


# -- the installation ----------------------------------------------------------------------------------------------


def make_home(settings: Settings, now_ms: int) -> Shards:
    """Make one collection, the others as copies of its metadata file, and what a month of runs would have recorded."""
    settings.home.mkdir()
    shards, deployment = Shards.connect(settings), deployment_of(settings)
    declared = [declaration_of(name_of(number)) for number in range(MANY)]
    deployment.registry.replace(declared, seen=deployment.registry.read())
    switch_mode(shards, deployment, Mode.READ_WRITE, who="bench", why="")
    first = shards.create(name_of(0), schema=to_iceberg(declared[0].known_columns or ()), key=["id"])
    for hour in range(COMMITS, 0, -1):
        correct(first, settings, now_ms - hour * HOUR_MS)
    copy_tables(settings, first)
    record_month(shards, settings, now_ms)
    return shards


def name_of(number: int) -> str:
    return f"c_{number:04}"


def declaration_of(name: str) -> Declaration:
    source = {"format": "csv", "path": f"/data/{name}.csv", "schema": "id bigint, name string"}
    return Declaration.model_validate({"name": name, "kind": "differential", "key": ["id"], "source": source})


def correct(shard: Shard, settings: Settings, time_ms: int) -> None:
    """Commit one more row."""
    head = shard.load()
    lower = head.state.open_upper(shard.name)
    time_ms = max(time_ms, lower)
    columns = {"id": pa.int64(), "name": pa.string(), "_time": pa.int64(), "_diff": pa.int64()}
    row = {"id": [time_ms], "name": ["a name"], "_time": [time_ms], "_diff": [1]}
    added = tuple(write_rows(head.table, pa.table(row, schema=pa.schema(columns))))
    Writer.join(shard, settings.generation).publish(Batch(added=added), lower=lower, new_upper=time_ms + 1)


def copy_tables(settings: Settings, first: Shard) -> None:
    """Give every other collection a metadata file of its own, which names the files of the first one."""
    location = first.location()
    assert location is not None
    path = to_path(location)
    assert path is not None
    metadata = json.loads(path.read_bytes())
    with closing(sqlite3.connect(settings.catalog_path)) as database, database:
        for number in range(1, MANY):
            copied = path.with_name(f"{name_of(number)}.metadata.json")
            metadata["table-uuid"] = f"00000000-0000-4000-8000-{number:012}"
            copied.write_text(json.dumps(metadata), encoding="utf-8")
            database.execute(
                "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location) "
                "SELECT catalog_name, table_namespace, ?, ? FROM iceberg_tables WHERE table_name = ?",
                (name_of(number), copied.as_uri(), name_of(0)),
            )


def record_month(shards: Shards, settings: Settings, now_ms: int) -> None:
    """Record that every collection ran every hour of a month: in one commit what a month of maintenance would leave."""
    shard = open_table(shards, STATISTICS, generation=settings.generation)
    names = [name_of(number) for number in range(MANY)]
    ids = {name: known.id for name, known in deployment_of(settings).registry.objects().items()}
    rows = MANY * HOURS
    times = np.repeat((now_ms - np.arange(HOURS, 0, -1) * HOUR_MS) * 1_000, MANY)
    columns = {
        "measured_at": pa.array(times, pa.timestamp("us", "UTC")),
        "object": pa.array(names * HOURS),
        "object_id": pa.array([ids[name] for name in names] * HOURS, pa.int64()),
        "kind": pa.repeat(pa.scalar("collection"), rows),
        "operation": pa.repeat(pa.scalar("reconcile"), rows),
        "outcome": pa.repeat(pa.scalar("corrected"), rows),
        "error": pa.nulls(rows, pa.string()),
        "rows": pa.array(np.arange(rows) % 97),
        "bytes": pa.nulls(rows, pa.int64()),
        "lag_ms": pa.array(np.arange(rows) % 5_000),
        "sequencer_lags": pa.nulls(rows, pa.string()),
        "seconds": pa.array((np.arange(rows) % 13).astype(float)),
        "generation": pa.repeat(pa.scalar(settings.generation, pa.int64()), rows),
    }
    wanted = user_columns(shard.load().table)
    table = pa.table([columns[name].cast(wanted.field(name).type) for name in wanted.names], schema=wanted)
    name = BatchName("bench", Range(0, 1))
    append_rows(shard, name, table, deployment=deployment_of(settings), clock=SystemClock())


def report_of(names: list[str], now_ms: int) -> Report:
    done = CollectionReport(outcome=Outcome.CORRECTED, inserted=1, seconds=0.1)
    return Report(
        operation="reconcile",
        started_at=now_ms,
        finished_at=now_ms,
        generation=1,
        collections=dict.fromkeys(names, done),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--results", type=Path, help="write the figures there, as JSON, instead of a table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
        settings = Settings.load({**os.environ, "TIDEMARK_HOME": str(Path(folder) / "home")})
        figures = list(measure_page(settings, rounds=arguments.rounds))
    write_or_print(figures, arguments.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
