"""Finds the columns and the size of a declared source, without Spark if the files tell both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Buffers
from tidemark.collections.schema.convert import from_spark, spark_schema
from tidemark.collections.schema.types import Columns, columns_text, stored_columns
from tidemark.collections.sources.connections import check_connections
from tidemark.collections.sources.file_listing import list_files
from tidemark.collections.sources.formats.files import FileSource
from tidemark.collections.sources.formats.source import open_source
from tidemark.errors import InputMissing, UsageError
from tidemark.interval import Interval
from tidemark.locations import parse_uri
from tidemark.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.iceberg.shards import Shards


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """Facts about a source before a run reads it; ``size_bytes`` is None if the size is unknown before a read."""

    columns: Columns
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SourceInspector:
    """Inspects sources; starts Spark only if nothing else tells the columns."""

    shards: Shards
    settings: Settings
    start_spark: Callable[[], SparkSession]
    buffers: Buffers | None = None  # None: whether the buffers exist is not asked

    def inspect(self, declaration: Declaration, planned: Mapping[str, Columns]) -> SourceFacts:
        """Return the columns for the collection, and the size of its source.

        ``planned`` are the columns of the collections that are applied together with this one.

        Raises:
            InputMissing: If the columns are neither declared nor in an existing source.
            Refused: If a file is corrupt.
            SchemaMismatch: If the columns of files differ, or cannot be stored.
            Others as ``Buffers.open``, if the collection writes to a buffer.
        """
        if declaration.writes_to is not None and self.buffers is not None:
            with self.buffers.open(declaration.writes_to, collection=declaration.name, table=declaration.buffer_table):
                pass  # it is there
        source, known = declaration.source, declaration.known_columns
        where, listing = f"the source of {declaration.name!r}", None
        if isinstance(source, FileSource) and parse_uri(source.path) is not None:
            try:
                listing = list_files(source.path, where=where)
            except InputMissing:
                if known is None:  # else the source may come later
                    raise
        size = None if listing is None else listing.size_bytes
        if known is not None:
            return SourceFacts(known, size)
        collection = None if source is None else source.collection_name
        if collection is not None and collection in planned:
            return SourceFacts(planned[collection])
        if isinstance(source, FileSource) and listing is not None and not listing.has_partition_folders:
            columns = source.columns_of(listing, where)
            if columns is not None:
                return SourceFacts(stored_columns(columns), size)
        return SourceFacts(self._ask_spark(declaration, planned, where), size)

    def resolve(self, declaration: Declaration, facts: SourceFacts) -> Declaration:
        """Declare the columns of files without types, so that no later run guesses other columns from other rows."""
        source = declaration.source
        if isinstance(source, FileSource) and not source.has_types and source.columns is None:
            typed = source.model_copy(update={"columns_text": columns_text(facts.columns)})
            return declaration.model_copy(update={"source": typed})
        return declaration

    def _ask_spark(self, declaration: Declaration, planned: Mapping[str, Columns], where: str) -> Columns:
        from tidemark.collections.sources.opened_source import OpenedSource, Opening  # noqa: PLC0415 - imports Spark

        if declaration.source is None:
            raise UsageError(f"{declaration.name!r} has neither a schema nor a source")
        check_connections([declaration], self.settings)  # before Spark starts
        any_interval = Interval(0, 1)  # the columns are the same for every interval
        spark = self.start_spark()
        expected = {
            name: OpenedSource(where=where, desired=spark.createDataFrame([], spark_schema(columns)), pinnable=True)
            for name, columns in planned.items()
            if name in declaration.inputs
        }
        opening = Opening(spark, self.shards, self.settings, any_interval, expected)
        opened = open_source(declaration.source, opening, collection=declaration.name)
        return stored_columns(from_spark(opened.desired.schema, where=where))
