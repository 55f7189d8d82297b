"""Both DAGs in this process, with a real spark-submit each: a batch is staged, flushed, verified, and shown."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.declared import declare
from tests.support.events import switch
from tidemark.collections.deployment import Mode
from tidemark.iceberg.shards import Shards
from tidemark.settings import PROJECT_ROOT, Settings
from tools.local_airflow.settings import AirflowSettings

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark

RANGE = {"source": [[1_356_998_400_000, 1_357_002_000_000]]}
DECLARATION = """
version: 1
collections:
  readings:
    kind: append-only
    schema: "at timestamp, value bigint"
    source: {format: parquet, path: readings.parquet, where: "at >= '{start}' AND at < '{end}'"}
"""


@pytest.fixture
def declared(home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    times = [datetime(2013, 1, 1, 0, minute, tzinfo=UTC) for minute in (0, 30, 59)]
    rows = pa.table({"at": pa.array(times, pa.timestamp("us", "UTC")), "value": pa.array([1, 2, 3], pa.int64())})
    parquet.write_table(rows, tmp_path / "readings.parquet")
    (tmp_path / "collections.yaml").write_text(DECLARATION)
    environment = {**AirflowSettings.read().environment(), "TIDEMARK_HOME": str(home.home)}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    declare(home, tmp_path / "collections.yaml")
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True, cwd=PROJECT_ROOT, env=os.environ)
    return home


def run_dag(dag_id: str, **conf: Any) -> dict[str, tuple[str, Any]]:
    """Run the DAG as `airflow dags test` does; return state and result of each task, mapped ones by number."""
    from airflow.dag_processing.dagbag import DagBag

    run = DagBag(PROJECT_ROOT / "dags").dags[dag_id].test(logical_date=None, run_conf=conf)
    return {
        f"{each.task_id}{'' if each.map_index < 0 else each.map_index}": (
            str(each.state),
            each.xcom_pull(each.task_id, map_indexes=each.map_index),
        )
        for each in run.get_task_instances()
    }


def test_batch_is_staged_and_flushed_by_spark_applications(declared: Settings) -> None:
    hour = {"start": "2013-01-01T00:00:00", "end": "2013-01-01T01:00:00"}
    switch(declared, Mode.READ_ONLY)
    appended = run_dag("append_batches", engine="spark", **hour)
    assert {state for state, _ in appended.values()} == {"success"}
    assert appended["append_with_spark"][1]["collections"]["readings"]["outcome"] == "staged"
    assert rows(declared) == 0

    switch(declared, Mode.READ_WRITE)
    flushed = run_dag("flush_staged_batches", engine="spark")
    assert {name: state for name, (state, _) in flushed.items() if state != "success"} == {"flush": "skipped"}
    shown = flushed["show_result0"][1]
    assert (shown["name"], shown["outcome"], shown["inserted"]) == ("readings", "flushed", 3)
    assert shown["details"] == {"ranges": RANGE}
    assert rows(declared) == 3

    again = run_dag("flush_staged_batches")
    assert {name for name, (state, _) in again.items() if state == "success"} == {"wait_until_writable", "list_staged"}
    skipped = run_dag("append_batches", **hour)
    assert (skipped["append_with_spark"][0], skipped["show_result0"][1]["outcome"]) == ("skipped", "skipped")
    assert rows(declared) == 3


def rows(settings: Settings) -> int:
    table = Shards.connect(settings).iceberg.load_table(("collections", "readings"))
    return int(table.scan().to_arrow().num_rows)
