"""The Python that the pages show runs as it stands, and says what is stored."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField, StringType

from tests.sinks.foreign_readers import read_manifest
from tests.support.events import create_events, switch
from tests.support.homes import Home
from tidemark.collections.declarations.lifecycle import LifecycleRules
from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.collections.deployment import Mode
from tidemark.collections.sources.formats.buffer import MOST_ENTRIES
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.shards import Shards
from tidemark.settings import PROJECT_ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

PLANES = Schema(
    NestedField(1, "tailnum", StringType()),
    NestedField(2, "manufacturer", StringType()),
    NestedField(3, "seats", IntegerType()),
)
PAGES = sorted(PROJECT_ROOT.glob("*.md")) + sorted((PROJECT_ROOT / "docs").glob("*.md"))


def page_text(page: str) -> str:
    return (PROJECT_ROOT / "docs" / page).read_text(encoding="utf-8")


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page_text(page), re.DOTALL)


@pytest.fixture
def planes(home: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A home with four planes, which came in two steps."""
    shard = Shards.connect(home).create("planes", schema=PLANES, key=["tailnum"])
    writer = Writer.join(shard, home.generation)
    columns = {"tailnum": pa.string(), "manufacturer": pa.string(), "seats": pa.int32(), "_time": pa.int64()}
    for lower, tailnums in ((0, ["N1", "N2", "N3"]), (10, ["N4"])):
        rows = [dict(zip(columns, (tailnum, "BOEING", 100, lower), strict=True)) | {"_diff": 1} for tailnum in tailnums]
        table = pa.Table.from_pylist(rows, schema=pa.schema(columns | {"_diff": pa.int64()}))
        batch = Batch(added=tuple(write_rows(shard.load().table, table)))
        writer.publish(batch, lower=lower, new_upper=lower + 10)
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    return home


@pytest.mark.usefixtures("planes")
def test_readers_without_a_jvm_see_the_rows() -> None:
    shown: dict[str, Any] = {}
    for block in python_blocks("reading.md")[:3]:
        exec(block, shown)  # noqa: S102 -- our own page
    assert shown["planes"].num_rows == 4
    assert shown["answer"] == [("BOEING", 400)]
    assert sorted(shown["frame"]["tailnum"]) == ["N1", "N2", "N3", "N4"]


@pytest.mark.spark
@pytest.mark.usefixtures("planes", "jvm")
def test_spark_reads_now_then_and_the_changes() -> None:
    shown: dict[str, Any] = {}
    exec(python_blocks("reading.md")[3], shown)  # noqa: S102 -- our own page
    assert (shown["now"], shown["before"]) == (4, 4)
    assert [tuple(row) for row in shown["corrections"]] == [(1, 4)]
    log = shown["spark"].table("tidemark.collections.planes.branch_updates").where("_time >= 10 AND _time < 20")
    assert [row["tailnum"] for row in log.collect()] == ["N4"], "docs/following-changes.md: any engine can read it"


@pytest.mark.usefixtures("planes")
def test_a_job_holds_history_while_it_reads() -> None:
    shown: dict[str, Any] = {}
    (block,) = python_blocks("following-changes.md")
    exec(block, shown)  # noqa: S102 -- our own page
    assert (shown["before"].num_rows, shown["updates"]["tailnum"].to_pylist()) == (3, ["N4"])
    assert shown["planes"].load().state.holds == {}, "the hold has ended with the block"


def test_a_program_reads_and_appends(planes: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    switch(planes, Mode.READ_WRITE)
    create_events(planes)
    shown: dict[str, Any] = {}
    first, once, *rest = (block for block in python_blocks("library.md") if "reconcile_frame" not in block)
    exec(first, shown)  # noqa: S102 -- our own page
    assert shown["rows"].num_rows == 4
    for _ in range(2):
        exec(once, shown)  # noqa: S102 -- our own page
    assert capsys.readouterr().out == "appended 2\nskipped 0\n"
    for block in rest:
        exec(block, shown)  # noqa: S102 -- our own page
    assert capsys.readouterr().out == "appended 2\n"


@pytest.mark.spark
def test_a_program_hands_rows_over(
    home: Settings, home_spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = Home(home)
    (declared,) = re.findall(r"```yaml\n(.*?)```", page_text("library.md"), re.DOTALL)
    opened.declare(f"version: 1\n{declared}")
    (block,) = (block for block in python_blocks("library.md") if "reconcile_frame" in block)
    exec(block, {"settings": home, "deployment": opened.deployment})  # noqa: S102 -- our own page
    assert capsys.readouterr().out == "corrected 2 0\ncorrected 2 1 changes\n"
    assert opened.tuples("prices") == [("a", Decimal("1.00")), ("b", Decimal("2.75")), ("c", Decimal("9.00"))]


def test_the_latest_row_of_each_key_is_declared_as_shown(home: Settings, tmp_path: Path) -> None:
    page = (PROJECT_ROOT / "docs" / "write-buffer.md").read_text(encoding="utf-8")
    found = re.search(r"## The latest row per key\n.*?```yaml\n(.*?)```", page, re.DOTALL)
    assert found
    opened = Home(replace(home, connections={"TIDEMARK_BUFFER_ORDERS": (tmp_path / "buffer").as_uri()}), tmp_path)
    opened.send(0, b'{"id": 1, "customer": "a", "total": "1.50"}', b'{"id": 2, "customer": "b"}')
    opened.send(0, b'{"id": 2, "op": "delete"}')
    opened.declare(found[1])
    opened.ingest("orders")
    assert opened.tuples("orders") == [(1, "a", Decimal("1.50"))]


def test_what_storage_workers_run_is_declared_as_shown(home: Settings, tmp_path: Path) -> None:
    found = re.search(r"<<END\n(.*?)END\n", page_text("storage.md"), re.DOTALL)
    assert found
    opened = Home(replace(home, connections={"TIDEMARK_BUFFER_SHOP": (tmp_path / "buffer").as_uri()}), tmp_path)
    opened.send(0, b'{"_table": "orders", "id": 1, "amount": 9.5}')
    opened.declare(found[1])
    assert opened.registry.read().paced == ["orders", "copies"]
    opened.ingest("orders")
    opened.run_sink("copies")
    assert opened.tuples("orders") == [(1, 9.5)]
    assert [file["rows"] for file in read_manifest(tmp_path / "copies")["files"]] == [1]


def test_the_rules_of_a_lifecycle_are_all_there_with_their_defaults() -> None:
    page = (PROJECT_ROOT / "docs" / "declare.md").read_text(encoding="utf-8")
    told = re.findall(
        r"^\| `(\w+)` \| (.+?) \|", page.partition("### Lifecycle rules")[2].partition("\n## ")[0], re.MULTILINE
    )
    defaults = LifecycleRules().model_dump(mode="json")
    texts = {
        name: "none" if value is None else f"`{json.dumps(value).strip(chr(34))}`" for name, value in defaults.items()
    }
    assert dict(told) == texts


def test_the_page_on_sinks_has_all_fields_of_a_declaration_and_their_defaults() -> None:
    told = dict(re.findall(r"^\| `(\w+)[`:].*?(?:default `?(\w+)`?)? \|$", page_text("sinks.md"), re.MULTILINE))
    fields = {info.alias or name: info.get_default() for name, info in SinkDeclaration.model_fields.items()}
    assert [name for name in fields if name not in {*told, "name"}] == []
    assert {name: told[name] for name in ("warn_after", "spark_from_rows")} == {
        name: str(fields[name]) for name in ("warn_after", "spark_from_rows")
    }


def test_the_table_of_what_runs_all_the_time_has_the_defaults() -> None:
    assert f"| `source.most_entries`, beside `every` | `{MOST_ENTRIES}` |" in page_text("declare.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link, place in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        target = page.parent / link if link else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not place or place in headings(target), f"{page.name} links to {place!r} of {target.name}"


def headings(page: Path) -> set[str]:
    """Return the anchors of the headings."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_readers_are_sent_to_public_names_alone(page: Path) -> None:
    """Modules move; what a program or a DAG imports is in ``tidemark`` itself, or in ``tidemark.orchestration``."""
    for first, second in re.findall(r"\btidemark\.(\w+)\.(\w+)", page.read_text(encoding="utf-8")):
        module = PROJECT_ROOT / "include" / "tidemark" / first / second
        is_private = first != "orchestration" and (module.is_dir() or module.with_suffix(".py").exists())
        assert not is_private, f"{page.name} names tidemark.{first}.{second}"
