"""A home whose name has a character that a URI, a shell or a driver could take for something else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import duckdb
import polars
import pytest

from tests.conftest import settings_in
from tests.support.homes import Home
from tidemark.catalog.migration.stash_rows import stash_rows
from tidemark.cli.app import app
from tidemark.collections.sources.opened_source import OpenedSource
from tidemark.collections.sources.scratch_folder import scratch_folder
from tidemark.exit_codes import ExitCode
from tidemark.spark.session import spark_session

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ODD = [
    *("my home", "u\N{COMBINING DIAERESIS}日本\N{WATER WAVE}", "a%2Fb", "a&b=c;d", 'it\'s "$HOME"'),
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            *(" first", "last ", "-dash", "~", "ü", "a%b", "a%20b", "100%", "a+b", "a&b", "a=b", "a;b", "a@b"),
            *("it's", 'say "x"', "$HOME (x)!", "a|b<c>^`"),
        )
    ),
]
REFUSED = "?#*[]{}\\,:\n\t\x7f\udcff"
EVENTS = 'version: 1\ncollections:\n  ev: {kind: append-only, schema: "id bigint"}\n'
PAIRS = """
version: 1
collections:
  pairs:
    kind: differential
    key: [k]
    guards: {max_delete_ratio: 1}
    source: {format: csv, path: FILE, schema: "k int, v string", options: {header: true}}
"""


class Tidemark:
    """The command line in this process, with a home of the name ``name``."""

    def __init__(
        self, folder: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.folder, self.home, self._capsys = folder, folder / name, capsys
        monkeypatch.setenv("TIDEMARK_HOME", str(self.home))

    def __call__(self, *arguments: str) -> Any:
        self._capsys.readouterr()
        assert app([*arguments, "--json"]) == ExitCode.OK, arguments
        return json.loads(self._capsys.readouterr().out)

    def append(self, start: int, end: int) -> str:
        path = self.folder / "ids.csv"
        path.write_text("\n".join(["id", *map(str, range(start, end))]) + "\n")
        answer = self("append", "ev", str(path), "--producer", "p", "--range", f"{start}:{end}")
        return str(answer["collections"]["ev"]["outcome"])

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self("read", "ev")["rows"])


@pytest.mark.parametrize("name", ODD)
def test_collections_live_in_a_home_with_an_odd_name(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tidemark = Tidemark(tmp_path, name, capsys, monkeypatch)
    (declared := tmp_path / "collections.yaml").write_text(EVENTS)
    tidemark("init")
    tidemark("apply", str(declared))
    assert tidemark.append(0, 2) == "appended"
    tidemark("mode", "read-only", "--why", "a test")
    assert [tidemark.append(2, 4), tidemark.append(4, 6)] == ["staged", "staged"]
    assert len(tidemark("staged")["batches"]) == 2
    tidemark("discard", "ev", "--range", "4:6", "--why", "a test")
    tidemark("mode", "read-write")
    tidemark("flush")
    assert tidemark("show", "ev")["rows"] == 4
    assert tidemark.ids() == [0, 1, 2, 3]
    assert [(each["name"], each["rows"]) for each in tidemark("collections")["collections"]] == [("ev", 4)]
    assert tidemark("doctor")["ok"]
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(["collections.yaml", "ids.csv", name])
    assert sorted(each.name for each in tidemark.home.iterdir()) == ["catalog.db", "reports", "stash.db", "warehouse"]


@pytest.mark.parametrize("name", ODD)
def test_the_catalog_moves_there_and_back_in_a_home_with_an_odd_name(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tidemark = Tidemark(tmp_path, name, capsys, monkeypatch)
    tidemark("init")
    tidemark("catalog", "migrate")
    assert tidemark("catalog", "status")["truth"] == "persist"
    tidemark("catalog", "rollback")
    assert tidemark("catalog", "status")["truth"] == "stash"
    assert [each.name for each in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("variable", "odd"),
    [
        *(("TIDEMARK_HOME", odd) for odd in REFUSED),
        *((variable, "?") for variable in ("TIDEMARK_WAREHOUSE", "TIDEMARK_CATALOG_URI", "TIDEMARK_STASH_URI")),
    ],
    ids=ascii,
)
def test_a_character_that_an_engine_cannot_read_is_refused_before_anything_is_written(
    odd: str, variable: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path / "home"))
    place = tmp_path / f"a{odd}b" / "x"
    monkeypatch.setenv(variable, f"sqlite:///{place}" if variable.endswith("URI") else str(place))
    for command in ("init", "collections", "doctor"):
        assert app([command]) == ExitCode.CONFIGURATION
        said = capsys.readouterr().err
        assert f"contains {odd!r}" in said
        assert variable in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
@pytest.mark.parametrize("name", ["my home", "a%20b=c", "ü; 'x' & 日本"])
def test_spark_reconciles_and_everybody_reads_in_a_home_with_an_odd_name(
    name: str, tmp_path: Path, jvm: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("comparison.candidates_fit_driver", "comparison.fits_driver", "spark_corrections.fits_driver"):
        monkeypatch.setattr(f"tidemark.collections.reconcile.{place}", lambda *_, **__: False)  # as if it were large
    tidemark = Tidemark(tmp_path, name, capsys, monkeypatch)
    settings = settings_in(tidemark.home)
    (declared := tmp_path / "collections.yaml").write_text(
        PAIRS.replace("FILE", json.dumps(str(tidemark.home / "pairs.csv")))
    )
    (file := tidemark.home / "pairs.csv").parent.mkdir()
    file.write_text("k,v\n" + "".join(f"{key},old\n" for key in range(4)))
    tidemark("init")
    tidemark("apply", str(declared))
    assert tidemark("plan")["collections"]["pairs"]["inserted"] == 4
    assert tidemark("reconcile")["collections"]["pairs"]["inserted"] == 4
    file.write_text("k,v\n" + "".join(f"{key},new\n" for key in range(2, 6)))
    assert tidemark("reconcile")["collections"]["pairs"]["retracted"] == 4
    wanted = {(key, "new") for key in range(2, 6)}
    table = Home(settings).shard("pairs").load().table
    assert {(row["k"], row["v"]) for row in table.scan().to_arrow().to_pylist()} == wanted
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    assert set(polars.scan_iceberg(table).select("k", "v").collect().iter_rows()) == wanted
    with duckdb.connect() as connection:
        data = [task.file.file_path for task in table.scan().plan_files()]
        assert connection.execute("SELECT count(*) >= 4 FROM read_parquet(?)", [data]).fetchone() == (True,)
    with spark_session(settings, app_name="odd") as spark:
        rows = spark.sql("SELECT k, v FROM tidemark.collections.pairs").collect()
        assert {tuple(row) for row in rows} == wanted
        assert stash_rows(spark, settings).count() > 0
        with scratch_folder(spark, settings) as scratch:
            source = OpenedSource(where="pairs", desired=spark.createDataFrame(rows), pinnable=False)
            assert source.materialise(scratch).desired.count() == 4
    tidemark("compact", "pairs")
    assert tidemark("doctor", "--deep")["ok"]
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(["collections.yaml", name])
