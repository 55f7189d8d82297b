"""A file is there whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tidemark.atomic_files import write_whole

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "reports" / "run.json"
    write_whole(path, "é")
    write_whole(path, b"second")
    assert path.read_bytes() == b"second"
    assert [each.name for each in path.parent.iterdir()] == ["run.json"]


def test_a_failed_write_leaves_the_old_contents(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]
