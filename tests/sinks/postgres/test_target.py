"""What a sink finds in PostgreSQL: nothing, other tables, other sinks, a server that is away; and every type."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from threading import Barrier, BrokenBarrierError, Event
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.sinks.changes import change
from tests.sinks.targets.driving import Driven
from tests.support.silent_server import PATIENCE_S, silent_server
from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.collections.schema.ddl import parse_columns
from tidemark.errors import Refused
from tidemark.exit_codes import ExitCode
from tidemark.sinks.progress import Owner, SinkColumn
from tidemark.sinks.targets.postgres import target as target_module
from tidemark.sinks.targets.postgres.connection import BEGIN
from tidemark.sinks.targets.postgres.copying import copy_text
from tidemark.sinks.targets.postgres.progress import ProgressTable
from tidemark.sinks.targets.postgres.target import PostgresTarget
from tidemark.sinks.targets.registry import open_target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.sinks.postgres.conftest import Database
    from tests.support.homes import Home
    from tidemark.sinks.progress import Progress

pytestmark = pytest.mark.postgres

TO = {"connection": "pg", "table": "copies"}
TYPES = (
    "id bigint, b boolean, i int, f float, d double, n decimal(10,3), day date, at timestamp, local timestamp_ntz, "
    "s string, bytes binary, l array<int>, m map<string,double>, r struct<x:int,y:string>"
)


def test_a_table_with_other_columns_is_65_and_stays_as_it_is(sinking: Home, database: Database) -> None:
    database.execute("CREATE TABLE copies (id bigint PRIMARY KEY, title text)")
    sinking.declare_sink(to=TO)
    failed = sinking.run_sink()
    assert failed.error is not None
    assert (failed.error.kind, failed.exit_code) == ("SchemaMismatch", ExitCode.REFUSED)
    assert "id bigint, title text" in failed.error.message
    assert "id bigint, name text" in failed.error.message
    assert not database.exists("tidemark_sinks"), "nothing was written"


def test_a_table_without_the_key_is_65(sinking: Home, database: Database) -> None:
    database.execute("CREATE TABLE copies (id bigint, name text)")
    sinking.declare_sink(to=TO)
    failed = sinking.run_sink()
    assert failed.error is not None
    assert "ADD PRIMARY KEY (id)" in failed.error.hint


@pytest.mark.parametrize(
    ("key", "is_one"),
    [
        ("CREATE UNIQUE INDEX ON copies (id) INCLUDE (name)", True),
        ("CREATE UNIQUE INDEX ON copies (id, name)", False),
        ("ALTER TABLE copies ADD UNIQUE (id) DEFERRABLE", False),
        ("ALTER TABLE copies ADD PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED", False),
    ],
)
def test_only_a_key_that_replaces_rows_is_one(sinking: Home, database: Database, key: str, *, is_one: bool) -> None:
    database.execute(f"CREATE TABLE copies (id bigint, name text); {key}")
    sinking.declare_sink(to=TO)
    loaded = sinking.run_sink()
    assert (loaded.exit_code, database.rows() == sinking.tuples("events")) == (0 if is_one else 65, is_one)
    if is_one:
        change(sinking, put={1: "B", 3: "c"}, delete=(0,))
        assert sinking.run_sink().error is None
        assert database.rows() == sinking.tuples("events")


def test_rows_that_are_there_are_refused_or_replaced(sinking: Home, database: Database) -> None:
    database.execute("CREATE TABLE copies (id bigint PRIMARY KEY, name text); INSERT INTO copies VALUES (99, 'old')")
    sinking.declare_sink(to=TO)
    refused = sinking.run_sink()
    assert refused.exit_code is ExitCode.REFUSED
    assert database.rows() == [(99, "old")]
    sinking.declare_sink(to={**TO, "existing": "replace"})
    assert sinking.run_sink().error is None
    assert database.rows() == sinking.tuples("events")


def test_progress_of_somebody_else_is_76(sinking: Home, database: Database) -> None:
    sinking.declare_sink(to=TO)
    sinking.run_sink()
    sinking.declare_sink("others", to=TO)
    failed = sinking.run_sink("others")
    assert failed.exit_code is ExitCode.NOT_POSSIBLE
    assert failed.error is not None
    assert "'copies'" in failed.error.message
    change(sinking, put={5: "e"})
    assert sinking.run_sink().error is None
    assert database.rows() == sinking.tuples("events")


def test_a_server_that_says_nothing_is_69_in_time_and_history_stays_held(sinking: Home) -> None:
    sinking.declare_sink(to=TO)
    upper = sinking.run_sink().upper
    change(sinking, put={5: "e"})
    real = sinking.settings
    with silent_server() as server:
        silent = f"jdbc:postgresql://127.0.0.1:{server.port}/db"
        sinking.settings = replace(real, connections={**real.connections, "TIDEMARK_SOURCE_PG_URL": silent})
        started = time.monotonic()
        failed = sinking.run_sink()
        assert time.monotonic() - started < PATIENCE_S + 1
    assert failed.exit_code is ExitCode.UNREACHABLE
    assert isinstance(upper, int)
    assert sinking.shard().load().state.holds["sink-copies"].since == upper - 1
    sinking.settings = real
    assert sinking.run_sink().inserted == 1


def test_a_table_that_was_dropped_is_65_and_no_rows_are_left_out(sinking: Home, database: Database) -> None:
    sinking.declare_sink(to=TO)
    sinking.run_sink()
    database.execute("DROP TABLE copies")
    change(sinking, put={5: "e"})
    failed = sinking.run_sink()
    assert failed.error is not None
    assert failed.error.kind == "SchemaMismatch"
    assert "is gone" in failed.error.message


def test_a_text_with_nul_is_65_with_the_row(sinking: Home, database: Database) -> None:
    change(sinking, put={7: "a\0b"})
    sinking.declare_sink(to=TO)
    failed = sinking.run_sink()
    assert failed.error is not None
    assert failed.error.kind == "Refused"
    assert failed.error.sample[0]["id"] == 7
    assert not database.exists(), "nothing was written"


def test_a_table_in_a_schema_with_odd_names(sinking: Home, database: Database) -> None:
    database.execute('CREATE SCHEMA "Od""d"')
    sinking.declare_sink(to={"connection": "pg", "table": 'Od"d.my copies; DROP'})
    assert sinking.run_sink().error is None
    assert database.rows('SELECT * FROM "Od""d"."my copies; DROP"') == sinking.tuples("events")


def test_a_schema_that_is_not_there_is_66(sinking: Home) -> None:
    sinking.declare_sink(to={"connection": "pg", "table": "nowhere.copies"})
    assert sinking.run_sink().exit_code is ExitCode.INPUT_MISSING


def test_every_type_arrives_as_it_was(sinking: Home, database: Database) -> None:
    columns = tuple(SinkColumn(n, each.name, each.type) for n, each in enumerate(parse_columns(TYPES), start=1))
    moment = datetime(2013, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001 - of a column without a zone
    rows = [
        {
            "id": 1, "b": True, "i": -5, "f": 1.5, "d": math.inf, "n": Decimal("-1234567.125"), "day": date(1, 1, 1),
            "at": moment.replace(tzinfo=UTC), "local": moment, "s": 'a "b", \\N\n\\.\n', "bytes": b"\x00\xff",
            "l": [1, None], "m": [("ü", math.nan)], "r": {"x": None, "y": "z"},
        },
        {"id": 2, "b": False, "i": None, "f": math.nan, "d": -0.0, "n": Decimal("0.001"), "day": date(9999, 12, 31),
         "at": None, "local": None, "s": "", "bytes": b"", "l": [], "m": [], "r": None},
    ]  # fmt: skip
    types = {
        "id": pa.int64(), "b": pa.bool_(), "i": pa.int32(), "f": pa.float32(), "d": pa.float64(),
        "n": pa.decimal128(10, 3), "day": pa.date32(), "at": pa.timestamp("us", "UTC"), "local": pa.timestamp("us"),
        "s": pa.large_string(), "bytes": pa.large_binary(), "l": pa.list_(pa.int32()),
        "m": pa.map_(pa.string(), pa.float64()), "r": pa.struct({"x": pa.int32(), "y": pa.string()}),
    }  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=pa.schema(types))
    sink = declared(sinking, "mirror")
    with open_target(sink, sinking.settings) as target:
        claimed = target.claim(Owner("copies", 1, "events", "u"), generation=1)
        after = replace(claimed, time=1, columns=columns)
        assert target.load(claimed, after, iter(table.to_batches())) == 2
        target.mirror(after, replace(after, time=2), table.select(["id"]).slice(0, 0), table)
    found = {row[0]: row for row in database.rows()}
    assert found[1][1:6] == (True, -5, 1.5, math.inf, Decimal("-1234567.125"))
    assert found[1][6:10] == (date(1, 1, 1), moment.replace(tzinfo=UTC), moment, 'a "b", \\N\n\\.\n')
    assert found[1][10:] == (b"\x00\xff", [1, None], [["ü", "NaN"]], {"x": None, "y": "z"})
    assert math.isnan(found[2][3])
    assert found[2][4:6] == (0.0, Decimal("0.001"))
    assert found[2][9:] == ("", b"", [], [], None)


def test_forgetting_leaves_the_rows_and_the_progress_of_others(sinking: Home, database: Database) -> None:
    sink = sinking.declare_sink(to=TO)
    sinking.run_sink()
    applied = sinking.registry.read().sinks["copies"]
    uuid = str(sinking.shard().load().table.metadata.table_uuid)
    owner = Owner("copies", applied.id, "events", uuid)
    with open_target(sink, sinking.settings) as target:
        target.forget(owner._replace(sink_id=99))
        assert target.look() is not None
        target.forget(owner)
        assert target.look() is None
        target.forget(owner)
    assert database.rows() == sinking.tuples("events")


def test_two_rows_of_one_key_are_refused_and_nothing_is_written(sinking: Home, database: Database) -> None:
    change(sinking, put={3: "same", 4: "same"})
    change(sinking, delete=(2,))
    sinking.declare_sink(key=["name"], to=TO)
    failed = sinking.run_sink()
    assert failed.error is not None
    assert failed.error.kind == Refused.__name__
    assert failed.error.sample == [{"name": "same"}]
    assert not database.exists()


def test_a_row_that_comes_later_with_the_key_of_another_is_refused(sinking: Home, database: Database) -> None:
    sinking.declare_sink(key=["name"], to=TO)
    change(sinking, delete=(2,))
    assert sinking.run_sink().inserted == 2
    change(sinking, put={3: "a"})
    failed = sinking.run_sink()
    assert failed.exit_code is ExitCode.REFUSED
    assert failed.error is not None
    assert failed.error.sample == [{"name": "a"}]
    change(sinking, delete=(0,))
    assert sinking.run_sink().error is None
    assert database.rows() == sinking.tuples("events") == [(1, "b"), (3, "a")]


def declared(home: Home, mode: str) -> SinkDeclaration:
    fields = {"name": "copies", "from": "events", "mode": mode, "to": TO}
    return SinkDeclaration.model_validate(fields).resolve(home.registry.get("events"))


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("ALTER TABLE copies DROP COLUMN name", "lacks 'name'"),
        ("ALTER TABLE copies RENAME COLUMN name TO title", "lacks 'name'"),
        ("ALTER TABLE copies ALTER name TYPE varchar(2)", "has with another type 'name'"),
        ("ALTER TABLE copies DROP CONSTRAINT copies_pkey", "ADD PRIMARY KEY (id)"),
        ("ALTER TABLE copies ALTER id ADD GENERATED ALWAYS AS IDENTITY", "GENERATED ALWAYS"),
        (
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today'; END $$; "
            "CREATE TRIGGER refuse BEFORE INSERT ON copies FOR EACH ROW EXECUTE FUNCTION fail()",
            "not today",
        ),
    ],
)
def test_what_the_owner_of_the_table_changed_is_refused_and_nothing_is_written(
    sinking: Home, database: Database, statement: str, told: str
) -> None:
    sinking.declare_sink(to=TO)
    sinking.run_sink()
    database.execute(statement)
    found = database.rows()
    change(sinking, put={5: "e"})
    failed = sinking.run_sink()
    assert failed.exit_code is ExitCode.REFUSED
    assert failed.error is not None
    assert told in failed.error.message + failed.error.hint
    assert failed.error.hint
    assert database.rows() == found


def test_a_text_that_only_looks_like_nul_in_json_is_carried() -> None:
    with pytest.raises(Refused, match="character NUL"):
        copy_text(pa.RecordBatch.from_pylist([{"id": 1, "r": {"s": "a\\\0"}}]))
    assert b"u0000" in copy_text(pa.RecordBatch.from_pylist([{"id": 1, "r": {"s": "\\u0000"}}])).to_pybytes()


def test_a_run_that_stands_still_in_a_copy_is_ended_by_the_next_one(
    sinking: Home, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No timeout of PostgreSQL ends it: as one that somebody has stopped, it waits with the lock of the target."""
    monkeypatch.setattr(target_module, "BEGIN", BEGIN.replace("'20s'", "'300ms'"))
    sinking.declare_sink(to=TO, mode="changes")
    begun, over = Event(), Event()
    load = PostgresTarget.load

    def stand_still(self: PostgresTarget, before: Progress, after: Progress, rows: Iterator[pa.RecordBatch]) -> int:
        def first() -> Iterator[pa.RecordBatch]:
            yield from rows
            begun.set()
            over.wait(30)

        return load(self, before, after, first())

    with monkeypatch.context() as patch, ThreadPoolExecutor() as pool:
        patch.setattr(PostgresTarget, "load", stand_still)
        frozen = pool.submit(sinking.run_sink)
        assert begun.wait(10)
        patch.undo()
        monkeypatch.setattr(target_module, "BEGIN", BEGIN.replace("'20s'", "'300ms'"))
        second = sinking.run_sink()
        over.set()
        first = frozen.result(30)
    assert second.error is None
    assert first.error is not None
    assert first.exit_code in {ExitCode.UNREACHABLE, ExitCode.FENCED}
    assert [row[:2] for row in database.rows()] == sinking.tuples("events"), "each row once"


def test_two_first_claims_at_once_get_two_epochs(
    sinking: Home, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def claim(table: str) -> int:
        run = Driven(sinking.settings, {**TO, "table": table}).run()
        run.target.close()
        return run.progress.epoch

    claim("others")  # makes the table of progress
    both_read, real = Barrier(2), ProgressTable.read

    def read(*arguments: Any, **more: Any) -> Progress | None:
        found = real(*arguments, **more)
        with suppress(BrokenBarrierError):
            both_read.wait(0.5)
        return found

    monkeypatch.setattr(ProgressTable, "read", read)
    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(claim, ["copies", "copies"])) == [1, 2]
    assert database.rows("SELECT epoch FROM tidemark_sinks WHERE target = 'copies'") == [(2,)]
