"""Sources of tests: opened as a run opens them, and read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.collections.sources.opened_source import OpenedSource

if TYPE_CHECKING:
    from pathlib import Path

Opener = Callable[..., OpenedSource]


def rows(opened: OpenedSource) -> list[tuple[Any, ...]]:
    with opened.reading():
        return sorted(tuple(row) for row in opened.desired.collect())


def write_parquet(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path
