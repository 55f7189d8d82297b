"""Opens the source of a declaration, whatever its form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, assert_never

from tidemark.collections.declarations.source import (
    BufferSource,
    CollectionSource,
    FileSource,
    IcebergSource,
    InputDeclaration,
    JdbcSource,
    SourceDeclaration,
    SqlSource,
    fill_interval,
)
from tidemark.collections.sources.errors import translating
from tidemark.collections.sources.files import open_files
from tidemark.collections.sources.jdbc import open_database
from tidemark.collections.sources.sql import is_repeatable, open_query
from tidemark.collections.sources.tables import open_collection, open_table
from tidemark.errors import UsageError
from tidemark.interval import Interval, time_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from tidemark.collections.schema.types import Columns
    from tidemark.collections.sources.opened_source import OpenedSource
    from tidemark.iceberg.shards import Shards
    from tidemark.settings import Settings

NOTHING_PLANNED: Mapping[str, Columns] = MappingProxyType({})


def open_source(
    spark: SparkSession,
    source: SourceDeclaration,
    *,
    collection: str,
    shards: Shards,
    settings: Settings,
    interval: Interval | None = None,
    planned: Mapping[str, Columns] = NOTHING_PLANNED,
) -> OpenedSource:
    """Pin what can be pinned of ``source`` now, and return what it gives.

    Args:
        spark: The session; may be shared with other threads.
        source: What is declared.
        collection: Whose source it is, for messages.
        shards: Where other collections are.
        settings: Where connections are.
        interval: The run's data interval; fills `{start}` and `{end}`.
        planned: Collections that are about to be created or altered, with their columns; read as empty.

    Raises:
        InputMissing: If a file, folder or table does not exist.
        Refused: If a file is corrupt.
        SchemaMismatch: If files of one folder differ, or a query names a missing column.
        ConfigurationInvalid: If a query or a connection is wrong.
        Unreachable: If a database does not answer.
        UsageError: If the source is cut by an interval and none is given.
    """
    if source.needs_interval and interval is None:
        raise UsageError(
            f"the source of {collection!r} is cut by a data interval", hint="give one: --interval START END"
        )
    where = f"the source of {collection!r}"
    if isinstance(source, BufferSource):
        raise UsageError(f"{where} is a write buffer, which an ingest reads", hint="run `tidemark buffer ingest`")
    opening = _Opening(spark, shards, settings, interval, planned)
    if not isinstance(source, SqlSource):
        return opening.open(source, where)
    inputs = {name: opening.open(each, f"input {name!r} of {where}") for name, each in source.inputs.items()}
    return open_query(spark, opening.fill(source.sql), inputs, where=where)


@dataclass(frozen=True, slots=True)
class _Opening:
    """What opening one source has in common with opening its inputs."""

    spark: SparkSession
    shards: Shards
    settings: Settings
    interval: Interval | None
    planned: Mapping[str, Columns]

    def open(self, source: InputDeclaration, where: str) -> OpenedSource:
        """Open a source that is read by itself."""
        if isinstance(source, FileSource):
            opened = open_files(self.spark, source, where=where)
        elif isinstance(source, IcebergSource):
            opened = open_table(self.spark, source, where=where)
        elif isinstance(source, JdbcSource):
            logins, timeout_s = self.settings.connections, self.settings.connect_timeout_s
            opened = open_database(self.spark, source, logins, where=where, timeout_s=timeout_s)
        elif isinstance(source, CollectionSource):
            opened = open_collection(self.spark, source, self.shards, planned=self.planned, where=where)
        else:
            assert_never(source)
        return opened if source.where is None else self._cut(opened, self.fill(source.where))

    def fill(self, text: str) -> str:
        """Return ``text`` with the interval filled in."""
        if self.interval is None:
            return text
        return fill_interval(text, time_text(self.interval.start_ms), time_text(self.interval.end_ms))

    def _cut(self, opened: OpenedSource, condition: str) -> OpenedSource:
        with translating(opened.where):
            desired = opened.frame().where(condition)
        return replace(opened, desired=desired, pinnable=opened.pinnable and is_repeatable(self.spark, desired))
