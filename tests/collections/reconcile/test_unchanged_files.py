"""A run that follows files opens none that has not changed: here nobody could read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.file_sets import SCHEMA, FileSet
from tidemark.collections.reconcile.following import replaced_files
from tidemark.collections.reconcile.strategy import Method
from tidemark.collections.sources import file_listing
from tidemark.errors import SchemaMismatch
from tidemark.report import FALLBACK, FILES

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.collections.sources.file_listing import FileState
    from tidemark.settings import Settings

pytestmark = pytest.mark.spark

GARBAGE = {"json": "{garbage\n", "csv": "k,v\nno number,x,y\n"}  # of a CSV file each run reads the header


@pytest.fixture(autouse=True)
def _follow_any_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaced_files, "MOST_SHARE", 100.0)
    monkeypatch.setattr(replaced_files, "LEAST_SPARED", 0)


def make(home: Settings, spark: SparkSession, folder: Path, form: str, **rows: list[Any]) -> FileSet:
    files = FileSet(home, spark, folder, form=form, source={"schema": SCHEMA})
    for name, some in rows.items():
        files.write(name, some)
    files.start()
    assert files.run().strategy == Method.LOAD
    return files


@pytest.mark.parametrize("form", ["csv", "json"])
def test_files_that_have_not_changed_are_not_opened(
    home: Settings, home_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    files = make(home, home_spark, tmp_path, form, a=[(1, "a")], b=[(2, "b"), (3, "c")], c=[(4, "d"), (5, "e")])
    path, state_of = files.folder / f"a.{form}", file_listing._state
    whole = state_of(str(path), path.stat())
    path.write_text(GARBAGE[form], encoding="utf-8")

    def look(name: str, stat: os.stat_result) -> FileState:
        return whole if name == str(path) else state_of(name, stat)

    monkeypatch.setattr(file_listing, "_state", look)
    files.write("b", [(2, "B")])
    files.write("c", [(4, None), (5, None)])
    files.write("d", [(6, None)])
    report = files.run()
    assert (report.strategy, report.details.get(FALLBACK)) == (Method.CHANGED_FILES, None)
    assert report.details[FILES] == {"added": 1, "removed": 0, "replaced": 2}
    assert {row[0] for row in files.stored()} == {1, 2, 4, 5, 6}


def test_a_column_that_vanishes_with_a_changed_file_is_refused(
    home: Settings, home_spark: SparkSession, tmp_path: Path
) -> None:
    files = make(home, home_spark, tmp_path, "json", a=[(1, "a"), (2, "b")], b=[(3, "c")], c=[(4, None)])

    def write(name: str, *lines: str) -> None:
        (files.folder / f"{name}.json").write_text("\n".join([*lines, ""]), encoding="utf-8")

    write("c", '{"k": 4}')
    assert files.run().strategy == Method.CHANGED_FILES
    write("a", '{"k": 1}', '{"k": 2}')
    assert files.run().strategy == Method.CHANGED_FILES, "an unchanged file has values"
    write("b", '{"k": 3}')
    with pytest.raises(SchemaMismatch, match="lacks the column 'v'"):
        files.run()
    write("b", '{"k": 3, "v": null}')
    assert files.run().strategy == Method.CHANGED_FILES
    assert dict(files.stored()) == {(1, None): 1, (2, None): 1, (3, None): 1, (4, None): 1}
