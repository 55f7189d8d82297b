"""What a watcher sees, and when it says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tidemark.collections.sources.file_listing import FileState
from tidemark.collections.sources.watching import MOST_LOOKS, FilesChanged, Watch, look_at, name_files
from tidemark.errors import InputMissing

if TYPE_CHECKING:
    from pathlib import Path


def files(**sizes: int) -> tuple[FileState, ...]:
    return tuple(FileState(f"file:///in/{name}", size, 0) for name, size in sorted(sizes.items()))


def announcements(*looks: tuple[FileState, ...], announced: str = "") -> list[FilesChanged | None]:
    """Take the looks one after the other, of which each one that is announced is noted."""
    watch, said = Watch(), list[FilesChanged | None]()
    for look in looks:
        said.append(changed := watch.see(look, announced))
        announced = announced if changed is None else changed.name
    return said


def test_what_is_there_at_first_is_announced_once_two_looks_found_it() -> None:
    first, second, third = announcements(*[files(a=1, b=2)] * 3)
    assert (first, third) == (None, None)
    assert second is not None
    assert str(second) == "2 files, 3 B there"


def test_a_file_that_grows_is_announced_when_it_has_come_to_rest() -> None:
    looks = [files(a=1), files(a=1, b=1), files(a=1, b=2), files(a=1, b=2), files(a=1, b=2)]
    *before, said, after = announcements(*looks, announced=name_files(files(a=1)))
    assert (before, after) == ([None, None, None], None)
    assert said is not None
    assert str(said) == "1 new (file:///in/b); 2 files, 3 B there"


def test_a_change_names_what_came_went_and_was_replaced() -> None:
    before, after = files(a=1, b=1, c=1, d=1), files(a=2, c=1, e=1, f=1)
    said = announcements(before, after, after, announced=name_files(before))[-1]
    assert said is not None
    assert (said.came, said.gone, said.replaced) == (2, 2, 1)
    assert str(said).startswith("2 new, 2 gone, 1 replaced (file:///in/e, file:///in/f, file:///in/a, …); 4 files")
    assert said.facts("it")["seen"] == str(said)


def test_a_change_that_nobody_watched_is_announced_without_its_parts() -> None:
    said = announcements(files(b=1), files(b=1), announced=name_files(files(a=1)))[-1]
    assert said is not None
    assert (said.came, str(said)) == (None, "1 file, 1 B there")


def test_a_file_that_came_and_went_again_is_no_change() -> None:
    before = files(a=1)
    assert announcements(before, files(a=1, b=1), before, before, announced=name_files(before)) == [None] * 4


def test_files_that_never_rest_are_announced_all_the_same() -> None:
    said = announcements(*(files(a=size) for size in range(MOST_LOOKS)), announced="another")
    assert said[:-1] == [None] * (MOST_LOOKS - 1)
    assert said[-1] is not None
    assert str(said[-1]).endswith("which do not come to rest")


def test_a_folder_without_files_may_be_one_that_is_not_mounted() -> None:
    before = files(a=1)
    assert announcements(before, (), (), before, before, announced=name_files(before)) == [None] * 5


def test_a_look_takes_all_paths_and_misses_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "in" / "day=1").mkdir(parents=True)
    for name in ("in/day=1/a.csv", "in/_part", "b.csv", "c.csv"):
        (tmp_path / name).write_text("x")
    found = look_at([str(tmp_path / "in"), str(tmp_path / "*.csv"), str(tmp_path / "b.csv"), str(tmp_path / "none")])
    assert [file.uri.removeprefix(f"file://{tmp_path}/") for file in found] == ["b.csv", "c.csv", "in/day=1/a.csv"]
    (tmp_path / "in" / "day=1" / "a.csv").write_text("longer")
    assert name_files(look_at([str(tmp_path / "in")])) != name_files(found)


def test_what_cannot_be_read_is_an_error_and_not_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "in").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "nowhere")
    assert look_at([str(tmp_path / "in")]) == ()
    with pytest.raises(InputMissing, match="is a link to"):
        look_at([str(tmp_path / "folder")])
