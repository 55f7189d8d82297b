"""Files as batches, without a JVM: what fits is stored, what does not is kept beside it with the reason."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.discarding import discard
from tests.support.events import CLOCK, switch
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.append.file import FileBatch, append_file, set_aside
from tidemark.collections.declarations.append_only import Expectations
from tidemark.collections.declarations.collection import OnReadOnly, OnSchemaChange
from tidemark.collections.deployment import Mode
from tidemark.collections.quality.row_parsing import RejectedRow
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.ddl import parse_columns
from tidemark.collections.staged.batches import BatchName, list_batches
from tidemark.collections.staged.discard import Selection
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import ExpectationFailed, InputMissing, ReadOnly, Refused, SchemaMismatch, UsageError
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import Shards
from tidemark.report import CollectionReport, Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, again and again

WHOLE = Range(0, 10)
NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)


def create(settings: Settings, columns: str) -> Shard:
    schema = to_iceberg(parse_columns(columns))
    return Shards.connect(settings).create("weather", schema=schema, layout=ShardKind.APPEND_ONLY)


@pytest.fixture
def weather(home: Settings) -> Shard:
    return create(home, "origin string, time_hour timestamp, temp double")


def append_path(
    settings: Settings, path: Path, numbers: Range = WHOLE, *, evolve: bool = False, **more: Any
) -> CollectionReport:
    shards = Shards.connect(settings)
    on_schema_change = OnSchemaChange.EVOLVE if evolve else OnSchemaChange.FAIL
    batch = FileBatch(path=path, on_schema_change=on_schema_change, **more)
    name = BatchName("noaa", numbers)
    return append_file(shards, shards.open("weather"), name, batch, deployment=deployment_of(settings), clock=CLOCK)


def rows(settings: Settings, name: str = "weather") -> list[dict[str, Any]]:
    found = Shards.connect(settings).open(name).load().table.scan().to_arrow().to_pylist()
    return [{key: value for key, value in row.items() if key not in {"_producer", "_batch"}} for row in found]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


CSV = "origin,time_hour,temp\nEWR,2013-01-01 12:00:00,39\nJFK,2013-01-01T14:00:00+02:00,\n"
JSON = (
    '{"origin": "EWR", "time_hour": "2013-01-01T12:00:00Z", "temp": 39}\n'
    '{"origin": "JFK", "time_hour": "2013-01-01 12:00:00"}\n'
)
EXPECTED = [("EWR", NOON, 39.0), ("JFK", NOON, None)]


@pytest.mark.parametrize("form", ["csv", "csv.gz", "tsv", "json", "jsonl.gz", "parquet"])
def test_every_format_gives_the_same_rows(weather: Shard, home: Settings, tmp_path: Path, form: str) -> None:
    path = tmp_path / f"batch.{form}"
    if form == "parquet":
        table = {"origin": ["EWR", "JFK"], "time_hour": [NOON, NOON], "temp": pa.array([39, None], pa.float32())}
        pq.write_table(pa.table(table), path)
    elif form == "tsv":
        from tidemark.collections.sources.batch_file import CsvForm

        write(path, CSV.replace(",", "\t"))
        append_path(home, path, format_="csv", form=CsvForm(delimiter="\t"))
    else:
        text = CSV if form.startswith("csv") else JSON
        path.write_bytes(gzip.compress(text.encode()) if form.endswith("gz") else text.encode())
    if form != "tsv":
        assert append_path(home, path).outcome is Outcome.APPENDED
    assert sorted((row["origin"], row["time_hour"], row["temp"]) for row in rows(home)) == EXPECTED


def test_columns_may_stand_in_any_order_and_need_no_header(weather: Shard, home: Settings, tmp_path: Path) -> None:
    from tidemark.collections.sources.batch_file import CsvForm

    append_path(home, write(tmp_path / "a.csv", "temp,origin,time_hour\n1,EWR,2013-01-01 12:00:00\n"), Range(0, 1))
    bare = write(tmp_path / "b.csv", "EWR,2013-01-01 12:00:00,1\n")
    append_path(home, bare, Range(1, 2), form=CsvForm(header=False))
    titled = write(tmp_path / "c.csv", "origin,time_hour,temp\nEWR,2013-01-01 12:00:00,1\n")
    append_path(home, titled, Range(2, 3), form=CsvForm(header=False))
    assert rows(home) == [{"origin": "EWR", "time_hour": NOON, "temp": 1.0}] * 3


def test_bytes_are_text_in_csv_and_base64_in_json(home: Settings, tmp_path: Path) -> None:
    create(home, "b binary")
    append_path(home, write(tmp_path / "a.csv", 'b\n" x "\n'), Range(0, 1))
    append_path(home, write(tmp_path / "b.jsonl", '{"b": "AP8="}\n{"b": " x "}\n'), Range(1, 2))
    assert sorted(row["b"] for row in rows(home)) == [b"\0\xff", b" x "]
    assert [row["reason"] for row in rows(home, "weather_quarantine")] == ["column 'b': ' x ' is no binary"]


def test_types_of_text_are_those_of_the_collection(home: Settings, tmp_path: Path) -> None:
    create(home, "b boolean, i int, d date, n decimal(5,2), l timestamp_ntz, s string")
    text = 'b,i,d,n,l,s\nTrue,7,2013-02-03,1.5,2013-01-01T12:00:00,""\n,,,,,\n'
    append_path(home, write(tmp_path / "a.csv", text))
    assert rows(home) == [
        {
            "b": True,
            "i": 7,
            "d": date(2013, 2, 3),
            "n": Decimal("1.50"),
            "l": datetime(2013, 1, 1, 12),  # noqa: DTZ001 - without a zone on purpose
            "s": "",
        },
        dict.fromkeys("bidnls"),
    ]


def test_rows_that_do_not_parse_are_quarantined_with_the_reason(weather: Shard, home: Settings, tmp_path: Path) -> None:
    text = "origin,time_hour,temp\nEWR,2013-01-01 12:00:00,1\nJFK,yesterday,2\nLGA\nJFK,2013-01-01 12:00:00,NA\n"
    report = append_path(home, write(tmp_path / "a.csv", text))
    assert (report.inserted, report.rows_source, report.details["quarantined"]) == (1, 4, 3)
    found = sorted((row["row"], row["reason"], row["content"]) for row in rows(home, "weather_quarantine"))
    assert found == [
        (2, "column 'time_hour': 'yesterday' is no timestamp", "JFK,yesterday,2"),
        (3, "1 fields, expected 3", "LGA"),
        (4, "column 'temp': 'NA' is no double", "JFK,2013-01-01 12:00:00,NA"),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "no JSON: "),
        ("[1]", "no JSON object"),
        ('{"temp": "warm"}', "column 'temp': 'warm' is no double"),
        ('{"temp": true}', "column 'temp': True is no double"),
        ('{"time_hour": 5}', "column 'time_hour': 5 is no timestamp"),
        ('{"origin": {"a": 1}}', "column 'origin': {'a': 1} is no string"),
    ],
)
def test_json_that_does_not_fit_is_quarantined(
    weather: Shard, home: Settings, tmp_path: Path, line: str, reason: str
) -> None:
    append_path(home, write(tmp_path / "a.jsonl", f'{{"origin": "EWR"}}\n{line}\n'))
    assert [row["origin"] for row in rows(home)] == ["EWR"]
    [kept] = rows(home, "weather_quarantine")
    assert (kept["row"], kept["content"]) == (2, line)
    assert kept["reason"].startswith(reason)


def test_quarantined_batch_is_appended_once_and_staged_like_any_other(
    weather: Shard, home: Settings, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.csv", "origin,time_hour,temp\nEWR,2013-01-01 12:00:00,1\nEWR,never,1\n")
    switch(home, Mode.READ_ONLY)
    for _ in range(2):
        assert append_path(home, path).outcome is Outcome.STAGED
    shards = Shards.connect(home)
    assert [each.collection for each in list_batches(shards, [])] == ["weather", "weather_quarantine"]
    switch(home, Mode.READ_WRITE)
    assert len(flush_all(shards, deployment_of(home), [], clock=CLOCK).collections) == 2
    assert append_path(home, path).outcome is Outcome.SKIPPED
    assert (len(rows(home)), len(rows(home, "weather_quarantine"))) == (1, 1)


BAD, WORSE, WORST = "EWR,never,1", "JFK,soon,2", "LGA,late,3"
COLD = Expectations.model_validate({"range": {"temp": {"max": 50}}})


def batch_file(path: Path, bad: str, *, temp: int = 1) -> Path:
    return write(path, f"origin,time_hour,temp\nEWR,2013-01-01 12:00:00,{temp}\n{bad}\n")


def kept(settings: Settings) -> list[tuple[str, str]]:
    """Who made each row that the quarantine shows, and its text."""
    table = Shards.connect(settings).open("weather_quarantine").load().table
    return sorted((row["_producer"], row["content"]) for row in table.scan().to_arrow().to_pylist())


def test_rejected_rows_of_a_repaired_batch_are_kept_beside_those_of_the_refused_one(
    weather: Shard, home: Settings, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    for _ in range(2):
        with pytest.raises(ExpectationFailed):
            append_path(home, batch_file(path, BAD, temp=99), expect=COLD)
    assert kept(home) == [("noaa", BAD)]
    for _ in range(2):
        with pytest.raises(ExpectationFailed):
            append_path(home, batch_file(path, WORSE, temp=99), expect=COLD)
    report = append_path(home, batch_file(path, WORSE), expect=COLD)
    assert (report.outcome, report.details["quarantined"]) == (Outcome.APPENDED, 1)
    (first, second) = kept(home)
    assert first == ("noaa", BAD)
    assert second[1] == WORSE
    assert re.fullmatch(r"noaa\.[0-9a-f]{12}", second[0])


def test_rejected_rows_that_a_repair_leaves_are_kept_once(weather: Shard, home: Settings, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with pytest.raises(ExpectationFailed):
        append_path(home, batch_file(path, f"{BAD}\n{WORSE}", temp=99), expect=COLD)
    assert append_path(home, batch_file(path, BAD), expect=COLD).outcome is Outcome.APPENDED
    assert kept(home) == [("noaa", BAD), ("noaa", WORSE)]


def test_batch_that_is_cut_otherwise_after_it_was_refused_keeps_its_rejected_rows(
    weather: Shard, home: Settings, tmp_path: Path
) -> None:
    with pytest.raises(ExpectationFailed):
        append_path(home, batch_file(tmp_path / "a.csv", BAD, temp=99), expect=COLD)
    for numbers, bad in ((Range(0, 5), WORSE), (Range(5, 15), WORST)):
        report = append_path(home, batch_file(tmp_path / "a.csv", bad), numbers, expect=COLD)
        assert report.outcome is Outcome.APPENDED
    assert {text for _, text in kept(home)} == {BAD, WORSE, WORST}


@pytest.mark.parametrize("flushed_first", [False, True])
def test_rejected_rows_of_a_discarded_batch_hide_no_others(
    weather: Shard, home: Settings, tmp_path: Path, *, flushed_first: bool
) -> None:
    shards = Shards.connect(home)
    switch(home, Mode.READ_ONLY)
    append_path(home, batch_file(tmp_path / "a.csv", BAD))
    chosen = Selection(names=("weather",))
    discard(shards, deployment_of(home), chosen, who="me", why="a test", clock=CLOCK)
    if flushed_first:
        switch(home, Mode.READ_WRITE)
        flush_all(shards, deployment_of(home), [], clock=CLOCK)
        switch(home, Mode.READ_ONLY)
    for _ in range(2):
        append_path(home, batch_file(tmp_path / "a.csv", WORSE))
    switch(home, Mode.READ_WRITE)
    flush_all(shards, deployment_of(home), [], clock=CLOCK)
    assert [text for _, text in kept(home)] == [BAD, WORSE]


def test_name_of_other_rejected_rows_is_one_that_a_producer_may_have(
    weather: Shard, home: Settings, tmp_path: Path
) -> None:
    name, shards = BatchName("p" * 100, WHOLE), Shards.connect(home)
    for bad in (BAD, WORSE, WORSE):
        rejected = [RejectedRow(2, "no timestamp", bad)]
        set_aside(shards, weather, name, rejected, file="a.csv", deployment=deployment_of(home), clock=CLOCK)
    assert {text for _, text in kept(home)} == {BAD, WORSE}
    assert {len(producer) for producer, _ in kept(home)} == {100}


# -- schema --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "message"),
    [("origin,time_hour", "lacks 'temp'"), ("origin,time_hour,temp,wind", "has also 'wind'"), ("a,b,c", "lacks")],
)
def test_other_columns_are_refused(weather: Shard, home: Settings, tmp_path: Path, header: str, message: str) -> None:
    with pytest.raises(SchemaMismatch, match=message):
        append_path(home, write(tmp_path / "a.csv", f"{header}\n"))
    assert weather.load().state.ledgers == {}


def test_other_type_is_refused(weather: Shard, home: Settings, tmp_path: Path) -> None:
    table = pa.table({"origin": ["E"], "time_hour": ["2013-01-01"], "temp": [1.0]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(SchemaMismatch, match=r"'time_hour' of .* is string, 'weather' stores timestamp"):
        append_path(home, tmp_path / "a.parquet", evolve=True)


def test_schema_that_may_evolve_gains_columns_and_width(home: Settings, tmp_path: Path) -> None:
    create(home, "origin string, count int")
    append_path(home, write(tmp_path / "a.csv", "origin,count\nEWR,1\n"), Range(0, 1))
    pq.write_table(pa.table({"count": pa.array([2**40]), "wind": [1.5]}), tmp_path / "b.parquet")
    assert append_path(home, tmp_path / "b.parquet", Range(1, 2), evolve=True).outcome is Outcome.APPENDED
    append_path(home, write(tmp_path / "c.jsonl", '{"origin": "LGA", "calm": true}\n'), Range(2, 3), evolve=True)
    found = Counter((row["origin"], row["count"], row["wind"], row["calm"]) for row in rows(home))
    assert found == Counter([("EWR", 1, None, None), (None, 2**40, 1.5, None), ("LGA", None, None, True)])


def test_schema_does_not_evolve_in_read_only_mode(weather: Shard, home: Settings, tmp_path: Path) -> None:
    switch(home, Mode.READ_ONLY)
    before = weather.load()
    with pytest.raises(ReadOnly):
        append_path(home, write(tmp_path / "a.csv", "origin,wind\nEWR,1\n"), evolve=True)
    assert weather.load().table.metadata_location == before.table.metadata_location


# -- bad input -----------------------------------------------------------------------------------------------------


def test_file_that_is_missing_unknown_or_broken_is_told_apart(weather: Shard, home: Settings, tmp_path: Path) -> None:
    with pytest.raises(InputMissing):
        append_path(home, tmp_path / "none.csv")
    with pytest.raises(UsageError, match="format"):
        append_path(home, write(tmp_path / "a.txt", CSV))
    with pytest.raises(Refused, match="cannot be read"):
        append_path(home, write(tmp_path / "a.parquet", CSV))
    pq.write_table(pa.table({"origin": ["E"], "time_hour": [NOON], "temp": [1.0]}), tmp_path / "cut.parquet")
    whole = (tmp_path / "cut.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(b"PAR1" + bytes(200) + whole[204:])
    with pytest.raises(Refused, match="cannot be read"):
        append_path(home, tmp_path / "cut.parquet")
    with pytest.raises(SchemaMismatch, match="lacks"):
        append_path(home, write(tmp_path / "empty.csv", ""))
    assert weather.load().state.ledgers == {}


def test_batch_without_rows_is_a_batch(weather: Shard, home: Settings, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "origin,time_hour,temp\n")
    assert append_path(home, path).outcome is Outcome.APPENDED
    assert append_path(home, path).outcome is Outcome.SKIPPED


def test_rejecting_collection_does_not_read_the_file(weather: Shard, home: Settings, tmp_path: Path) -> None:
    switch(home, Mode.READ_ONLY)
    with pytest.raises(ReadOnly):
        append_path(home, tmp_path / "none.csv", on_read_only=OnReadOnly.REJECT)
