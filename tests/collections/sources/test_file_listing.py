"""Listing the files of a source while somebody else moves them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidemark.collections.sources import file_listing
from tidemark.collections.sources.file_listing import list_files
from tidemark.errors import ConfigurationInvalid, InputMissing, Refused, SourceMoved

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of the files ``a`` and ``sub/b``."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_text("a")
    (tmp_path / "sub/b").write_text("b")
    return tmp_path


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], object]], None]:
    """Do something after the names in a folder were read, and before a look is taken at each."""
    read_names = os.scandir

    def at(name: str, act: Callable[[], object]) -> None:
        class Scan:
            def __init__(self, path: str | int) -> None:
                self.path, self.entries = path, read_names(path)

            def __enter__(self) -> list[Any]:
                found = sorted(self.entries, key=lambda entry: entry.name)
                if str(self.path).endswith(name):
                    act()
                return found

            def __exit__(self, *_: object) -> None:
                self.entries.close()

        monkeypatch.setattr(file_listing.os, "scandir", Scan)

    return at


def test_file_that_vanishes_while_it_is_listed_means_that_the_source_moved(folder: Path, meanwhile: Any) -> None:
    meanwhile("sub", (folder / "sub/b").unlink)
    with pytest.raises(SourceMoved, match=r"the source of 'c': .*/sub/b vanished while the files were listed"):
        list_files(str(folder), where="the source of 'c'")


def test_subfolder_that_vanishes_while_it_is_listed_means_that_the_source_moved(folder: Path, meanwhile: Any) -> None:
    meanwhile(folder.name, lambda: shutil.rmtree(folder / "sub"))
    with pytest.raises(SourceMoved, match=r"/sub vanished"):
        list_files(str(folder))


@pytest.mark.parametrize("path", ["", "/*", "/sub/*"], ids=["folder", "pattern", "pattern below"])
def test_link_to_nothing_is_named(folder: Path, path: str) -> None:
    (folder / "sub/link").symlink_to(folder / "gone")
    with pytest.raises(
        InputMissing, match=r"the source of 'c': .*/sub/link is a link to .*/gone, which does not exist"
    ):
        list_files(f"{folder}{path}", where="the source of 'c'")


def test_link_to_itself_is_named(folder: Path) -> None:
    (folder / "link").symlink_to(folder / "link")
    with pytest.raises(InputMissing, match=r"/link is a link to"):
        list_files(str(folder))


def test_links_to_files_and_folders_are_followed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "c").write_text("c")
    (folder / "c").symlink_to(other / "c")
    (folder / "more").symlink_to(other)
    assert [file.uri.removeprefix(f"file://{folder}/") for file in list_files(str(folder)).files] == [
        "a", "c", "more/c", "sub/b",
    ]  # fmt: skip


def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Refused, match="pipe is no file"):
        list_files(str(tmp_path))
    (tmp_path / "pipe").unlink()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/z\xff.csv")).write_text("z")
    with pytest.raises(Refused, match=r"z\\udcff\.csv has a name that is not UTF-8"):
        list_files(str(tmp_path))
    with pytest.raises(ConfigurationInvalid, match="is no pattern of files"):
        list_files(f"{tmp_path}/**.csv")
