"""What storage workers put on the board, put there by a test."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from tidemark.storage.board import Board

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemark.settings import Settings


def show(
    settings: Settings,
    worker: int,
    *objects: str,
    run: str = "",
    ended: str = "",
    began_ms: int = 0,
    until_ms: int | None = 0,
    dataflows: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Put on the board what a worker says of itself."""
    value = {
        "writer": "host:1",
        "began_ms": began_ms,
        "until_ms": until_ms,
        "run": run,
        "mode": "read-write",
        "objects": list(objects),
        "dataflows": dataflows or {},
        "ended": ended,
    }
    with closing(Board(settings)) as board:
        board.remove(f"worker/{worker}")
        assert board.put(f"worker/{worker}", value, life=1)
