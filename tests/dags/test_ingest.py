"""The DAG in this process: few entries without Spark, then some with it, each row once."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.support.airflow_runs import states
from tidemark.collections.deployment import Mode
from tidemark.orchestration.tasks.ingest import ingest_arguments
from tidemark.write_buffer.file.folder import open_folder
from tidemark.write_buffer.file.log import encode_message
from tidemark.write_buffer.formats.entry import Message

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.airflow_runs import Dags

DECLARATION = """
version: 1
collections:
  readings:
    kind: append-only
    schema: "id bigint"
    source: {buffer: readings_log}
"""


def write(folder: Path, *ids: int) -> None:
    logs = open_folder(folder).logs
    for number in ids:
        logs[number % 2].append(encode_message(Message(json.dumps({"id": number}).encode(), (), 1_000)))


@pytest.mark.spark
def test_entries_are_ingested_with_and_without_spark(dags: Dags, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = dags.home.folder / "buffer"
    address = json.dumps({"conn_type": "fs", "extra": {"path": str(buffer)}})
    monkeypatch.setenv("AIRFLOW_CONN_READINGS_LOG", address)
    dags.home.declare(DECLARATION)
    open_folder(buffer, sequencers=2)

    write(buffer, 0, 1, 2)
    small = dags.run("ingest_write_buffer")
    assert {name: state for name, state in states(small).items() if state != "success"} == {
        "ingest_with_spark": "skipped"
    }
    assert (small["show_result0"][1]["outcome"], small["show_result0"][1]["inserted"]) == ("appended", 3)
    write(buffer, 3, 4)
    large = dags.run("ingest_write_buffer", engine="spark", max_entries_per_run=1)
    assert set(states(large).values()) == {"success"}
    shown = large["show_result0"][1]
    assert (shown["outcome"], shown["inserted"], shown["operation"]) == ("appended", 1, "ingest")
    assert sum(lag["sequence_number_lag"] for lag in shown["details"]["sequencers"].values()) <= 1
    dags.run("ingest_write_buffer")
    assert [row["id"] for row in dags.home.user_rows("readings")] == [0, 1, 2, 3, 4]


@pytest.mark.slow  # runs of a DAG
def test_a_collection_at_its_hard_limit_takes_no_event_from_another(
    dags: Dags, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = dags.home.folder / "buffer"
    monkeypatch.setenv("TIDEMARK_BUFFER_READINGS_LOG", buffer.as_uri())
    columns = '    schema: "id bigint, at timestamp"\n    source: {buffer: readings_log}\n    event_time: at\n'
    body = f"    kind: append-only\n{columns}"
    dags.home.declare(f"version: 1\ncollections:\n  full:\n{body}    lifecycle: {{hard_limit: 1}}\n  others:\n{body}")
    log = open_folder(buffer, sequencers=1).logs[0]
    for day in (1, 3):
        text = json.dumps({"id": day, "at": f"1970-01-0{day}T00:00:00Z"})
        log.append(encode_message(Message(text.encode(), (), day * 86_400_000)))
        ran = dags.run("ingest_write_buffer")
    shown = {state: result for name, (state, result) in ran.items() if name.startswith("show_result")}
    assert (states(ran)["ingest"], shown.keys()) == ("success", {"failed", "success"})
    assert shown["success"]["name"] == "others"
    assert shown["success"]["details"]["closed"][0] == {"partition": "1970-01-01", "rows": 1, "late_rows": 0}


@pytest.mark.slow  # runs of a DAG
def test_what_is_done_without_spark_is_told_whatever_becomes_of_spark(
    dags: Dags, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    buffer = dags.home.folder / "buffer"
    monkeypatch.setenv("TIDEMARK_BUFFER_READINGS_LOG", buffer.as_uri())
    latest = DECLARATION.partition("collections:\n")[2].replace("append-only", "latest\n    key: [id]")
    dags.home.declare(DECLARATION + latest.replace("  readings:", "  changes:"))
    open_folder(buffer, sequencers=2)
    with monkeypatch.context() as without_jars:
        without_jars.setenv("TIDEMARK_JARS", str(tmp_path / "nowhere"))
        write(buffer, 0)
        ran = dags.run("ingest_write_buffer", engine="spark")
    expected = {"ingest_with_spark": "skipped", "show_result1": "failed"}
    assert {name: state for name, state in states(ran).items() if state != "success"} == expected
    assert (ran["show_result0"][1]["name"], ran["show_result0"][1]["inserted"]) == ("changes", 1)

    broken = tmp_path / "broken" / "spark-submit"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 70\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken.parent}:{os.environ['PATH']}")
    write(buffer, 1)
    ran = dags.run("ingest_write_buffer", engine="spark")
    expected = {"ingest_with_spark": "failed", "show_result1": "failed"}
    assert {name: state for name, state in states(ran).items() if state != "success"} == expected
    assert (ran["show_result0"][1]["name"], ran["show_result0"][1]["inserted"]) == ("changes", 1)


def test_params_become_arguments() -> None:
    assert ingest_arguments(["a"], {}) == ["a"]
    assert ingest_arguments(["a"], {"collections": ["a", "b"]}) == ["a", "--retry-suspended"]
    params = {"max_entries_per_run": 7, "engine": "spark"}
    assert ingest_arguments(["a", "b"], params) == ["a", "b", "--max-entries", "7", "--small-entries", "0"]


@pytest.mark.slow  # three runs of a DAG
def test_changes_are_ingested_without_spark_and_wait_while_read_only(
    dags: Dags, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = dags.home.folder / "buffer"
    address = json.dumps({"conn_type": "fs", "extra": {"path": str(buffer)}})
    monkeypatch.setenv("AIRFLOW_CONN_READINGS_LOG", address)
    dags.home.declare(DECLARATION.replace("append-only", "latest\n    key: [id]"))
    open_folder(buffer, sequencers=2)
    write(buffer, 0, 1, 2, 0)
    run = dags.run("ingest_write_buffer", engine="spark")
    assert (states(run)["ingest_with_spark"], run["show_result0"][1]["outcome"]) == ("skipped", "corrected")
    assert [row["id"] for row in dags.home.user_rows("readings")] == [0, 1, 2]
    write(buffer, 3)
    dags.home.switch(Mode.READ_ONLY)
    run = dags.run("ingest_write_buffer")
    assert states(run)["show_result0"] == "skipped"
    dags.home.switch(Mode.READ_WRITE)
    dags.run("ingest_write_buffer")
    assert [row["id"] for row in dags.home.user_rows("readings")] == [0, 1, 2, 3]
