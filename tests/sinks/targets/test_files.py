"""Parquet files: what a manifest names is the collection, or the log of its changes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.sinks.changes import change
from tests.sinks.foreign_readers import arrow_rows, duckdb_rows, read_manifest
from tidemark.exit_codes import ExitCode
from tidemark.report import Outcome

if TYPE_CHECKING:
    from tests.support.homes import Home


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def sinking(carrying: Home) -> Home:
    change(carrying, put={0: "a", 1: "b", 2: None})
    return carrying


def test_the_first_run_loads_and_the_next_ones_carry_changes(sinking: Home, folder: Path) -> None:
    sinking.declare_sink(to={"path": str(folder)})
    loaded = sinking.run_sink()
    assert loaded.error is None
    assert (loaded.outcome, loaded.inserted) == (Outcome.CARRIED, 3)
    assert duckdb_rows(folder) == [(0, "a"), (1, "b"), (2, None)]
    change(sinking, put={1: "B", 3: "c"}, delete=(0,))
    carried = sinking.run_sink()
    assert carried.error is None
    assert duckdb_rows(folder) == [(1, "B"), (2, None), (3, "c")]
    assert sinking.run_sink().outcome is Outcome.UNCHANGED


@pytest.mark.parametrize("partition", [[], ["name"], ["id"], ["name", "id"]])
def test_the_files_equal_the_collection_after_any_changes(sinking: Home, folder: Path, partition: list[str]) -> None:
    sinking.declare_sink(to={"path": str(folder), "partition": partition})
    chance = random.Random(15)
    for _ in range(10):
        ids = chance.sample(range(8), 4)
        change(sinking, put={id_: chance.choice(["x", "y/z", "", None]) for id_ in ids[:3]}, delete=(ids[3],))
        if chance.random() < 0.6:
            assert sinking.run_sink().error is None
            assert sorted(arrow_rows(folder), key=repr) == sorted([tuple(row.values()) for row in sinking.user_rows("events")], key=repr)
    assert sinking.run_sink().error is None
    assert duckdb_rows(folder) == sorted([tuple(row.values()) for row in sinking.user_rows("events")], key=repr)
