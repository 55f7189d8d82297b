"""Opens the source of a declaration, whatever its form."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from tidemark.collections.schema.types import Columns
from tidemark.collections.sources.opened_source import OpenedSource, Opening
from tidemark.errors import UsageError
from tidemark.interval import Interval
from tidemark.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.collections.sources.formats.source import Source
    from tidemark.iceberg.shards import Shards

NOTHING_PLANNED: Mapping[str, Columns] = MappingProxyType({})


def open_source(
    spark: SparkSession,
    source: Source,
    *,
    collection: str,
    shards: Shards,
    settings: Settings,
    interval: Interval | None = None,
    planned: Mapping[str, Columns] = NOTHING_PLANNED,
) -> OpenedSource:
    """Open the ``source`` of a collection, and pin its present state as far as possible.

    Args:
        spark: The session; other threads may share the session.
        source: The declared source.
        collection: The name of the collection, for messages.
        shards: Open the collections that the source reads.
        settings: Have the connections.
        interval: The run's data interval; fills `{start}` and `{end}`.
        planned: The columns of collections that are about to be created or altered, which are read as empty.

    Raises:
        InputMissing: If a file, folder or table does not exist.
        Refused: If a file is corrupt.
        SchemaMismatch: If the columns of files differ, or a query names a missing column.
        ConfigurationInvalid: If a query or a connection is wrong.
        Unreachable: If a database does not answer.
        UsageError: If the source needs an interval and none is given.
    """
    if source.needs_interval and interval is None:
        raise UsageError(
            f"the source of {collection!r} is cut by a data interval", hint="give one: --interval START END"
        )
    return source.open(Opening(spark, shards, settings, interval, planned), f"the source of {collection!r}")
