"""A folder that is filled once and put back to how it was for each test that wants it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class PreparedFolder:
    """Tables know the absolute paths of their files, so the copy is put back in its place instead of somewhere else."""

    def __init__(self, parent: Path, fill: Callable[[Path], None]) -> None:
        self._place, self._copy = parent / "place", parent / "copy"
        self._place.mkdir()
        fill(self._place)
        # SQLite makes the shared memory of its log anew; a copied one would speak of readers that are gone.
        shutil.copytree(self._place, self._copy, ignore=shutil.ignore_patterns("*-shm"))

    def restored(self) -> Path:
        """Return the folder as it was filled, whatever the last test made of it."""
        # A JVM that closes the database deletes its log meanwhile. What then remained would stop the copy.
        shutil.rmtree(self._place, ignore_errors=True)
        shutil.copytree(self._copy, self._place)
        return self._place
