"""The library as one archive, for Spark executors on machines that do not have the project."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from typing import TYPE_CHECKING

from tidemark.settings import LIBRARY

if TYPE_CHECKING:
    from pathlib import Path

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest time a zip can hold: equal sources make equal archives


def library_archive(folder: Path) -> Path:
    """Return ``tidemark`` as a zip below ``folder``, named after its contents; made once per version of the code."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sorted(LIBRARY.rglob("*.py")):
            entry = zipfile.ZipInfo(str(source.relative_to(LIBRARY.parent)), date_time=_EPOCH)
            archive.writestr(entry, source.read_bytes())
    content = packed.getvalue()
    path = folder / f"tidemark-{hashlib.sha256(content).hexdigest()[:16]}.zip"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_bytes(content)
        temporary.replace(path)  # two tasks may do this at once
    return path
