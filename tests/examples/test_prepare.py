"""The demo's data: all rows, NULLs as NULLs, keys that are keys, and edits that do what they say."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from examples.edits import edit_sources
from examples.prepare import EVENTS, TABLES, load_table, main, prepare, read_table
from tidemark.collections.declarations.files import load_declarations

pytestmark = pytest.mark.slow  # writes and reads every row of the demo

ROWS = {"airlines": 16, "airports": 1458, "flights": 336_776, "planes": 3322, "weather": 26_115}
UNIQUE = {
    "airlines": ["carrier"],
    "airports": ["faa"],
    "flights": ["flight_date", "carrier", "flight", "origin"],
    "planes": ["tailnum"],
    "weather": ["origin", "time_hour"],
}
NULLS = {
    "airports": {"tzone": 3},
    "flights": {"dep_time": 8255, "dep_delay": 8255, "arr_time": 8713, "arr_delay": 9430, "tailnum": 2512},
    "planes": {"year": 70, "speed": 3299},
    "weather": {"temp": 1, "wind_dir": 460, "wind_gust": 20_778, "pressure": 2729},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    prepare(folder)
    return folder


def test_the_command_says_what_it_wrote_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["prepare", str(tmp_path)])
    assert main() == 0
    declarations, data = tmp_path / "collections.yaml", tmp_path / "data"
    sources = "airlines, airports, flights, planes, weather, weather_events"
    assert capsys.readouterr().out == f"Wrote {declarations}, and below {data} the sources {sources}\n"
    assert declarations.is_file()
    assert {path.stem for path in data.iterdir()} == set(sources.split(", "))


def in_order(table: pa.Table, name: str) -> pa.Table:
    return table.sort_by([(column, "ascending") for column in UNIQUE[name]])


def read_source(path: Path) -> pa.Table:
    if path.is_dir():
        return pa.concat_tables(read_table(file) for file in sorted(path.iterdir()))
    return read_table(path)


def sources(folder: Path) -> dict[str, pa.Table]:
    return {name: read_source(Path(declaration.source.path)) for name, declaration in declared_in(folder).items()}


def declared_in(folder: Path) -> dict[str, Any]:
    return load_declarations([folder]).by_name


def in_january(tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """The flights of January alone: the other months are files of their own, which nobody edits."""
    return tables | {"flights": tables["flights"].filter(pc.field("month") == 1)}


@pytest.mark.parametrize("name", TABLES)
def test_what_is_written_is_what_the_package_holds(folder: Path, name: str) -> None:
    table, packaged = sources(folder)[name], load_table(name)
    assert table.num_rows == ROWS[name]
    assert table.schema.equals(packaged.schema)
    assert {column: table[column].null_count for column in NULLS.get(name, {})} == NULLS.get(name, {})
    assert in_order(table, name).equals(in_order(packaged, name))


def test_events_are_the_same_observations(folder: Path) -> None:
    events = sources(folder)[EVENTS]
    assert in_order(events, "weather").equals(in_order(load_table("weather"), "weather"))


def test_the_declared_keys_are_keys(folder: Path) -> None:
    declared = declared_in(folder)
    assert set(declared) == {*TABLES, EVENTS}
    for name, table in sources(folder).items():
        if key := declared[name].key:
            groups = table.group_by(list(key)).aggregate([])
            assert groups.num_rows == table.num_rows, f"{key} of {name}"
            assert not any(table[column].null_count for column in key)


def test_edits_do_what_they_say(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    before = in_january(sources(tmp_path))
    edits = {edit.collection: edit for edit in edit_sources(tmp_path / "data")}
    for name, table in in_january(sources(tmp_path)).items():
        old, new = (Counter(map(str, rows.to_pylist())) for rows in (before[name], table))
        inserted, retracted = (new - old).total(), (old - new).total()
        expected = (edits[name].inserted, edits[name].retracted) if name in edits else (0, 0)
        assert (inserted, retracted) == expected, name
    assert set(edits) == set(TABLES) - {"airports"}
