"""Opens what a test declares; a database to read."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import TypeAdapter

from tests.conftest import settings_in
from tidemark.collections.sources.formats.source import open_source
from tidemark.collections.sources.formats.sql import SourceDeclaration
from tidemark.collections.sources.opened_source import Opening

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.sources import Opener
    from tidemark.collections.sources.opened_source import OpenedSource
    from tidemark.iceberg.shards import Shards
    from tidemark.interval import Interval
    from tidemark.settings import Settings

ADAPTER: TypeAdapter[Any] = TypeAdapter(SourceDeclaration)


@pytest.fixture
def opener(spark: SparkSession, shards: Shards, settings: Settings, tmp_path: Path) -> Opener:
    def open_(source: dict[str, Any], interval: Interval | None = None, **environ: str) -> OpenedSource:
        declared = ADAPTER.validate_python(source, context={"folder": str(tmp_path)})
        used = settings_in(settings.home, **environ) if environ else settings
        return open_source(declared, Opening(spark, shards, used, interval), collection="planes")

    return open_


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "source.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE t (a INTEGER, b TEXT); INSERT INTO t VALUES (1, 'x'), (2, 'y');")
    return path
