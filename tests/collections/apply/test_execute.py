"""Apply: creates, evolves, refuses; idempotent, all or nothing, and completed by a rerun after a crash."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.declared import HEAD
from tests.support.dying import Crash, dying_at
from tests.support.homes import Home
from tidemark.collections.append.append import append_rows
from tidemark.collections.apply.execute import FAIL_POINTS, read_stored
from tidemark.collections.apply.plan import ApplyPlan, choose_buckets
from tidemark.collections.declarations.files import load_declarations
from tidemark.collections.maintenance.retain import retain
from tidemark.collections.schema.types import columns_text
from tidemark.collections.staged.batches import BatchName
from tidemark.errors import (
    CatalogOutOfSync,
    ConfigurationInvalid,
    FencedByGeneration,
    IncompatibleChange,
    InputMissing,
    Refused,
    UnknownCollection,
)
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.reading.arrow import read_arrow
from tidemark.iceberg.shard.ledger import Range

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.settings import Settings


def apply(home: Home, text: str | None = None) -> list[str]:
    """Apply the declarations (``text`` first becomes the file), and return what was done."""
    return said(home.declare(HEAD + text if text else None))


def columns(home: Home, name: str = "it") -> str:
    return columns_text(read_stored(home.shard(name).load().table).columns)


def said(plan: ApplyPlan) -> list[str]:
    return [f"{step.name}: {step}" for step in plan.steps]


@pytest.fixture
def place(home: Settings, tmp_path: Path) -> Home:
    return Home(home, tmp_path)


def table(columns: str, more: str = "") -> str:
    return (
        "  it:\n    kind: differential\n    key: [id]\n"
        f"    schema: '{columns}'\n    source: {{format: json, path: it.json}}\n{more}"
    )


def test_apply_creates_then_finds_nothing_to_do(place: Home) -> None:
    assert apply(place, table("id int, x string")) == [
        "it: create differential collection, key id: id int, x string",
        "it: register the declaration",
    ]
    assert apply(place) == []
    assert place.registry.get("it").key == ("id",)
    head = place.shards.open("it").load()
    assert head.state.upper == 0
    assert [field.name for field in head.table.schema().fields] == ["id", "x", "_time", "_diff"]


def test_a_plan_changes_nothing(place: Home) -> None:
    place.declarations.write_text(HEAD + table("id int"))
    plan = place.application().plan(load_declarations([place.declarations]))
    assert [step["action"] for step in plan.to_json()["steps"]] == ["create", "register"]
    assert place.shards.names() == []
    assert place.registry.read().declarations == {}


def test_append_only_collections_are_created_too(place: Home) -> None:
    apply(place, "  it: {kind: append-only, schema: 'a int'}\n")
    schema = place.shards.open("it").load().table.schema()
    assert [field.name for field in schema.fields] == ["a", "_producer", "_batch"]


def test_rows_with_event_times_bear_the_numbers_of_their_entries(place: Home, tmp_path: Path) -> None:
    buffer = f"source: {{buffer: '{(tmp_path / 'writes').as_uri()}'}}"
    before = f"  old: {{kind: append-only, schema: 'at timestamp', {buffer}}}\n"
    old, new = (
        f"  {name}: {{kind: append-only, schema: 'at timestamp', event_time: at, key: [at], {buffer}}}\n"
        for name in ("old", "new")
    )
    assert apply(place, before)[0].endswith("create append-only collection, no key: at timestamp")
    steps = apply(place, old + new)
    assert sum("add column '_entry': the number of the entry" in step for step in steps) == 1
    assert "create append-only collection, key at: at timestamp" in "".join(steps)
    for name in ("old", "new"):
        schema = place.shards.open(name).load().table.schema()
        assert schema.column_names == ["at", "_producer", "_batch", "_entry"]
        assert not schema.find_field("_entry").required
    assert apply(place, old + new) == []


@pytest.mark.parametrize("kind", ["append-only", "latest, key: [a]"])
def test_storage_workers_take_an_ingestion_over_and_leave_it_without_a_touch_of_its_table(
    place: Home, tmp_path: Path, kind: str
) -> None:
    def declared(more: str) -> str:
        buffer = f"source: {{buffer: '{(tmp_path / 'writes').as_uri()}'{more}}}"
        return f"  it: {{kind: {kind}, schema: 'a int', {buffer}}}\n"

    apply(place, declared(""))
    before = place.shard("it").load().table.metadata_location
    for more in (", every: 5s", ", every: 1m, most_entries: 9", ""):
        assert apply(place, declared(more)) == ["it: change source"]
        assert apply(place) == []
    assert place.shard("it").load().table.metadata_location == before


def test_columns_evolve_and_rows_stay(place: Home) -> None:
    apply(place, table("id int, x string, f float, d decimal(5,2), gone int"))
    shard = place.shards.open("it")
    head = shard.load()
    rows = pa.table(
        {"id": pa.array([1], pa.int32()), "x": ["a"], "f": pa.array([1.5], pa.float32()),
         "d": pa.array([None], pa.decimal128(5, 2)), "gone": pa.array([7], pa.int32()), "_time": [0], "_diff": [1]}
    )  # fmt: skip
    batch = Batch(added=tuple(write_rows(head.table, rows)), schema_id=head.table.schema().schema_id)
    Writer.join(shard, 1).publish(batch, lower=0, new_upper=1)
    done = apply(
        place, table("id bigint, y string, f double, d decimal(9,2), new date, `n.m` int", "    renames: {x: y}\n")
    )
    assert done == [
        "it: rename column 'x' to 'y'",
        "it: widen column 'id' from int to bigint",
        "it: widen column 'f' from float to double",
        "it: widen column 'd' from decimal(5,2) to decimal(9,2)",
        "it: add column new date",
        "it: add column `n.m` int",
        "it: drop column 'gone'",
        "it: change renames, schema, source",
    ]
    assert columns(place) == "id bigint, y string, f double, d decimal(9,2), new date, `n.m` int"
    assert [field.name for field in shard.load().table.schema().fields][-2:] == ["_time", "_diff"]
    assert read_arrow(shard).to_pylist() == [{"id": 1, "y": "a", "f": 1.5, "d": None, "new": None, "n.m": None}]
    assert apply(place) == []
    assert shard.load().state.upper == 1


def test_what_rows_are_clustered_by_may_be_altered_and_follows_a_rename(place: Home) -> None:
    apply(place, table("id int, x string"))
    before = place.shard("it").load().table.metadata_location
    for more in ("    cluster_by: [x]\n", "    cluster_by: [x, id]\n", ""):
        assert apply(place, table("id int, x string", more)) == ["it: change cluster_by"]
        assert apply(place) == []
    assert place.shard("it").load().table.metadata_location == before
    apply(place, table("id int, x string", "    cluster_by: [x]\n"))
    with pytest.raises(ConfigurationInvalid, match="`cluster_by` names 'x', which is not among the columns id, y"):
        apply(place, table("id int, y string", "    cluster_by: [x]\n    renames: {x: y}\n"))
    with pytest.raises(ConfigurationInvalid, match="`cluster_by` names 'x', which is not among the columns id"):
        apply(place, table("id int", "    cluster_by: [x]\n"))
    renamed = apply(place, table("id int, y string", "    cluster_by: [y]\n    renames: {x: y}\n"))
    assert renamed == ["it: rename column 'x' to 'y'", "it: change cluster_by, renames, schema, source"]
    assert place.registry.get("it").cluster_by == ("y",)


KINDS = {
    "differential": "kind: differential, buckets: 4, source: {format: json, path: it.json}",
    "latest": "kind: latest, source: {buffer: 'file:///nowhere'}",
    "append-only": "kind: append-only",
}


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_renamed_at_once_whatever_names_they_leave(place: Home, kind: str, *, dies: bool) -> None:
    def keyed(name: str, columns: str, renames: str) -> str:
        key = "" if kind == "append-only" else f"key: [{name}], "
        return f"  it: {{{KINDS[kind]}, {key}schema: '{columns}', renames: {{{renames}}}}}\n"

    def change(text: str) -> list[str]:
        if dies:
            with pytest.raises(Crash), dying_at("apply.columns-changed"):
                apply(place, text)
        done = apply(place, text)
        assert apply(place) == []
        return done

    def look() -> dict[str, int]:
        schema = place.shard("it").load().table.schema()
        return {field.name: field.field_id for field in schema.fields if field.name[0] != "_"}

    apply(place, keyed("id", "id int, x int, y int", ""))
    ids = look()
    done = change(keyed("b", "x int, y int, b int, id int", "x: y, id: b, y: x"))
    assert dies or done[:4] == [
        "it: rename column 'x' to 'y'",
        "it: rename column 'id' to 'b'",
        "it: rename column 'y' to 'x'",
        "it: add column id int",
    ]
    reused = look()
    assert {name: reused[name] for name in "bxy"} == {"b": ids["id"], "x": ids["y"], "y": ids["x"]}
    assert reused["id"] not in ids.values()
    change(keyed("c", "x int, y int, b int, c int", "id: b, b: c"))
    assert look() == {"x": reused["x"], "y": reused["y"], "b": reused["id"], "c": reused["b"]}
    assert read_stored(place.shard("it").load().table).key == (() if kind == "append-only" else ("c",))


def test_a_swap_is_made_once_for_each_time_that_it_is_declared(place: Home) -> None:
    plain, swap = table("id int, x int, y int"), table("id int, x int, y int", "    renames: {y: x, x: y}\n")
    apply(place, plain)
    assert place.shard("it").load().table.schema().find_column_name(2) == "x"
    for name in ("y", "x"):
        apply(place, swap)
        assert apply(place, swap) == []
        apply(place, plain)
        assert place.shard("it").load().table.schema().find_column_name(2) == name


def test_retention_waits_for_an_apply_that_gave_its_key_to_another_column(place: Home) -> None:
    def declared(columns: str, key: str, renames: str = "") -> str:
        keeps = f"retention: {{last_n: 1, key: [{key}], order_by: [n]}}"
        return f"  it: {{kind: append-only, schema: '{columns}', {keeps}, renames: {{{renames}}}}}\n"

    apply(place, declared("n int, id int", "id"))
    shard, rows = place.shard("it"), pa.table({"n": pa.array([1], pa.int32()), "id": pa.array([1], pa.int32())})
    batch = BatchName("p", Range(0, 1))
    append_rows(shard, batch, rows, deployment=place.deployment, clock=place.clock)
    with pytest.raises(Crash), dying_at("apply.columns-changed"):
        apply(place, declared("n int, old int, id int", "old", "id: old"))
    before = place.registry.get("it").retention
    assert before is not None
    with pytest.raises(CatalogOutOfSync, match="'id' among them"):
        retain(shard, before, deployment=place.deployment, now_ms=0)


def test_two_columns_never_get_one_name(place: Home) -> None:
    apply(place, table("id int, x int, y int"))
    with pytest.raises(IncompatibleChange, match="gives the columns 'x' and 'y' one name, 'z'"):
        apply(place, table("id int, z int", "    renames: {x: z, y: z}\n"))


def test_a_batch_made_for_the_old_columns_cannot_be_published_any_more(place: Home) -> None:
    from tidemark.errors import InputsGone

    apply(place, table("id int"))
    shard = place.shards.open("it")
    writer, head = Writer.join(shard, 1), shard.load()
    rows = pa.table({"id": pa.array([1], pa.int32()), "_time": [0], "_diff": [1]})
    batch = Batch(added=tuple(write_rows(head.table, rows)), schema_id=head.table.schema().schema_id)
    apply(place, table("id bigint"))
    with pytest.raises(InputsGone):
        writer.publish(batch, lower=0, new_upper=1)


@pytest.mark.parametrize(
    ("text", "said_"),
    [
        (table("id int, x int"), "column 'x' is string, and cannot become int in place"),
        (table("id smallint, x string").replace("[id]", "[x]"), "its key is id, and cannot become x"),
        (table("id int, x string").replace("    key: [id]\n", ""), "its key is id, and cannot become none"),
        (
            "  it: {kind: append-only, schema: 'id int, x string'}\n",
            "it is differential, and cannot become append-only",
        ),
        (table("id int, x string", "    buckets: 8\n"), "it has 1 bucket, and cannot get 8"),
    ],
)
def test_incompatible_changes_are_refused_and_nothing_is_changed(place: Home, text: str, said_: str) -> None:
    apply(place, table("id int, x string"))
    other = text + "  other: {kind: append-only, schema: 'a int'}\n"
    with pytest.raises(IncompatibleChange, match=said_):
        apply(place, other)
    assert place.shards.names() == ["it"]
    assert columns(place) == "id int, x string"


def test_a_source_that_became_narrower_still_fits_and_a_vanished_column_is_no_order_to_drop(place: Home) -> None:
    text = "  it: {kind: differential, key: [id], source: {format: parquet, path: t}}\n"
    (place.folder / "t").mkdir()
    pq.write_table(pa.table({"id": [1], "x": ["a"]}), place.folder / "t/a.parquet")
    apply(place, text)
    assert columns(place) == "id bigint, x string"
    pq.write_table(pa.table({"id": pa.array([1], pa.int32()), "x": ["a"], "z": [1.5]}), place.folder / "t/a.parquet")
    assert apply(place) == ["it: add column z double"]
    pq.write_table(pa.table({"id": [1], "z": [1.5]}), place.folder / "t/a.parquet")
    with pytest.raises(IncompatibleChange, match="its source no longer has the column 'x'"):
        apply(place)


def test_csv_columns_come_from_its_header_and_are_fixed_by_apply(place: Home) -> None:
    (place.folder / "t.csv").write_text("id,x\n1,a\n")
    apply(place, "  it: {kind: differential, key: [id], source: {format: csv, path: t.csv, options: {header: true}}}\n")
    assert columns(place) == "id string, x string"
    assert place.registry.get("it").to_json()["source"]["schema"] == "id string, x string"
    assert apply(place) == []


def test_sources_that_tell_nothing_are_refused(place: Home) -> None:
    text = "  it: {kind: differential, key: [id], source: {format: parquet, path: t.parquet}}\n"
    with pytest.raises(InputMissing):
        apply(place, text)
    (place.folder / "t.parquet").write_text("not parquet")
    with pytest.raises(Refused, match="no readable Parquet file"):
        apply(place)
    pq.write_table(pa.table({"x": [1]}), place.folder / "t.parquet")
    with pytest.raises(ConfigurationInvalid, match=r"collections\.yaml:3: collection 'it': `key` names 'id'"):
        apply(place)
    assert place.shards.names() == []


def test_a_collection_takes_the_columns_of_the_one_it_copies_in_the_same_apply(place: Home) -> None:
    apply(place, "  copy: {kind: differential, key: [id], source: {collection: it}}\n" + table("id int, x string"))
    assert columns(place, "copy") == "id int, x string"
    done = apply(
        place, "  copy: {kind: differential, key: [id], source: {collection: it}}\n" + table("id int, x string, y date")
    )
    assert done[:2] == ["it: add column y date", "copy: add column y date"]


@pytest.mark.spark
def test_spark_tells_the_columns_of_queries_even_over_collections_that_are_not_there_yet(
    home: Settings, home_spark: SparkSession, tmp_path: Path
) -> None:
    place = Home(home, tmp_path, spark=home_spark)
    (tmp_path / "t/day=2013-01-01").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}), tmp_path / "t/day=2013-01-01/a.parquet")
    text = table("id int, x string") + (
        "  sum:\n    kind: differential\n    source:\n      inputs: {it: {collection: it}}\n"
        "      sql: SELECT x, count(*) AS n, sum(id) AS s FROM it GROUP BY x\n"
        "  days:\n    kind: differential\n    key: [id, day]\n"
        "    source: {format: parquet, path: t}\n    scope: {column: day, every: day}\n"
    )
    apply(place, text)
    assert columns(place, "sum") == "x string, n bigint, s bigint"
    assert columns(place, "days") == "id bigint, day date"
    assert apply(place) == []


def test_the_size_of_the_source_chooses_the_buckets() -> None:
    megabyte = 1024 * 1024
    sizes = [None, 0, 127 * megabyte, 128 * megabyte, 300 * megabyte, 10_000 * megabyte, 10**18]
    assert [choose_buckets(size) for size in sizes] == [1, 1, 1, 2, 4, 128, 4096]


def test_declared_buckets_are_made(place: Home) -> None:
    apply(place, table("id int, x string", "    buckets: 8\n"))
    assert read_stored(place.shards.open("it").load().table).buckets == 8
    assert apply(place, table("id int, x string")) == ["it: change buckets"], "nothing declared: it stays as it is"


def test_a_newer_deployment_owns_its_tables(place: Home) -> None:
    apply(place, table("id int"))
    Writer.raise_token(place.shards.open("it"), 2)
    with pytest.raises(FencedByGeneration):
        apply(place, table("id bigint"))
    assert columns(place) == "id int"


# -- the registry --------------------------------------------------------------------------------------------------


def test_the_registry_is_empty_before_anything_is_applied_and_knows_near_matches(place: Home) -> None:
    assert place.registry.read().declarations == {}
    apply(place, table("id int"))
    with pytest.raises(UnknownCollection, match="'its'") as caught:
        place.registry.get("its")
    assert caught.value.hint == "did you mean 'it'?"


def test_of_two_changes_of_the_registry_one_has_to_look_again(place: Home) -> None:
    apply(place, table("id int"))
    seen = place.registry.read()
    declaration = place.registry.get("it")
    place.registry.replace([declaration.model_copy(update={"tags": ("a",)})], seen=seen)
    with pytest.raises(CatalogOutOfSync):
        place.registry.replace([declaration.model_copy(update={"tags": ("b",)})], seen=seen)
    assert place.registry.get("it").tags == ("a",)
    assert len(place.registry.read().texts) == 1


@pytest.mark.crash
@pytest.mark.parametrize("point", FAIL_POINTS)
def test_an_apply_that_dies_is_completed_by_a_rerun(place: Home, point: str) -> None:
    apply(place, table("id int, x string"))
    place.declarations.write_text(
        HEAD + table("id bigint, x string") + "  other: {kind: append-only, schema: 'a int'}\n"
    )
    environ = {**os.environ, "TIDEMARK_HOME": str(place.settings.home), "TIDEMARK_FAIL_POINT": point}
    command = [sys.executable, "-m", "tidemark", "apply", str(place.declarations)]
    died = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert died.returncode == FAIL_POINT_EXIT, f"{point} was never reached: {died.stderr}"
    del environ["TIDEMARK_FAIL_POINT"]
    again = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert again.returncode == ExitCode.OK, again.stderr
    assert columns(place) == "id bigint, x string"
    assert sorted(place.registry.read().declarations) == ["it", "other"]
    assert apply(place) == []
