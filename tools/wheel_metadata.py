"""The wheel's dependencies are those of requirements.txt: one list, pinned together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Requirements(MetadataHookInterface):
    """Reads requirements.txt when a wheel is built; hatchling finds the class by its base."""

    def update(self, metadata: dict[str, Any]) -> None:
        lines = Path(self.root, "requirements.txt").read_text(encoding="utf-8").splitlines()
        requirements = [line.partition("#")[0].strip() for line in lines]
        metadata["dependencies"] = [requirement for requirement in requirements if requirement]
