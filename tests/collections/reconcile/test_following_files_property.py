"""Whatever happens to the files of a source: what a run finds in the changed ones is what a full run finds in all."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.exploration import explore
from tests.support.file_sets import SCHEMA, FileSet
from tests.support.twins import compact_collections, die, write_elsewhere
from tidemark.collections.reconcile.following import replaced_files
from tidemark.collections.reconcile.strategy import Method

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

pytestmark = pytest.mark.spark

KEYS = st.sampled_from([19, *range(19)])
LEAST_SHARE = 0.4  # of the runs that find the changes in the files
CONDITIONS = (None, None, "k % 3 <> 1", "v <> 'b'")


def any_file(files: FileSet, data: st.DataObject) -> str:
    return data.draw(st.sampled_from(sorted(files.rows)), label="file")


def draw_rows(files: FileSet, data: st.DataObject, *, most: int = 4) -> list[tuple[int, str]]:
    """Return rows whose keys are in no file, if there is a key."""
    is_keyed = bool(files.declared["key"])
    present = {key for rows in files.rows.values() for key, _ in rows} if is_keyed else set()
    keys = data.draw(st.lists(KEYS, min_size=1, max_size=most, unique=is_keyed), label="keys")
    return [(key, data.draw(st.sampled_from("abc"))) for key in keys if key not in present]


def add(files: FileSet, data: st.DataObject) -> None:
    files.write(f"new{len(files.rows)}-{data.draw(st.integers(0, 9))}", draw_rows(files, data))


def add_rows(files: FileSet, data: st.DataObject) -> None:
    name = any_file(files, data)
    files.write(name, [*files.rows[name], *draw_rows(files, data)])


def change(files: FileSet, data: st.DataObject) -> None:
    name, value, least = any_file(files, data), data.draw(st.sampled_from("abc")), data.draw(KEYS)
    files.write(name, [(key, value if key is not None and key >= least else old) for key, old in files.rows[name]])


def take_rows(files: FileSet, data: st.DataObject) -> None:
    name, step = any_file(files, data), data.draw(st.integers(1, 3))
    files.write(name, [row for number, row in enumerate(files.rows[name]) if number % step])


def rewrite(files: FileSet, data: st.DataObject) -> None:
    name = any_file(files, data)
    files.write(name, files.rows[name][::-1])


def touch(files: FileSet, data: st.DataObject) -> None:
    files.touch(any_file(files, data))


def remove(files: FileSet, data: st.DataObject) -> None:
    if len(files.rows) > 1:
        files.remove(any_file(files, data))


def rename(files: FileSet, data: st.DataObject) -> None:
    files.rename(any_file(files, data), f"renamed{data.draw(st.integers(0, 99))}")


def move_rows(files: FileSet, data: st.DataObject) -> None:
    one, other = any_file(files, data), any_file(files, data)
    if one != other:
        half = len(files.rows[one]) // 2
        moved = files.rows[one][:half]
        files.write(one, files.rows[one][half:])
        files.write(other, [*files.rows[other], *moved])


def copy_rows(files: FileSet, data: st.DataObject) -> None:
    """Duplicate keys, if there is a key."""
    one, other = any_file(files, data), any_file(files, data)
    files.write(other, [*files.rows[other], *files.rows[one][:1]])


def change_columns(files: FileSet, data: st.DataObject) -> None:
    layouts = ["narrow", "plain", *(["more"] if "schema" in files.declared else [])]
    files.lay_out(data.draw(st.sampled_from(layouts), label="columns"))


def lose_column(files: FileSet, data: st.DataObject) -> None:
    """Let both collections refuse the files, and then find changes in those that came back."""
    before = files.layout
    files.lay_out("less")
    files.compare("a column is gone")
    files.lay_out(before)


HAPPENINGS: tuple[Callable[[FileSet, st.DataObject], None], ...] = (
    add_rows, change, remove, die, take_rows, move_rows, rename, add, write_elsewhere, compact_collections, touch,
    change_columns, rewrite, lose_column, copy_rows, add, change, take_rows,
)  # fmt: skip


@pytest.mark.parametrize("key", [["k"], []], ids=["keyed", "multiset"])
def test_the_changed_files_tell_what_all_rows_tell(
    home: Settings, home_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: list[str]
) -> None:
    monkeypatch.setattr(replaced_files, "MOST_SHARE", 100.0)  # of folders that small, most of the bytes change
    monkeypatch.setattr(replaced_files, "LEAST_SPARED", 0)
    strategies = Counter[str]()

    @explore(8)
    @given(data=st.data())
    def live(data: st.DataObject) -> None:
        form = data.draw(st.sampled_from(["parquet", "parquet", "csv", "json"]), label="form")
        condition = data.draw(st.sampled_from(CONDITIONS), label="where")
        declared = {
            **({} if condition is None else {"source": {"where": condition}}),
            **({"schema": SCHEMA} if data.draw(st.booleans(), label="declares columns") else {}),
        }
        for limit in ("MOST_WHOLE", "MOST_NEAR"):
            keeps_to_it = data.draw(st.booleans(), label=limit)
            monkeypatch.setattr(replaced_files, limit, 1 << 26 if keeps_to_it else -1)
        files = FileSet(home, home_spark, tmp_path, form=form, key=key, **declared)
        for number in range(3):
            files.write(f"first{number}", [(key, "abc"[number]) for key in range(number * 6, number * 6 + 5)])
        files.start()
        files.compare("the beginning")
        strategies.update(files.live_through(data, HAPPENINGS, rounds=6))

    live()
    assert strategies[Method.CHANGED_FILES] > strategies.total() * LEAST_SHARE, strategies
