"""What storage workers put on the board, put there by a test."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from tidemark.storage.board import Board

if TYPE_CHECKING:
    from tidemark.settings import Settings


def show(settings: Settings, worker: int, *objects: str, run: str = "", ended: str = "") -> None:
    """Put on the board what a worker says of itself."""
    value = {"dataflows": {}, "objects": list(objects), "run": run, "ended": ended}
    with closing(Board(settings)) as board:
        board.remove(f"worker/{worker}")
        assert board.put(f"worker/{worker}", value, life=1)
