"""The DAG in this process: what is due is persisted without Spark, or left for it, and no row changes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.airflow_runs import states
from tidemark.catalog.items.kinds import AUDIT_EVENT
from tidemark.orchestration.tasks.persist import persist_arguments
from tidemark.write_buffer.file.folder import open_folder
from tidemark.write_buffer.file.log import encode_message
from tidemark.write_buffer.formats.entry import Message

if TYPE_CHECKING:
    from tests.support.airflow_runs import Dags

DECLARATION = """
version: 1
collections:
  readings:
    kind: append-only
    schema: "id bigint, at timestamp"
    source: {buffer: readings_log}
    event_time: at
"""


@pytest.mark.spark
def test_what_is_due_is_persisted_with_and_without_spark(dags: Dags, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = dags.home.folder / "buffer"
    address = json.dumps({"conn_type": "fs", "extra": {"path": str(buffer)}})
    monkeypatch.setenv("AIRFLOW_CONN_READINGS_LOG", address)
    dags.home.declare(DECLARATION)
    log = open_folder(buffer, sequencers=1).logs[0]
    for number in (2, 0, 1):
        text = json.dumps({"id": number, "at": f"1970-01-01T00:00:0{number}Z"})
        log.append(encode_message(Message(text.encode(), (), 10_000)))
    dags.run("ingest_write_buffer")

    idle = dags.run("buffer_lifecycle")
    assert idle["show_result0"][1]["details"]["decisions"] == []
    done = dags.run("buffer_lifecycle", now=True)
    assert {name: state for name, state in states(done).items() if state != "success"} == {
        "persist_with_spark": "skipped",
        "replay": "skipped",
        "announce_changes": "skipped",
    }
    (decision,) = done["show_result0"][1]["details"]["decisions"]
    assert (decision["partition"], decision["reason"]) == ("1970-01-01", "asked for")

    log.append(encode_message(Message(b'{"id":3,"at":"1970-01-01T00:00:00Z"}', (), 10_000)))
    dags.run("ingest_write_buffer")
    large = dags.run("buffer_lifecycle", now=True, engine="spark")
    others = {name: state for name, state in states(large).items() if state != "success"}
    assert others == {"replay": "skipped", "announce_changes": "skipped"}
    assert [row["id"] for row in dags.home.user_rows("readings")] == [0, 1, 2, 3]

    with pytest.warns(UserWarning, match="copy-on-write"):
        dags.home.shards.iceberg.load_table(("collections", "readings")).delete("id in (1, 2)")
    replayed = dags.run("buffer_lifecycle", replay="readings", replay_from=["0:1"])
    assert replayed["show_result0"][1]["inserted"] == 3
    assert {name: state for name, state in states(replayed).items() if state != "success"} == {
        "persist_with_spark": "skipped"
    }
    assert [row["id"] for row in dags.home.user_rows("readings")] == [0, 1, 3], "the number 0 has the id 2"
    chosen = dags.run("buffer_lifecycle", replay="readings", replay_from=["0:0"], replay_partitions=["1970-01-02"])
    assert chosen["show_result0"][1]["inserted"] == 0

    log.expire(2)
    refused = dags.run("buffer_lifecycle", replay="readings", replay_from=["0:1"])
    assert (states(refused)["replay"], states(refused)["show_result0"]) == ("success", "failed")
    assert audited(dags) == []
    skipped = dags.run("buffer_lifecycle", replay="readings", replay_from=["0:1"], replay_skip_lost=True)
    assert skipped["show_result0"][1]["details"]["lost"] == 1
    ((who, lost),) = audited(dags)
    assert (who.partition(" ")[0], lost) == ("buffer_lifecycle", {"0": 1})


def audited(dags: Dags) -> list[tuple[str, dict[str, int]]]:
    with dags.home.catalog.join() as handle:
        events = handle.transact(lambda transaction: transaction.items(AUDIT_EVENT))
        return [(event.who, event.details["lost"]) for _, event in events if event.operation == "skip-lost"]


def test_params_become_arguments() -> None:
    assert persist_arguments(["a"], {}) == ["a"]
    assert persist_arguments(["a", "b"], {"now": True, "engine": "spark"}) == ["a", "b", "--now", "--small-rows", "0"]
