"""The downstream job sees every correction once, and starts over when its history is gone."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField, StringType

from examples.follow_changes import HOLD_MS, READER, follow, main
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.holds import downgrade_since
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

PLANES = Schema(
    NestedField(1, "tailnum", StringType()),
    NestedField(2, "manufacturer", StringType()),
    NestedField(3, "seats", IntegerType()),
)


@pytest.fixture
def planes(home: Settings) -> Shard:
    return Shards.connect(home).create("planes", schema=PLANES)


def buy(shard: Shard, seats: dict[str, int], *, time: int) -> None:
    """Publish a plane per manufacturer."""
    columns = {"tailnum": pa.string(), "manufacturer": pa.string(), "seats": pa.int32(), "_time": pa.int64()}
    rows = [(f"N{time}", manufacturer, count, time, 1) for manufacturer, count in seats.items()]
    schema = pa.schema(columns | {"_diff": pa.int64()})
    table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)
    writer, head = Writer.join(shard, 1), shard.load()
    batch = Batch(added=tuple(write_rows(head.table, table)))
    writer.publish(batch, lower=head.state.upper, new_upper=time + 1)


def result_in(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as database:
        return dict(database.execute("SELECT manufacturer, seats FROM seats").fetchall())


def test_each_correction_counts_once(planes: Shard, home: Settings, tmp_path: Path) -> None:
    result = tmp_path / "result.db"
    buy(planes, {"BOEING": 100, "AIRBUS": 150}, time=10)
    assert follow(planes, result, home, now_ms=20) == 2
    assert follow(planes, result, home, now_ms=21) == 0, "nothing was corrected meanwhile"
    buy(planes, {"BOEING": 50}, time=30)
    assert follow(planes, result, home, now_ms=40) == 1, "the correction alone, not the contents"
    assert result_in(result) == {"BOEING": 150, "AIRBUS": 150}
    hold = planes.load().state.holds[READER]
    assert (hold.since, hold.expires_at_ms) == (30, 40 + HOLD_MS)


def test_a_hold_keeps_what_the_next_run_needs_and_without_it_the_job_starts_over(
    planes: Shard, home: Settings, tmp_path: Path
) -> None:
    result = tmp_path / "result.db"
    buy(planes, {"BOEING": 100}, time=10)
    follow(planes, result, home, now_ms=20)
    buy(planes, {"BOEING": 50}, time=30)
    buy(planes, {"BOEING": 25}, time=31)
    assert downgrade_since(planes, 31, now_ms=40) == 10, "the hold is in the way"
    assert downgrade_since(planes, 31, now_ms=20 + HOLD_MS) == 31, "it has run out"
    assert follow(planes, result, home, now_ms=20 + HOLD_MS) == 3, "the contents, from the start"
    assert result_in(result) == {"BOEING": 175}


@pytest.mark.usefixtures("planes")
def test_before_the_first_commit_it_says_what_to_do(
    home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    with pytest.raises(SystemExit) as left:
        main([str(tmp_path / "result.db")])
    assert left.value.code == ExitCode.NOT_POSSIBLE
    assert "nothing was ever committed to it\n→ reconcile it" in capsys.readouterr().err


def test_without_a_result_it_says_how_it_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "usage: follow_changes [-h] RESULT.db" in capsys.readouterr().err
