"""The Python that docs/write-buffer.md shows runs as it stands."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tidemark.settings import PROJECT_ROOT
from tidemark.write_buffer.formats.entry import Row

if TYPE_CHECKING:
    from pathlib import Path


def test_the_example_writes_and_reads(tmp_path: Path) -> None:
    page = (PROJECT_ROOT / "docs" / "write-buffer.md").read_text(encoding="utf-8")
    (block,) = (each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "open_writer" in each)
    shown: dict[str, Any] = {"address": (tmp_path / "buffer").as_uri()}
    exec(block, shown)  # noqa: S102 -- our own page
    assert shown["rows"] == (Row("weather", {"origin": "EWR"}),)
