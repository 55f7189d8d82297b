"""Apply: creates, evolves, refuses; idempotent, all or nothing, and completed by a rerun after a crash."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.apply.execute import FAIL_POINTS, Application, read_stored
from tidemark.collections.apply.inspect_source import SourceInspector
from tidemark.collections.apply.plan import ApplyPlan, choose_buckets
from tidemark.collections.declarations.files import load_declarations
from tidemark.collections.schema.types import columns_text
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
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

HEAD = "version: 1\ncollections:\n"


def no_spark() -> NoReturn:
    raise AssertionError("Spark is not to be asked")


@dataclass
class Installation:
    """One home, and a folder with a declaration file."""

    settings: Settings
    folder: Path
    spark: SparkSession | None = None

    def __post_init__(self) -> None:
        self.shards = Shards.connect(self.settings)
        self.registry = deployment_of(self.settings).registry

    def application(self, generation: int = 1) -> Application:
        return Application(
            shards=self.shards,
            registry=deployment_of(replace(self.settings, generation=generation), who="w").registry,
            inspector=SourceInspector(self.shards, self.settings, lambda: self.spark or no_spark()),
            generation=generation,
        )

    def write(self, text: str) -> None:
        (self.folder / "d.yaml").write_text(HEAD + text)

    def apply(self, text: str | None = None, *, generation: int = 1) -> list[str]:
        """Apply the file (``text`` first goes into it) and return what was done."""
        if text is not None:
            self.write(text)
        return said(self.application(generation).run(load_declarations([self.folder / "d.yaml"])))

    def columns(self, name: str = "it") -> str:
        return columns_text(read_stored(self.shards.open(name).load().table).columns)


def said(plan: ApplyPlan) -> list[str]:
    return [f"{step.name}: {step}" for step in plan.steps]


@pytest.fixture
def place(home: Settings, tmp_path: Path) -> Installation:
    return Installation(home, tmp_path)


def table(columns: str, more: str = "") -> str:
    return (
        "  it:\n    kind: differential\n    key: [id]\n"
        f"    schema: '{columns}'\n    source: {{format: json, path: it.json}}\n{more}"
    )


def test_apply_creates_then_finds_nothing_to_do(place: Installation) -> None:
    assert place.apply(table("id int, x string")) == [
        "it: create differential collection, key id: id int, x string",
        "it: register the declaration",
    ]
    assert place.apply() == []
    assert place.registry.get("it").key == ("id",)
    head = place.shards.open("it").load()
    assert head.state.upper == 0
    assert [field.name for field in head.table.schema().fields] == ["id", "x", "_time", "_diff"]


def test_a_plan_changes_nothing(place: Installation) -> None:
    place.write(table("id int"))
    plan = place.application().plan(load_declarations([place.folder / "d.yaml"]))
    assert [step["action"] for step in plan.to_json()["steps"]] == ["create", "register"]
    assert place.shards.names() == []
    assert place.registry.read().declarations == {}


def test_append_only_collections_are_created_too(place: Installation) -> None:
    place.apply("  it: {kind: append-only, schema: 'a int'}\n")
    schema = place.shards.open("it").load().table.schema()
    assert [field.name for field in schema.fields] == ["a", "_producer", "_batch"]


def test_columns_evolve_and_rows_stay(place: Installation) -> None:
    place.apply(table("id int, x string, f float, d decimal(5,2), gone int"))
    shard = place.shards.open("it")
    head = shard.load()
    rows = pa.table(
        {"id": pa.array([1], pa.int32()), "x": ["a"], "f": pa.array([1.5], pa.float32()),
         "d": pa.array([None], pa.decimal128(5, 2)), "gone": pa.array([7], pa.int32()), "_time": [0], "_diff": [1]}
    )  # fmt: skip
    batch = Batch(added=tuple(write_rows(head.table, rows)), schema_id=head.table.schema().schema_id)
    Writer.join(shard, 1).publish(batch, lower=0, new_upper=1)
    done = place.apply(
        table("id bigint, y string, f double, d decimal(9,2), new date, `n.m` int", "    renames: {x: y}\n")
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
    assert place.columns() == "id bigint, y string, f double, d decimal(9,2), new date, `n.m` int"
    assert [field.name for field in shard.load().table.schema().fields][-2:] == ["_time", "_diff"]
    assert read_arrow(shard).to_pylist() == [{"id": 1, "y": "a", "f": 1.5, "d": None, "new": None, "n.m": None}]
    assert place.apply() == []
    assert shard.load().state.upper == 1


def test_a_batch_made_for_the_old_columns_cannot_be_published_any_more(place: Installation) -> None:
    from tidemark.errors import InputsGone

    place.apply(table("id int"))
    shard = place.shards.open("it")
    writer, head = Writer.join(shard, 1), shard.load()
    rows = pa.table({"id": pa.array([1], pa.int32()), "_time": [0], "_diff": [1]})
    batch = Batch(added=tuple(write_rows(head.table, rows)), schema_id=head.table.schema().schema_id)
    place.apply(table("id bigint"))
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
def test_incompatible_changes_are_refused_and_nothing_is_changed(place: Installation, text: str, said_: str) -> None:
    place.apply(table("id int, x string"))
    other = text + "  other: {kind: append-only, schema: 'a int'}\n"
    with pytest.raises(IncompatibleChange, match=said_):
        place.apply(other)
    assert place.shards.names() == ["it"]
    assert place.columns() == "id int, x string"


def test_a_source_that_became_narrower_still_fits_and_a_vanished_column_is_no_order_to_drop(
    place: Installation,
) -> None:
    text = "  it: {kind: differential, key: [id], source: {format: parquet, path: t}}\n"
    (place.folder / "t").mkdir()
    pq.write_table(pa.table({"id": [1], "x": ["a"]}), place.folder / "t/a.parquet")
    place.apply(text)
    assert place.columns() == "id bigint, x string"
    pq.write_table(pa.table({"id": pa.array([1], pa.int32()), "x": ["a"], "z": [1.5]}), place.folder / "t/a.parquet")
    assert place.apply() == ["it: add column z double"]
    pq.write_table(pa.table({"id": [1], "z": [1.5]}), place.folder / "t/a.parquet")
    with pytest.raises(IncompatibleChange, match="its source no longer has the column 'x'"):
        place.apply()


def test_csv_columns_come_from_its_header_and_are_fixed_by_apply(place: Installation) -> None:
    (place.folder / "t.csv").write_text("id,x\n1,a\n")
    place.apply("  it: {kind: differential, key: [id], source: {format: csv, path: t.csv, options: {header: true}}}\n")
    assert place.columns() == "id string, x string"
    assert place.registry.get("it").to_json()["source"]["schema"] == "id string, x string"
    assert place.apply() == []


def test_sources_that_tell_nothing_are_refused(place: Installation) -> None:
    text = "  it: {kind: differential, key: [id], source: {format: parquet, path: t.parquet}}\n"
    with pytest.raises(InputMissing):
        place.apply(text)
    (place.folder / "t.parquet").write_text("not parquet")
    with pytest.raises(Refused, match="no readable Parquet file"):
        place.apply()
    pq.write_table(pa.table({"x": [1]}), place.folder / "t.parquet")
    with pytest.raises(ConfigurationInvalid, match=r"d\.yaml:3: collection 'it': `key` names 'id'"):
        place.apply()
    assert place.shards.names() == []


def test_a_collection_takes_the_columns_of_the_one_it_copies_in_the_same_apply(place: Installation) -> None:
    place.apply("  copy: {kind: differential, key: [id], source: {collection: it}}\n" + table("id int, x string"))
    assert place.columns("copy") == "id int, x string"
    done = place.apply(
        "  copy: {kind: differential, key: [id], source: {collection: it}}\n" + table("id int, x string, y date")
    )
    assert done[:2] == ["it: add column y date", "copy: add column y date"]


@pytest.mark.spark
def test_spark_tells_the_columns_of_queries_even_over_collections_that_are_not_there_yet(
    home: Settings, home_spark: SparkSession, tmp_path: Path
) -> None:
    place = Installation(home, tmp_path, home_spark)
    (tmp_path / "t/day=2013-01-01").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}), tmp_path / "t/day=2013-01-01/a.parquet")
    text = table("id int, x string") + (
        "  sum:\n    kind: differential\n    source:\n      inputs: {it: {collection: it}}\n"
        "      sql: SELECT x, count(*) AS n, sum(id) AS s FROM it GROUP BY x\n"
        "  days:\n    kind: differential\n    key: [id, day]\n"
        "    source: {format: parquet, path: t}\n    scope: {column: day, every: day}\n"
    )
    place.apply(text)
    assert place.columns("sum") == "x string, n bigint, s bigint"
    assert place.columns("days") == "id bigint, day date"
    assert place.apply() == []


def test_the_size_of_the_source_chooses_the_buckets() -> None:
    megabyte = 1024 * 1024
    sizes = [None, 0, 127 * megabyte, 128 * megabyte, 300 * megabyte, 10_000 * megabyte, 10**18]
    assert [choose_buckets(size) for size in sizes] == [1, 1, 1, 2, 4, 128, 4096]


def test_declared_buckets_are_made(place: Installation) -> None:
    place.apply(table("id int, x string", "    buckets: 8\n"))
    assert read_stored(place.shards.open("it").load().table).buckets == 8
    assert place.apply(table("id int, x string")) == ["it: change buckets"], "nothing declared: it stays as it is"


def test_a_newer_deployment_owns_its_tables(place: Installation) -> None:
    place.apply(table("id int"))
    Writer.raise_token(place.shards.open("it"), 2)
    with pytest.raises(FencedByGeneration):
        place.apply(table("id bigint"))
    assert place.columns() == "id int"


# -- the registry --------------------------------------------------------------------------------------------------


def test_the_registry_is_empty_before_anything_is_applied_and_knows_near_matches(place: Installation) -> None:
    assert place.registry.read().declarations == {}
    place.apply(table("id int"))
    with pytest.raises(UnknownCollection, match="'its'") as caught:
        place.registry.get("its")
    assert caught.value.hint == "did you mean 'it'?"


def test_of_two_changes_of_the_registry_one_has_to_look_again(place: Installation) -> None:
    place.apply(table("id int"))
    seen = place.registry.read()
    declaration = place.registry.get("it")
    place.registry.replace([declaration.model_copy(update={"tags": ("a",)})], seen=seen)
    with pytest.raises(CatalogOutOfSync):
        place.registry.replace([declaration.model_copy(update={"tags": ("b",)})], seen=seen)
    assert place.registry.get("it").tags == ("a",)
    assert len(place.registry.read().texts) == 1


@pytest.mark.crash
@pytest.mark.parametrize("point", FAIL_POINTS)
def test_an_apply_that_dies_is_completed_by_a_rerun(place: Installation, point: str) -> None:
    place.apply(table("id int, x string"))
    place.write(table("id bigint, x string") + "  other: {kind: append-only, schema: 'a int'}\n")
    environ = {**os.environ, "TIDEMARK_HOME": str(place.settings.home), "TIDEMARK_FAIL_POINT": point}
    command = [sys.executable, "-m", "tidemark", "apply", str(place.folder / "d.yaml")]
    died = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert died.returncode == FAIL_POINT_EXIT, f"{point} was never reached: {died.stderr}"
    del environ["TIDEMARK_FAIL_POINT"]
    again = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert again.returncode == ExitCode.OK, again.stderr
    assert place.columns() == "id bigint, x string"
    assert sorted(place.registry.read().declarations) == ["it", "other"]
    assert place.apply() == []
