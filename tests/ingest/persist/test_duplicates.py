"""Of rows with the same key and event time one is persisted: the last one, or the last values of each column."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ingest.event_rows import FIVE, MINUTE_MS, RULES, at
from tests.ingest.persist.test_persist import persist, stored
from tidemark.collections.declarations.lifecycle import Merge
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.reading.arrow import read_arrow
from tidemark.ingest.persist import inputs
from tidemark.ingest.persist.duplicates import Identity
from tidemark.ingest.persist.inputs import merge_intervals
from tidemark.interval import Interval, milliseconds, time_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.homes import Home

COLUMNS = "id bigint, at timestamp, a string, b double, _Tidemark_Rank int"
SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", "UTC")), ("id", pa.int64()), ("a", pa.string()), ("b", pa.float64()),
        ("_producer", pa.string()), ("_batch", pa.int64()), ("_entry", pa.int64()),
    ]
)  # fmt: skip
ROW = st.fixed_dictionaries(
    {
        "at": st.sampled_from([datetime(2013, 1, day, tzinfo=UTC) for day in (1, 2)]),
        "id": st.sampled_from([None, 0, 1]),
        "a": st.sampled_from([None, "", "x", "y"]),
        "b": st.sampled_from([None, 0.0, 1.5]),
        "_entry": st.sampled_from([None, 0, 3, 9]),
    }
)


def persist_by_hand(rows: list[dict[str, Any]], merge: Merge) -> dict[tuple[Any, Any], dict[str, Any]]:
    kept: dict[tuple[Any, Any], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: -1 if row["_entry"] is None else row["_entry"]):
        before = kept.get((row["at"], row["id"]), {})
        keeps = {name: value for name, value in before.items() if merge is Merge.FIELDS and row[name] is None}
        kept[row["at"], row["id"]] = {**row, **keeps}
    return kept


@given(rows=st.lists(ROW, max_size=12), merge=st.sampled_from(Merge))
def test_the_last_of_each_key_and_time_is_kept(rows: list[dict[str, Any]], merge: Merge) -> None:
    table = pa.Table.from_pylist([{**row, "_producer": "p", "_batch": 0} for row in rows], schema=SCHEMA)
    found = Identity.of("at", ["id"], merge).drop_duplicates(table)
    expected = persist_by_hand(rows, merge)
    got = {(row["at"], row["id"]): row for row in found.drop_columns(["_producer", "_batch"]).to_pylist()}
    assert got == expected
    assert found.num_rows == len(expected)
    assert found.column("at").to_pylist() == sorted(found.column("at").to_pylist())


def test_touching_and_overlapping_times_become_one() -> None:
    found = merge_intervals([Interval(5, 7), Interval(0, 2), Interval(2, 4), Interval(1, 3), Interval(9, 10)])
    assert found == [Interval(0, 4), Interval(5, 7), Interval(9, 10)]


def declare(home: Home, merge: str = "rows", *, key: tuple[str, ...] = ("id",), **source: object) -> None:
    rules = {**RULES, **({"merge": merge} if key else {})}
    home.declare_reader(schema=COLUMNS, event_time="at", partition="hour", key=key, lifecycle=rules, source=source)


def send(home: Home, minute: int, *rows: dict[str, Any], sequencer_id: int = 0) -> None:
    """Send rows of one event time as one message."""
    time = time_text(FIVE + minute * MINUTE_MS)
    home.send(sequencer_id, "\n".join(json.dumps({"at": time, **row}) for row in rows).encode())


def values(home: Home) -> list[tuple[Any, ...]]:
    rows = read_arrow(home.shard()).to_pylist()
    found = ((row["id"], (milliseconds(row["at"]) - FIVE) // MINUTE_MS, row["a"], row["b"]) for row in rows)
    return sorted(found, key=repr)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("engine", ["process", "spark"])
@pytest.mark.parametrize("merge", ["rows", "fields"])
def test_duplicates_go_when_they_are_persisted(
    ingesting: Home, home_spark: SparkSession, monkeypatch: pytest.MonkeyPatch, merge: str, engine: str
) -> None:
    spark = home_spark if engine == "spark" else None
    at(ingesting, 10)
    declare(ingesting, merge)
    send(ingesting, 1, {"id": 1, "a": "old"}, {"id": 2, "a": "x"}, {"id": 1, "a": "new", "b": 1})
    send(ingesting, 2, {"id": 1, "a": "another time"})
    ingesting.ingest()
    send(ingesting, 1, {"id": 2, "b": 2})
    ingesting.ingest()
    assert len(values(ingesting)) == 5, "visible at once, duplicates included"
    at(ingesting, 70)
    report = persist(ingesting, spark=spark)
    assert (report.strategy, report.details["duplicates"]) == ("persisted", 2)
    second = (2, 1, "x", 2.0) if merge == "fields" else (2, 1, None, 2.0)
    assert values(ingesting) == [(1, 1, "new", 1.0), (1, 2, "another time", None), second]
    # A late duplicate of a row in a file that is too large to be written anew for its size.
    monkeypatch.setattr(inputs, "SMALL_FILE_BYTES", 0)
    send(ingesting, 1, {"id": 1, "a": "late"}, sequencer_id=0)
    ingesting.ingest()
    at(ingesting, 140)
    report = persist(ingesting, spark=spark)
    assert report.details["duplicates"] == 1
    assert values(ingesting)[0] == (1, 1, "late", 1.0 if merge == "fields" else None)
    assert all(each.is_persisted for each in stored(ingesting))
    send(ingesting, 30, {"id": 7})
    ingesting.ingest()
    at(ingesting, 210)
    report = persist(ingesting, spark=spark)
    assert (report.details["files_before"], "duplicates" in report.details) == (1, False), "no other file has its time"
    assert len(values(ingesting)) == 4


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("engine", ["process", "spark"])
@pytest.mark.parametrize("merge", ["rows", "fields"])
def test_of_a_log_that_is_made_anew_each_row_is_later_than_all_before(
    ingesting: Home, home_spark: SparkSession, merge: str, engine: str
) -> None:
    """What the hint of `LogRecreated` says is all that has to be done, with a key, too."""
    spark = home_spark if engine == "spark" else None
    at(ingesting, 10)
    declare(ingesting, merge)
    for nth in range(5):  # so that the greatest number is of the log before
        send(ingesting, 1, {"id": 1, "a": f"old {nth}", "b": nth}, {"id": 2, "a": "old"})
    ingesting.ingest()
    ingesting.make_buffer_anew()
    send(ingesting, 1, {"id": 1, "a": "new"})
    failed = ingesting.ingest()
    assert failed.error is not None
    assert (failed.error.kind, failed.exit_code) == ("LogRecreated", ExitCode.NOT_POSSIBLE)
    declare(ingesting, merge, on_recreated="earliest")
    ingesting.ingest()
    at(ingesting, 70)
    assert persist(ingesting, spark=spark).details["duplicates"] == 9
    b = 4.0 if merge == "fields" else None
    assert values(ingesting) == [(1, 1, "new", b), (2, 1, "old", None)]
    ingesting.make_buffer_anew()
    send(ingesting, 1, {"id": 1, "a": "newest"}, {"id": 2, "b": 7})
    ingesting.ingest()
    at(ingesting, 140)
    assert persist(ingesting, spark=spark).details["duplicates"] == 2
    assert values(ingesting) == [(1, 1, "newest", b), (2, 1, "old" if merge == "fields" else None, 7.0)]


@pytest.mark.slow
def test_a_key_returns_that_was_left_out_when_the_log_was_made_anew(ingesting: Home) -> None:
    at(ingesting, 10)
    declare(ingesting, key=(), on_recreated="earliest")
    send(ingesting, 1, {"id": 9}, {"id": 9}, {"id": 9})
    send(ingesting, 1, {"id": 1, "a": "old"})
    ingesting.ingest()
    ingesting.make_buffer_anew()
    send(ingesting, 1, {"id": 1, "a": "new"})
    ingesting.ingest()
    declare(ingesting, on_recreated="earliest")
    assert persist(ingesting, now=True).details["duplicates"] == 3
    assert values(ingesting) == [(1, 1, "new", None), (9, 1, None, None)]


@pytest.mark.slow
def test_rows_bear_the_numbers_of_their_entries(ingesting: Home) -> None:
    at(ingesting, 10)
    ingesting.declare_reader(schema=COLUMNS)
    send(ingesting, 1, {"id": 1}, {"id": 2})
    ingesting.ingest()
    declare(ingesting)
    send(ingesting, 2, {"id": 3})
    ingesting.send(0, b'{"id":4}')
    send(ingesting, 2, {"id": 5}, {"id": 6})
    ingesting.ingest()
    rows = read_arrow(ingesting.shard(), with_time=True).to_pylist()
    assert {row["id"]: row["_entry"] for row in rows} == {1: None, 2: None, 3: 1, 5: 3, 6: 3}
    declare(ingesting)
    table = ingesting.shard().load().table
    assert table.schema().column_names.count("_entry") == 1
