"""Opens Parquet, CSV and JSON files: exactly those that were there when the source was opened."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from tidemark.collections.schema.types import columns_text
from tidemark.collections.sources.errors import translating
from tidemark.collections.sources.file_headers import check_files
from tidemark.collections.sources.file_listing import FileListing, have_moved, list_files
from tidemark.collections.sources.opened_source import FilesPin, OpenedSource
from tidemark.errors import Refused, SourceMoved

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemark.collections.declarations.source import FileSource

_GLOB_CHARACTERS = re.compile(r"[{}\[\]*?\\]")
# A row that does not fit is refused; Spark's own default stores NULLs in its place.
_STRICT = {"csv": {"mode": "FAILFAST"}, "json": {"mode": "FAILFAST"}, "parquet": dict[str, str]()}


def open_files(spark: SparkSession, source: FileSource, *, where: str) -> OpenedSource:
    """Pin the files that the path stands for now, and return what they hold.

    Raises:
        InputMissing: If there is no file.
        Refused: If a file is corrupt.
        SchemaMismatch: If files differ in their columns, or a CSV header is not the declared schema.
        SourceMoved: If a file was changed meanwhile.
    """
    listing = list_files(source.path, spark, where=where)
    try:
        check_files(source, listing, where=where)
        with translating(where):
            desired = _read(spark, source, listing)
    except Refused as error:
        if have_moved(listing, spark):  # a file that is being replaced looks damaged
            raise SourceMoved(f"{where} was changed while it was opened: {error}", hint="run again") from error
        raise
    return OpenedSource(
        where=where,
        desired=desired,
        pins=(FilesPin(listing, spark),),
        pinnable=True,
        size_bytes=listing.size_bytes,
        place=source.path,
        occurring_columns=partial(_find_columns, spark, source, listing, where) if source.format == "json" else None,
    )


def _find_columns(spark: SparkSession, source: FileSource, listing: FileListing, where: str) -> frozenset[str]:
    """Return the columns that occur in any row of the files, be they NULL: a pass over all of them.

    Raises:
        SourceMoved: If the files are no longer those that were listed.
    """
    with translating(where):
        found = frozenset(_read(spark, source.model_copy(update={"columns_text": None}), listing).columns)
    if have_moved(listing, spark):
        raise SourceMoved(f"{where} was changed while it was searched for columns", hint="run again")
    return found


def _read(spark: SparkSession, source: FileSource, listing: FileListing) -> DataFrame:
    reader = spark.read.format(source.format).options(**_STRICT[source.format])
    if listing.base is not None:
        reader = reader.option("basePath", listing.base)
    if source.columns is not None and source.format != "parquet":  # Parquet files say themselves what they hold
        reader = reader.schema(columns_text(source.columns))
        if source.format == "csv" and source.has_header:
            reader = reader.option("enforceSchema", "false")
    return reader.options(**source.spark_options).load([_literal(uri) for uri in listing.uris])


def _literal(uri: str) -> str:
    """Return ``uri`` as a pattern that matches nothing else: Spark takes every path as a pattern."""
    return _GLOB_CHARACTERS.sub(r"\\\g<0>", uri)
