"""What Airflow's own provider of OpenLineage sends of a run of the DAGs: datasets, columns and rows."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.declared import HEAD, PLANES
from tidemark.settings import PROJECT_ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.airflow_runs import Dags

pytestmark = pytest.mark.spark

FLIGHTS = """  flights:
    kind: differential
    key: [id]
    schema: "id bigint, tailnum string, room int"
    source:
      inputs: {f: {format: parquet, path: flights}, p: {collection: planes}}
      sql: "SELECT f.*, seats * 2 AS room FROM f LEFT JOIN p USING (tailnum)"
"""


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that OpenLineage's events go to, one a line."""
    path = tmp_path / "events.jsonl"
    transport = {"type": "file", "log_file_path": str(path), "append": True}
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps(transport))
    return path


def lineage_of(events: Path, task: str) -> dict[str, Any]:
    """Return the events of a task that name datasets, by the name in the catalog of what was written."""
    found = [json.loads(line) for line in events.read_text().splitlines()]
    return {
        event["outputs"][0]["facets"]["symlinks"]["identifiers"][0]["name"]: event
        for event in found
        if event["job"]["name"] == task and event["outputs"]
    }


def origins(output: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    fields = output["facets"]["columnLineage"]["fields"]
    return {
        column: [(each["name"].rpartition("/")[2], each["field"]) for each in field["inputFields"]]
        for column, field in fields.items()
    }


def test_a_reconcile_tells_inputs_columns_and_rows(dags: Dags, events: Path) -> None:
    dags.home.write_lines("planes", "tailnum,seats", "N1,10", "N2,20")
    (folder := dags.home.folder / "flights").mkdir()
    pq.write_table(pa.table({"id": [1, 2, 3], "tailnum": ["N1", "N2", None]}), folder / "part.parquet")
    dags.home.declare(HEAD + PLANES + FLIGHTS)
    # In a process of its own: once loaded, the provider listens to every run of the process, and leaves children.
    run = [sys.executable, "-m", "airflow", "dags", "test", "reconcile_collections"]
    subprocess.run(run, check=True, cwd=PROJECT_ROOT)
    found = lineage_of(events, "reconcile_collections.show_result")
    planes, flights = found["collections.planes"], found["collections.flights"]
    (table,) = planes["outputs"]
    assert [(each["namespace"], each["name"]) for each in planes["inputs"]] == [
        ("file", str(dags.home.folder / "planes.csv"))
    ]
    assert table["name"] == dags.home.shard("planes").load().table.location().removeprefix("file://")
    assert [(each["name"], each["type"]) for each in table["facets"]["schema"]["fields"]] == [
        ("tailnum", "string"),
        ("seats", "int"),
    ]
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert table["facets"]["version"]["datasetVersion"] == str(dags.home.shard("planes").load().main.snapshot_id)
    assert origins(table) == {"tailnum": [("planes.csv", "tailnum")], "seats": [("planes.csv", "seats")]}

    read = {each["name"] for each in flights["inputs"]}
    assert read == {str(folder), table["name"]}, "the collection has the same name where it is read"
    (joined,) = flights["outputs"]
    planes_folder = table["name"].rpartition("/")[2]
    assert origins(joined) == {
        "id": [("flights", "id")],
        "tailnum": [("flights", "tailnum")],
        "room": [(planes_folder, "seats")],
    }
    assert flights["job"]["facets"]["sql"]["query"].startswith("SELECT f.*")
    assert flights["eventType"] == "RUNNING"
