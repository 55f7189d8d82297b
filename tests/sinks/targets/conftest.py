"""A target of each kind, of which nothing is there yet."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.sinks.targets.driving import Driven

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings

KINDS = ("files", "partitioned files", "own catalog", "named catalog")


def place(kind: str, folder: Path) -> dict[str, Any]:
    """Return what a user declares."""
    return {
        "files": {"path": str(folder / "out")},
        "partitioned files": {"path": str(folder / "out"), "partition": ["name"]},
        "own catalog": {"catalog": "tidemark", "table": "analytics.copies"},
        "named catalog": {"catalog": "lake", "table": "analytics.copies"},
    }[kind]


def with_lake(settings: Settings, folder: Path) -> Settings:
    """Return the settings with a catalog `lake` of its own."""
    variables = {"TYPE": "sql", "URI": f"sqlite:///{folder}/lake.db", "WAREHOUSE": f"file://{folder}/lake"}
    named = {f"TIDEMARK_CATALOG_LAKE_{name}": value for name, value in variables.items()}
    return replace(settings, connections={**settings.connections, **named})


@pytest.fixture(params=KINDS)
def driven(request: pytest.FixtureRequest, home: Settings, tmp_path: Path) -> Driven:
    return Driven(with_lake(home, tmp_path), place(request.param, tmp_path))
