"""What runs read and wrote, and the facets that say so, without a store: tables are handed in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from openlineage.client.serde import Serde

from tests.conftest import settings_in
from tests.support.declared import csv_declaration
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.collections.deployment import Applied, AppliedSink
from tidemark.collections.schema.ddl import parse_columns
from tidemark.orchestration.lineage.datasets import DatasetName
from tidemark.orchestration.lineage.events import send_lineage
from tidemark.orchestration.lineage.facets import describe_inputs, describe_output
from tidemark.orchestration.lineage.flows import Flow, Table, flow_of
from tidemark.report import INPUT_COLUMNS, CollectionReport, ErrorReport, Outcome

QUERY = "SELECT p.k, v, n AS amount FROM p JOIN o USING (k)"
DECLARED = [
    csv_declaration("planes"),
    Declaration.model_validate(
        {
            "name": "joined",
            "kind": "differential",
            "source": {
                "inputs": {"p": {"collection": "planes"}, "o": {"format": "parquet", "path": "/data/o"}},
                "sql": QUERY,
            },
        }
    ),
    Declaration.model_validate(
        {"name": "events", "kind": "append-only", "schema": "k int, v string", "source": {"buffer": "file:///log"}}
    ),
    Declaration.model_validate(
        {"name": "gate", "kind": "append-only", "schema": "k int, v string", "writes_to": "file:///log"}
    ),
]
SINK = SinkDeclaration.model_validate(
    {"name": "copies", "from": "planes", "mode": "mirror", "to": {"path": "/out"}, "key": ["k"]}
)
COLUMNS = {"joined": "k int, v string, amount double"}


def look(name: str) -> Table:
    return Table(
        place=DatasetName("file", f"/warehouse/{name}"),
        in_catalog=DatasetName("iceberg://tidemark", f"collections.{name}"),
        columns=parse_columns(COLUMNS.get(name, "k int, v string")),
        upper=100,
        snapshot_id=7,
    )


def flow(name: str, operation: str, outcome: Outcome, **report: Any) -> Flow | None:
    result = CollectionReport(outcome=outcome, **{"upper": 100, **report}).to_json()
    applied = Applied({each.name: each for each in DECLARED}, sinks={"copies": AppliedSink(1, SINK)})
    return flow_of({"name": name, "operation": operation, **result}, applied, settings_in(Path("/nowhere")), look)


def seen(found: Flow | None) -> tuple[list[str], str, dict[str, str]]:
    assert found is not None
    origins = {
        column: " ".join(f"{origin.dataset.name}:{origin.column}" for origin in origins)
        for column, origins in found.origins.items()
    }
    return [place.name for place in found.inputs], found.output.name, origins


def test_plain_source_gives_each_column_its_own() -> None:
    found = flow("planes", "reconcile", Outcome.CORRECTED, inserted=3, retracted=1)
    file = "/nowhere/planes.csv"
    assert seen(found) == ([file], "/warehouse/planes", {"k": f"{file}:k", "v": f"{file}:v"})
    assert found is not None
    assert (found.rows, found.version) == (4, "7")


def test_query_is_traced_by_the_columns_that_the_run_saw() -> None:
    inputs = ["/warehouse/planes", "/data/o"]
    details = {INPUT_COLUMNS: {"p": ["k", "v"], "o": ["k", "n"]}}
    told = {"k": "/warehouse/planes:k", "v": "/warehouse/planes:v", "amount": "/data/o:n"}
    assert seen(flow("joined", "reconcile", Outcome.CORRECTED, details=details)) == (inputs, "/warehouse/joined", told)
    unknown = flow("joined", "reconcile", Outcome.CORRECTED)
    assert seen(unknown) == (inputs, "/warehouse/joined", {}), "`v` may be a column of either input"


@pytest.mark.parametrize(
    ("name", "operation", "outcome", "inputs", "output"),
    [
        ("events", "ingest", Outcome.APPENDED, ["/log"], "/warehouse/events"),
        ("events", "append", Outcome.APPENDED, [], "/warehouse/events"),
        ("gate", "append", Outcome.FORWARDED, [], "/log"),
        ("copies", "sink", Outcome.CARRIED, ["/warehouse/planes"], "/out"),
    ],
)
def test_inputs_and_output_go_by_the_operation(
    name: str, operation: str, outcome: Outcome, inputs: list[str], output: str
) -> None:
    assert seen(flow(name, operation, outcome))[:2] == (inputs, output)


def test_staged_rows_are_no_rows_yet_and_an_older_run_has_no_version() -> None:
    staged = flow("planes", "reconcile", Outcome.STAGED, inserted=3)
    older = flow("planes", "reconcile", Outcome.CORRECTED, inserted=3, upper=90)
    assert staged is not None
    assert older is not None
    assert (staged.rows, staged.version, older.rows, older.version) == (None, None, 3, None)


@pytest.mark.parametrize(
    ("name", "operation", "outcome"),
    [
        ("planes", "reconcile", Outcome.SKIPPED),
        ("planes", "maintain", Outcome.CORRECTED),
        ("planes", "plan", Outcome.CORRECTED),
        ("dropped", "reconcile", Outcome.CORRECTED),
        ("dropped", "sink", Outcome.CARRIED),
    ],
)
def test_what_carries_nothing_has_no_lineage(name: str, operation: str, outcome: Outcome) -> None:
    assert flow(name, operation, outcome) is None


def test_failed_run_has_no_lineage() -> None:
    assert flow("planes", "reconcile", Outcome.FAILED, error=ErrorReport(kind="Unreachable", message="away")) is None


def test_facets_are_those_of_the_spec() -> None:
    details = {INPUT_COLUMNS: {"p": ["k", "v"], "o": ["k", "n"]}}
    found = flow("joined", "reconcile", Outcome.CORRECTED, inserted=3, details=details)
    assert found is not None
    output = Serde.to_dict(describe_output(found))
    assert set(output["facets"]) == {"dataSource", "schema", "storage", "symlinks", "columnLineage", "version"}
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 3
    (amount,) = output["facets"]["columnLineage"]["fields"]["amount"]["inputFields"]
    assert (amount["namespace"], amount["name"], amount["field"]) == ("file", "/data/o", "n")
    assert amount["transformations"][0] == {"type": "DIRECT", "subtype": "IDENTITY"}
    planes, files = map(Serde.to_dict, describe_inputs(found))
    assert [each["name"] for each in planes["facets"]["schema"]["fields"]] == ["k", "v"]
    assert set(files["facets"]) == {"dataSource"}, "nothing is told of the columns of others"


def test_without_a_place_to_send_to_nothing_is_even_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW__OPENLINEAGE__TRANSPORT", raising=False)
    send_lineage({})  # would be an error: a result has a name


def test_without_the_provider_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", '{"type": "console"}')
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage", None)
    send_lineage({})


def test_lineage_that_cannot_be_told_is_in_the_log_and_fails_no_task(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", '{"type": "console"}')
    monkeypatch.setenv("TIDEMARK_CATALOG_URI", "no address")
    send_lineage({"name": "planes"})
    assert "planes: its lineage was not sent" in caplog.text
