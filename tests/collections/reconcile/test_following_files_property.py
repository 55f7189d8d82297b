"""Whatever happens to the files of a source: what a run finds in the changed ones is what a full run finds in all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.exploration import explore
from tests.support.file_sets import FileSet
from tidemark.collections.reconcile.following import replaced_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

pytestmark = pytest.mark.spark

KEYS = st.integers(0, 19)
CONDITIONS = (None, None, "k % 3 <> 1", "v <> 'b'")


def any_file(files: FileSet, data: st.DataObject) -> str:
    return data.draw(st.sampled_from(sorted(files.rows)), label="file")


def draw_rows(files: FileSet, data: st.DataObject, *, most: int = 4) -> list[tuple[int, str]]:
    """Return rows whose keys are in no file, if there is a key."""
    is_keyed = bool(files.declared["key"])
    present = {key for rows in files.rows.values() for key, _ in rows} if is_keyed else set()
    keys = data.draw(st.lists(KEYS, max_size=most, unique=is_keyed), label="keys")
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


def write_elsewhere(files: FileSet, data: st.DataObject) -> None:
    files.append_elsewhere((data.draw(KEYS), "foreign"))


def compact(files: FileSet, data: st.DataObject) -> None:
    files.compact()


HAPPENINGS: tuple[Callable[[FileSet, st.DataObject], None], ...] = (
    add, add, add_rows, change, change, take_rows, take_rows, rewrite, touch, remove, rename, move_rows, copy_rows,
    write_elsewhere, compact,
)  # fmt: skip


@pytest.mark.parametrize("key", [["k"], []], ids=["keyed", "multiset"])
@explore(8)
@given(data=st.data())
def test_the_changed_files_tell_what_all_rows_tell(
    home: Settings, home_spark: SparkSession, tmp_path: Path, key: list[str], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replaced_files, "MOST_SHARE", 100.0)  # of folders that small, most of the bytes change
        patch.setattr(replaced_files, "LEAST_SPARED", 0)
        form = data.draw(st.sampled_from(["parquet", "parquet", "csv", "json"]), label="form")
        condition = data.draw(st.sampled_from(CONDITIONS), label="where")
        source = {} if condition is None else {"where": condition}
        files = FileSet(home, home_spark, tmp_path, form=form, key=key, source=source)
        for number in range(3):
            files.write(f"first{number}", [(key, "abc"[number]) for key in range(number * 6, number * 6 + 5)])
        files.start()
        files.compare("the beginning")
        files.live_through(data, HAPPENINGS, rounds=5)
