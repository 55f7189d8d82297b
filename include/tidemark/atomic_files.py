"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, content: bytes | str) -> None:
    """Write ``content`` to a temporary name beside ``path`` and rename it: nobody ever reads half a file.

    Missing folders are made. Text is written as UTF-8. When two processes do this at once, one of the contents stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content if isinstance(content, bytes) else content.encode())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
