"""Declared expectations: what fails them stays invisible, and keeps its collection from being flushed."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, DateType, DecimalType, DoubleType, LongType, NestedField, StringType
from pyiceberg.types import TimestamptzType as Timestamp

from tests.collections.maintenance.test_maintain import declare
from tests.conftest import settings_in
from tests.support.discarding import discard
from tests.support.events import CLOCK, append_numbers, create_events, numbers, rows_table, switch, visible
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.append.append import append_rows, with_batch_columns
from tidemark.collections.declarations.append_only import Expectations
from tidemark.collections.deployment import Mode
from tidemark.collections.quality.expectations import BatchFiles, check_expectations
from tidemark.collections.staged.batches import BatchName, list_batches
from tidemark.collections.staged.discard import Selection
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import ExpectationFailed
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.files.data_files import arrow_schema, write_rows
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, again and again

KINDS = {
    "id": LongType(),
    "name": StringType(),
    "score": DoubleType(),
    "day": DateType(),
    "at": Timestamp(),
    "price": DecimalType(9, 2),
    "ok": BooleanType(),
}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Table:
    fields = (NestedField(number, name, kind) for number, (name, kind) in enumerate(KINDS.items(), 1))
    shards = Shards.connect(settings_in(tmp_path_factory.mktemp("wide")))
    return shards.create("wide", schema=Schema(*fields), layout=ShardKind.APPEND_ONLY).load().table


def check(table: Table, column: str, values: list[object], expect: dict[str, Any]) -> None:
    kinds = arrow_schema(table)
    arrays = [
        pa.array(values, kinds.field(name).type) if name == column else pa.nulls(len(values), kinds.field(name).type)
        for name in KINDS
    ]
    rows = with_batch_columns(pa.table(arrays, names=list(KINDS)), BatchName("p", Range(0, 1)))
    batch = BatchFiles("wide", "p 0:1", write_rows(table, rows), "look")
    check_expectations(table, batch, Expectations.model_validate(expect))


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("expect", "given", "failing"),
    [
        ({"not_null": ["id"]}, ("id", [1, None, 2, None]), 2),
        ({"not_null": ["id"]}, ("id", [1, 2]), 0),
        ({"range": {"id": {"min": 1, "max": 3}}}, ("id", [0, 1, 2, 3, 4, None]), 2),
        ({"range": {"id": {"min": 1, "max": 3}}}, ("id", [1, 3, None]), 0),
        ({"range": {"score": {"min": 0, "max": 1.5}}}, ("score", [float("nan"), -0.1, 0.0, 1.5, 1.6, None]), 3),
        ({"range": {"name": {"min": "b"}}}, ("name", ["a", "b", "c" * 30]), 1),
        ({"range": {"day": {"max": "2026-01-01"}}}, ("day", [NOON.date(), NOON.replace(day=2).date()]), 1),
        ({"range": {"at": {"min": "2026-01-01T12:00"}}}, ("at", [NOON, NOON.replace(hour=11)]), 1),
        ({"range": {"at": {"min": "2026-01-01T13:00+01:00"}}}, ("at", [NOON]), 0),
        ({"range": {"price": {"max": "1.50"}}}, ("price", [1, 2]), 1),
        ({"one_of": {"name": ["a", "b"]}}, ("name", ["a", "b", None, "A"]), 1),
        ({"one_of": {"ok": [True]}}, ("ok", [True, False]), 1),
        ({"unique": ["name"]}, ("name", ["a", "b", "a", "a", None, None]), 2),
    ],
)
def test_each_expectation_counts_the_rows_that_fail_it(
    wide: Table, expect: dict[str, Any], given: tuple[str, list[object]], failing: int
) -> None:
    if not failing:
        check(wide, *given, expect)
        return
    with pytest.raises(ExpectationFailed, match=f"fails for {failing} of its rows") as caught:
        check(wide, *given, expect)
    assert caught.value.exit_code == ExitCode.REFUSED
    assert len(caught.value.sample) == failing


def test_files_whose_statistics_prove_it_are_not_opened(wide: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.collections.quality.expectations.scan_file", None)
    check(wide, "id", [0, 9], {"not_null": ["id"], "range": {"id": {"min": 0, "max": 9}}})


def test_batch_that_fails_leaves_nothing_behind(home: Settings) -> None:
    events = create_events(home)
    switch(home, Mode.READ_WRITE)
    before = set((home.home / "warehouse").rglob("*.parquet"))
    name = BatchName("p", Range(0, 5))
    rows = rows_table(numbers(0, 5))
    expect = Expectations.model_validate({"range": {"id": {"max": 3}}})
    with pytest.raises(ExpectationFailed):
        append_rows(events, name, rows, deployment=deployment_of(home), clock=CLOCK, expect=expect)
    assert (visible(events), events.load().state.ledgers) == (Counter(), {})
    assert set((home.home / "warehouse").rglob("*.parquet")) == before
    append_numbers(events, home, 0, 5)
    assert visible(events) == Counter(numbers(0, 5))


def stage_events(settings: Settings, name: str = "events") -> Shard:
    shard = create_events(settings, name)
    switch(settings, Mode.READ_ONLY)
    append_numbers(shard, settings, 0, 2)
    append_numbers(shard, settings, 2, 5)
    switch(settings, Mode.READ_WRITE)
    return shard


def test_failing_batch_keeps_its_collection_from_being_flushed_and_no_other(home: Settings) -> None:
    events, others = stage_events(home), stage_events(home, "others")
    declare(home, "events", expect={"range": {"id": {"max": 3}}})
    shards = Shards.connect(home)
    report = flush_all(shards, deployment_of(home), [], clock=CLOCK)
    shown = report.to_json()["collections"]
    assert (report.exit_code, report.outcome) == (ExitCode.REFUSED, "partial")
    assert (shown["events"]["outcome"], shown["others"]["outcome"]) == ("refused", "flushed")
    error = shown["events"]["error"]
    assert error["kind"] == "ExpectationFailed"
    assert "the batch p 2:5 of 'events'" in error["message"]
    assert "`range: id` […, 3] fails for 1 of its rows" in error["message"]
    assert error["sample"] == [{"expectation": "`range: id` […, 3]", "id": 4}]
    assert "tidemark discard events --producer p --range 2:5" in error["hint"]
    assert (visible(events), visible(others)) == (Counter(), Counter(numbers(0, 5)))
    assert len(list_batches(shards, ["events"])) == 2


@pytest.mark.parametrize("way_out", ["discard", "alter"])
def test_flush_goes_on_after_what_the_hint_says(home: Settings, way_out: str) -> None:
    events = stage_events(home)
    declare(home, "events", expect={"range": {"id": {"max": 3}}})
    shards = Shards.connect(home)
    assert flush_all(shards, deployment_of(home), [], clock=CLOCK).exit_code == ExitCode.REFUSED
    if way_out == "discard":
        selection = Selection(names=("events",), producer="p", range=Range(2, 5))
        assert len(discard(shards, deployment_of(home), selection, who="w", why="y", clock=CLOCK)) == 1
    else:
        declare(home, "events", expect={"range": {"id": {"max": 4}}})
    assert flush_all(shards, deployment_of(home), [], clock=CLOCK).exit_code == ExitCode.OK
    assert visible(events) == Counter(numbers(0, 2 if way_out == "discard" else 5))


def test_staged_batch_that_is_appended_again_stays_staged_if_it_fails(home: Settings) -> None:
    events = stage_events(home)
    name = BatchName("p", Range(2, 5))
    with pytest.raises(ExpectationFailed):
        append_rows(
            events,
            name,
            pa.table({}),
            deployment=deployment_of(home),
            clock=CLOCK,
            expect=Expectations.model_validate({"range": {"id": {"max": 3}}}),
        )
    assert len(list_batches(Shards.connect(home), [])) == 2


def test_file_of_a_declared_collection_is_checked(home: Settings, tmp_path: Path) -> None:
    from tidemark.collections.append.file import FileBatch, append_file

    events = create_events(home)
    switch(home, Mode.READ_WRITE)
    declare(home, "events", expect={"not_null": ["name"], "unique": ["id"]})
    shards = Shards.connect(home)
    path = tmp_path / "e.csv"
    path.write_text("id,name\n1,a\n1,\n", encoding="utf-8")
    batch = FileBatch.declared(path, deployment_of(home).registry.get("events"))
    with pytest.raises(ExpectationFailed, match=r"`not_null: name` fails for 1.*`unique: id` fails for 1"):
        append_file(shards, events, BatchName("p", Range(0, 2)), batch, deployment=deployment_of(home), clock=CLOCK)
    path.write_text("id,name\n1,a\n2,b\n", encoding="utf-8")
    append_file(shards, events, BatchName("p", Range(0, 2)), batch, deployment=deployment_of(home), clock=CLOCK)
    assert visible(events) == Counter([(1, "a"), (2, "b")])


@pytest.mark.spark
def test_data_frame_that_fails_is_neither_visible_nor_staged(home: Settings, home_spark: SparkSession) -> None:
    from tidemark.collections.append.frame import append_frame

    events = create_events(home)
    switch(home, Mode.READ_WRITE)
    declare(home, "events", expect={"range": {"id": {"max": 3}}})
    declaration = deployment_of(home).registry.get("events")
    name = BatchName("p", Range(0, 2))
    for largest, fails in ((4, True), (3, False)):
        rows = home_spark.createDataFrame([(1, "a"), (largest, "b")], "id bigint, name string")
        if fails:
            with pytest.raises(ExpectationFailed):
                append_frame(events, name, rows, deployment=deployment_of(home), clock=CLOCK, declaration=declaration)
            assert (visible(events), events.load().staged_branches) == (Counter(), {})
        else:
            append_frame(events, name, rows, deployment=deployment_of(home), clock=CLOCK, declaration=declaration)
    assert visible(events) == Counter([(1, "a"), (3, "b")])
