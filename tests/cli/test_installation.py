"""`tidemark doctor` on what other engines wrote: it promises what the declaration says, and no more."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa

from tests.support.homes import Home
from tests.support.rows import SCHEMA
from tidemark.cli.app import app
from tidemark.iceberg.shard.head import MAIN, UPDATES
from tidemark.iceberg.shard.state import ShardKind

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings


def append(shard: Shard, branch: str = MAIN) -> None:
    table = shard.load().table
    schema = table.schema().as_arrow()
    values = {"k": 1, "v": "foreign", "_time": 0, "_diff": 1, "id": 1, "name": "foreign", "_producer": "?", "_batch": 0}
    row = {name: values[name] for name in schema.names}
    table.append(pa.Table.from_pylist([row], schema=schema), branch=branch)


def test_doctor_says_what_becomes_of_foreign_rows(
    home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installation = Home(home, tmp_path)
    failing = installation.declaration("failing", on_foreign_commit="fail")
    installation.apply(installation.declaration("reset"), installation.declaration("log"), failing)
    for name in ("reset", "failing"):
        append(installation.shard(name))
    append(installation.shard("log"), UPDATES)
    append(installation.shards.create("undeclared", schema=SCHEMA, key=["id"]))
    append(installation.shards.create("events", schema=SCHEMA, layout=ShardKind.APPEND_ONLY))
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    app(["doctor", "--json"])
    said = {each["subject"]: each["message"] for each in json.loads(capsys.readouterr().out)["checks"]}
    found = "1 foreign commits, +1 rows: 1 written, 0 taken away, which "
    endings = {name: said[name].partition(found)[2] for name in ("reset", "log", "failing", "undeclared", "events")}
    assert endings == {
        "reset": "the next reconcile puts right",
        "log": "the next reconcile puts right",
        "failing": "the next reconcile refuses (`on_foreign_commit: fail`)",
        "undeclared": "stay until it is declared again and reconciled",
        "events": "stay as they are",
    }
