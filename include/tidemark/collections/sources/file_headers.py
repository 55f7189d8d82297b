"""The heads of local files, read without Spark: which columns they have, and whether they are alike."""

from __future__ import annotations

import bz2
import csv
import gzip
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING

from tidemark.collections.schema.convert import from_parquet
from tidemark.collections.schema.types import Columns, columns_text
from tidemark.errors import Refused, SchemaMismatch, SourceMoved

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.collections.declarations.source import FileSource
    from tidemark.collections.sources.file_listing import FileListing, FileState

_READERS = 8


def check_files(source: FileSource, listing: FileListing, *, where: str) -> None:
    """Look at the heads of local files before Spark reads them: it would fill a missing column with NULLs."""
    if not listing.is_local:
        return
    if source.format == "parquet" and source.option("mergeSchema", "false").lower() != "true":
        parquet_columns(listing, where=where)
    if source.format == "csv" and source.has_header and source.columns is not None:
        _check_headers(source, source.columns, listing, where=where)


def parquet_columns(listing: FileListing, *, where: str) -> Columns:
    """Return the columns that all the local Parquet files have, folders' columns not among them.

    Raises:
        Refused: If a file is no Parquet file.
        SchemaMismatch: If a file has other columns than the first one.
    """
    with ThreadPoolExecutor(_READERS) as pool:
        found = list(pool.map(lambda file: _footer_columns(file, where), listing.files))
    first = {column.name: column.type for column in found[0]}
    for file, columns in zip(listing.files, found, strict=True):
        mine = {column.name: column.type for column in columns}
        for name in [*first, *mine]:
            if first.get(name) != mine.get(name):
                here, there = _or_missing(first.get(name)), _or_missing(mine.get(name))
                raise SchemaMismatch(
                    f"column {name!r} of {where} is {here} in {listing.files[0].local_path}, "
                    f"but {there} in {file.local_path}",
                    hint="write the files alike, or declare `options: {mergeSchema: true}` to read NULL where it lacks",
                )
    return found[0]


def _or_missing(kind: object) -> str:
    return "missing" if kind is None else str(kind)


def _footer_columns(file: FileState, where: str) -> Columns:
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow.parquet import ParquetFile  # noqa: PLC0415

    try:
        with ParquetFile(file.local_path) as opened:
            return from_parquet(opened, where=where)
    except FileNotFoundError as error:
        raise SourceMoved(f"{where}: {file.local_path} vanished while it was read", hint="run again") from error
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0]
        raise Refused(f"{where}: {file.local_path} is no readable Parquet file: {reason}", hint="replace it") from error


def _check_headers(source: FileSource, columns: Columns, listing: FileListing, *, where: str) -> None:
    declared = [column.name for column in columns]
    for file in listing.files:
        header = read_header(source, file)
        if header is None or [name.lower() for name in header] == [name.lower() for name in declared]:
            continue
        missing = [name for name in declared if name not in header]
        others = [name for name in header if name not in declared]
        if missing:
            problem = f"lacks the column{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}"
        elif others:
            problem = f"has undeclared columns: {', '.join(map(repr, others))}"
        else:
            problem = f"has the columns in another order: {', '.join(map(repr, header))}"
        raise SchemaMismatch(
            f"{where}: {file.local_path} {problem}", hint=f"the declared schema is: {columns_text(columns)}"
        )


def read_header(source: FileSource, file: FileState) -> list[str] | None:
    """Return the first line's fields; None for an empty file, and where Spark alone knows how to read it."""
    delimiter = source.option("sep", source.option("delimiter", ","))
    if len(delimiter) != 1 or source.option("comment", ""):
        return None
    encoding = source.option("encoding", source.option("charset", "utf-8"))
    open_text: Callable[..., IO[str]]
    open_text = {".gz": gzip.open, ".bz2": bz2.open}.get(file.local_path.suffix, open)  # type: ignore[assignment]  # overloads
    try:
        with open_text(file.local_path, "rt", encoding=encoding, newline="") as opened:
            line = next(csv.reader(opened, delimiter=delimiter, quotechar=source.option("quote", '"')), None)
    except FileNotFoundError as error:
        raise SourceMoved(f"{file.local_path} vanished while it was read", hint="run again") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Refused(f"{file.local_path} cannot be read: {error}", hint="replace the file") from error
    return None if line is None else [name.strip().removeprefix("\ufeff") for name in line]
