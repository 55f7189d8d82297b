"""One declaration holds for rows by every way in: whichever is taken, in whichever mode."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.homes import Home
from tidemark.collections.append.append import append_rows
from tidemark.collections.append.file import FileBatch, append_file
from tidemark.collections.append.interval import append_all, append_small
from tidemark.collections.append.row_writers import Appenders
from tidemark.collections.declarations.append_only import Expectations
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Mode
from tidemark.collections.schema.convert import to_iceberg
from tidemark.collections.schema.ddl import parse_columns
from tidemark.collections.staged.batches import BatchName
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import ExpectationFailed, OnlyThroughBuffer, ReadOnly, UsageError
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.state import ShardKind
from tidemark.ingest.run import choose_ingested
from tidemark.interval import Interval
from tidemark.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.report import CollectionReport, Report
    from tidemark.settings import Settings

SCHEMA = "id bigint, name string, at timestamp"
CUT = "at >= '{start}' AND at < '{end}'"
EXPECT = {"range": {"id": {"max": 9}}}
SOURCE_OF = {"events": None, "cut": {"format": "parquet", "where": CUT}, "planes": {"format": "parquet"}}


Way: TypeAlias = "Callable[[Ways, str, int], Outcome]"


class Ways:
    """Collections of each role, and every way to hand them two rows, the second with the id that the caller gives."""

    def __init__(self, settings: Settings, folder: Path, spark: SparkSession | None = None) -> None:
        self.home, self.folder, self.spark = Home(settings, folder, now_ms=1_000_000), folder, spark
        assert self.home.buffer.logs
        self.home.switch(Mode.READ_WRITE)
        self.sent = 0
        self.word: str | None = "a"  # what the column `name` has

    def rows(self, last: int) -> pa.Table:
        times = pa.array([self.sent * 1_000] * 2, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
        names = pa.array([self.word] * 2, pa.string())
        return pa.table({"id": pa.array([1, last], pa.int64()), "name": names, "at": times})

    def declare(self, name: str, **more: Any) -> Declaration:
        """Declare ``events`` (no source), ``cut`` (by intervals), ``planes`` (differential) or a reader of a buffer."""
        source = SOURCE_OF.get(name, {"buffer": self.home.buffer_folder.as_uri()})
        if source is not None and "format" in source:
            source = {**source, "path": str(self.folder / f"{name}.parquet")}
            parquet.write_table(self.rows(1), self.folder / f"{name}.parquet")
        kind = ShardKind.DIFFERENTIAL if name == "planes" else ShardKind.APPEND_ONLY
        fields = {"name": name, "kind": str(kind), "schema": SCHEMA, "source": source, **more}
        declaration = Declaration.model_validate({key: value for key, value in fields.items() if value is not None})
        self.home.shards.create(name, schema=to_iceberg(parse_columns(SCHEMA)), layout=kind)
        self.home.registry.replace([declaration], seen=self.home.registry.read())
        return declaration

    def _name(self) -> BatchName:
        self.sent += 1
        return BatchName("p", Range(self.sent, self.sent + 1))

    def _arguments(self) -> dict[str, Any]:
        return {"deployment": self.home.deployment, "clock": self.home.clock}

    def by_rows(self, name: str, last: int, **own: Any) -> Outcome:
        batch = self._name()
        return append_rows(self.home.shard(name), batch, self.rows(last), **self._arguments(), **own).outcome

    def by_file(self, name: str, last: int) -> Outcome:
        batch, path = self._name(), self.folder / "batch.parquet"
        parquet.write_table(self.rows(last), path)
        declaration = self.home.registry.get(name)
        for given in (FileBatch.declared(path, declaration), FileBatch(path=path)):  # one once, however it is built
            report = append_file(self.home.shards, self.home.shard(name), batch, given, **self._arguments())
        return Outcome.APPENDED if report.outcome is Outcome.SKIPPED else report.outcome

    def by_writer(self, name: str, last: int) -> Outcome:
        self.sent += 1
        appenders = Appenders(self.home.shards, self.home.deployment, self.home.clock, producer="web")
        try:
            appenders.register(name)
            return appenders.monotonic_appender(name).append(self.rows(last)).outcome
        finally:
            appenders.close()

    def by_interval(self, name: str, last: int) -> Outcome:
        """Append the slice of the source, which this process cuts."""
        report, left = append_small(
            self.home.shards, self.home.deployment, [self._cut(name, last)], self._second(), clock=self.home.clock
        )
        assert not left
        return outcome_of(report, name)

    def by_spark(self, name: str, last: int) -> Outcome:
        assert self.spark is not None
        report = append_all(
            self.spark, self.home.shards, self.home.deployment, [self._cut(name, last)], self._second(),
            clock=self.home.clock,
        )  # fmt: skip
        return outcome_of(report, name)

    def by_frame(self, name: str, last: int) -> Outcome:
        from tidemark.collections.append.frame import append_frame

        assert self.spark is not None
        batch = self._name()
        rows = self.spark.createDataFrame([(1, "a"), (last, "b")], "id bigint, name string")
        rows = rows.selectExpr("*", "timestamp_millis(0) AS at")
        return append_frame(self.home.shard(name), batch, rows, **self._arguments()).outcome

    def by_ingest(self, name: str, last: int) -> Outcome:
        self.home.send(0, b'{"id":1,"name":"a"}', f'{{"id":{last},"name":"b"}}'.encode())
        choose_ingested(self.home.deployment, [name])
        return outcome_of(self.home.ingest_all(name), name)

    def _cut(self, name: str, last: int) -> Declaration:
        self.sent += 1
        parquet.write_table(self.rows(last), self.folder / f"{name}.parquet")
        return self.home.registry.get(name)

    def _second(self) -> Interval:
        return Interval(self.sent * 1_000, (self.sent + 1) * 1_000)


def outcome_of(report: Report, name: str) -> Outcome:
    """Return the outcome, or raise what the report tells."""
    collection: CollectionReport = report.collections[name]
    if collection.error is not None:
        kinds = (ExpectationFailed, OnlyThroughBuffer, ReadOnly, UsageError)
        raise {kind.__name__: kind for kind in kinds}[collection.error.kind](collection.error.message)
    return collection.outcome


DIRECT = [Ways.by_rows, Ways.by_file, Ways.by_writer]
IN_SPARK = [Ways.by_frame, Ways.by_spark]
ALLOWED = [
    *((way, "events") for way in DIRECT),
    (Ways.by_interval, "cut"),
    (Ways.by_ingest, "reader"),
    pytest.param(Ways.by_frame, "events", marks=pytest.mark.spark),
    pytest.param(Ways.by_spark, "cut", marks=pytest.mark.spark),
]


@pytest.fixture
def ways(home: Settings, tmp_path: Path, request: pytest.FixtureRequest) -> Ways:
    needs_spark = request.node.get_closest_marker("spark") is not None
    return Ways(home, tmp_path, request.getfixturevalue("home_spark") if needs_spark else None)


@pytest.mark.parametrize(("way", "name"), ALLOWED)
def test_way_that_the_declaration_allows_keeps_what_it_says(ways: Ways, way: Way, name: str) -> None:
    ways.declare(name, expect=EXPECT)
    assert way(ways, name, 2) is Outcome.APPENDED
    with pytest.raises(ExpectationFailed):
        way(ways, name, 10)
    assert Counter(ways.home.ids(name)) == Counter([1, 2]), "what is not expected never becomes visible"


def check_read_only(ways: Ways, way: Way, name: str, on_read_only: str) -> None:
    if on_read_only == "stage":
        assert way(ways, name, 2) is Outcome.STAGED
    else:
        with pytest.raises(ReadOnly, match="rejects batches"):
            way(ways, name, 2)


@pytest.mark.parametrize("on_read_only", ["stage", "reject"])
@pytest.mark.parametrize(("way", "name"), ALLOWED)
def test_read_only_mode_is_what_the_declaration_says(ways: Ways, way: Way, name: str, on_read_only: str) -> None:
    ways.declare(name, on_read_only=on_read_only)
    ways.home.switch(Mode.READ_ONLY)
    check_read_only(ways, way, name, on_read_only)
    assert bool(ways.home.branches()) is (on_read_only == "stage")
    assert ways.home.ids(name) == []


@pytest.mark.parametrize("chosen", [[*DIRECT, Ways.by_interval], pytest.param(IN_SPARK, marks=pytest.mark.spark)])
def test_rows_of_a_buffer_come_by_no_other_way(ways: Ways, chosen: list[Way]) -> None:
    ways.declare("reader")
    for mode in Mode:
        ways.home.switch(mode)
        for way in chosen:
            with pytest.raises(OnlyThroughBuffer, match="come out of the buffer"):
                way(ways, "reader", 2)
    assert (ways.home.ids("reader"), ways.home.branches()) == ([], set())


@pytest.mark.parametrize(
    "chosen", [[*DIRECT, Ways.by_interval, Ways.by_ingest], pytest.param(IN_SPARK, marks=pytest.mark.spark)]
)
def test_nothing_is_appended_to_a_differential_collection(ways: Ways, chosen: list[Way]) -> None:
    ways.declare("planes")
    for mode in Mode:
        ways.home.switch(mode)
        for way in chosen:
            with pytest.raises(UsageError):
                way(ways, "planes", 2)
    assert (ways.home.ids("planes"), ways.home.branches()) == ([], set())


def test_only_readers_of_a_buffer_are_ingested(ways: Ways) -> None:
    ways.declare("events")
    for mode in Mode:
        ways.home.switch(mode)
        with pytest.raises(UsageError, match="does not read a write buffer"):
            ways.by_ingest("events", 2)


FORWARDED = [
    *((way, "events") for way in DIRECT),
    (Ways.by_interval, "cut"),
    pytest.param(Ways.by_frame, "events", marks=pytest.mark.spark),
    pytest.param(Ways.by_spark, "cut", marks=pytest.mark.spark),
]


def declare_gateway(ways: Ways, name: str, **more: Any) -> None:
    """Declare ``name`` to write to the buffer, and a reader of its rows."""
    buffer = ways.home.buffer_folder.as_uri()
    ways.declare(name, writes_to=buffer, **more)
    ways.declare("reader", source={"buffer": buffer, "table": name})


@pytest.mark.parametrize(("way", "name"), FORWARDED)
def test_rows_of_a_writer_go_into_the_buffer(ways: Ways, way: Way, name: str) -> None:
    declare_gateway(ways, name, expect=EXPECT)
    assert way(ways, name, 2) is Outcome.FORWARDED
    with pytest.raises(ExpectationFailed):
        way(ways, name, 10)
    assert ways.home.ingest("reader").inserted == 2
    assert (ways.home.ids(name), ways.home.ids("reader"), ways.home.branches()) == ([], [1, 2], set())


@pytest.mark.parametrize("on_read_only", ["stage", "reject"])
@pytest.mark.parametrize(("way", "name"), FORWARDED)
def test_writer_to_a_buffer_keeps_read_only_mode(ways: Ways, way: Way, name: str, on_read_only: str) -> None:
    declare_gateway(ways, name, on_read_only=on_read_only)
    ways.home.switch(Mode.READ_ONLY)
    check_read_only(ways, way, name, on_read_only)
    assert ways.home.ingest("reader").outcome is Outcome.UNCHANGED, "a deployment that only reads writes to no log"
    ways.home.switch(Mode.READ_WRITE)
    flush_all(ways.home.shards, ways.home.deployment, [], clock=ways.home.clock)
    ways.home.ingest("reader")
    assert ways.home.ids("reader") == ([1, 2] if on_read_only == "stage" else [])
    assert (ways.home.ids(name), ways.home.branches()) == ([], set())


def test_writer_that_runs_keeps_a_declaration_that_is_altered(ways: Ways) -> None:
    ways.declare("events")
    appenders = Appenders(ways.home.shards, ways.home.deployment, ways.home.clock, producer="web")
    appenders.register("events")
    appender = appenders.monotonic_appender("events")
    assert appender.append(ways.rows(10)).outcome is Outcome.APPENDED
    ways.declare("events", expect=EXPECT)
    with pytest.raises(ExpectationFailed):
        appender.append(ways.rows(10))
    ways.declare("events", source={"buffer": ways.home.buffer_folder.as_uri()})
    with pytest.raises(OnlyThroughBuffer):
        appender.append(ways.rows(2))
    appenders.close()
    assert ways.home.ids("events") == [1, 10]


@pytest.mark.parametrize("way", DIRECT)
def test_superseded_statuses_are_left_out_by_every_way(ways: Ways, way: Way) -> None:
    ways.declare("events", status={"key": ["id"], "column": "name", "time": "at"})
    ways.word = "paused"
    for _ in range(2):
        assert way(ways, "events", 2) is Outcome.APPENDED
    assert ways.home.ids() == [1, 2]


def test_caller_asks_for_more_than_the_declaration_never_for_less(ways: Ways) -> None:
    ways.declare("events", expect=EXPECT)
    own = {"expect": Expectations.model_validate({"not_null": ["name"]})}
    with pytest.raises(ExpectationFailed, match="range: id"):
        ways.by_rows("events", 10, **own)
    ways.word = None
    with pytest.raises(ExpectationFailed, match="not_null: name"):
        ways.by_rows("events", 2, **own)
    ways.home.switch(Mode.READ_ONLY)
    assert ways.by_rows("events", 10) is Outcome.STAGED, "the flush checks what is declared then"
    with pytest.raises(ExpectationFailed, match="not_null: name"):  # which the flush knows nothing of
        ways.by_rows("events", 2, **own)
    with pytest.raises(ReadOnly):
        ways.by_rows("events", 2, stage_when_read_only=False)
    assert len(ways.home.branches()) == 1
