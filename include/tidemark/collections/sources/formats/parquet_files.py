"""Parquet: the footers of local files hold the columns, so Spark is not needed to read the columns."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tidemark.collections.schema.convert import from_parquet
from tidemark.collections.schema.types import Columns
from tidemark.collections.sources.file_listing import FileListing, FileState
from tidemark.collections.sources.formats.files import FileSource
from tidemark.errors import Refused, SchemaMismatch, SourceMoved

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.collections.sources.batch_file import BatchFile, CsvForm

_READERS = 8


class ParquetSource(FileSource):
    """Parquet files with the same columns, unless they are declared to be merged."""

    form = "parquet"
    has_types = True
    suffixes = (".parquet",)
    format: Literal["parquet"]

    def check_files(self, listing: FileListing, where: str) -> None:
        """Refuse files with different columns: Spark would fill a missing column with NULLs."""
        self.columns_of(listing, where)

    def columns_of(self, listing: FileListing, where: str) -> Columns | None:
        return None if self.is_set("mergeSchema") else parquet_columns(listing, where=where)

    def guess_rows(self, listing: FileListing) -> int:
        if not listing.is_local:
            return super().guess_rows(listing)
        with ThreadPoolExecutor(_READERS) as pool:
            return sum(pool.map(_footer_rows, listing.files))

    @classmethod
    def open_batch(cls, path: Path, form: CsvForm, names: tuple[str, ...]) -> BatchFile:  # noqa: ARG003 - the signature of FileSource
        import pyarrow.parquet as pq

        from tidemark.collections.quality.row_parsing import ParsedRows
        from tidemark.collections.sources.batch_file import BatchFile, GivenColumns

        with pq.ParquetFile(path) as opened:
            columns = from_parquet(opened, where=str(path))

        def read(schema: pa.Schema) -> ParsedRows:
            with pq.ParquetFile(path) as opened:
                rows = opened.read([name for name in schema.names if name in opened.schema_arrow.names])
            return ParsedRows(with_columns_of(schema, rows))

        given = GivenColumns(where=str(path), names=tuple(column.name for column in columns), types=columns)
        return BatchFile(given, path, read)


def with_columns_of(schema: pa.Schema, rows: pa.Table) -> pa.Table:
    """Return ``rows`` with the columns and types of ``schema``; a column that ``rows`` lack is NULL."""
    import pyarrow as pa

    names, count = rows.column_names, rows.num_rows
    arrays = [
        rows[field.name].cast(field.type) if field.name in names else pa.nulls(count, field.type) for field in schema
    ]
    return pa.table(arrays, schema=schema)


def parquet_columns(listing: FileListing, *, where: str) -> Columns:
    """Return the columns of the local Parquet files, without the columns that folders add.

    Raises:
        Refused: If a file is not a Parquet file.
        SchemaMismatch: If a file has other columns than the first file.
    """
    with ThreadPoolExecutor(_READERS) as pool:
        found = list(pool.map(lambda file: _footer_columns(file, where), listing.files))
    first = {column.name: column.type for column in found[0]}
    for file, columns in zip(listing.files, found, strict=True):
        types = {column.name: column.type for column in columns}
        for name in [*first, *types]:
            if first.get(name) != types.get(name):
                here, there = first.get(name, "missing"), types.get(name, "missing")
                raise SchemaMismatch(
                    f"column {name!r} of {where} is {here} in {listing.files[0].local_path}, "
                    f"but {there} in {file.local_path}",
                    hint="write the files alike, or declare `options: {mergeSchema: true}` to read NULL where it lacks",
                )
    return found[0]


def _footer_columns(file: FileState, where: str) -> Columns:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(file.local_path) as opened:
            return from_parquet(opened, where=where)
    except FileNotFoundError as error:
        raise SourceMoved(f"{where}: {file.local_path} vanished while it was read", hint="run again") from error
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0]
        raise Refused(f"{where}: {file.local_path} is no readable Parquet file: {reason}", hint="replace it") from error


def _footer_rows(file: FileState) -> int:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(file.local_path) as opened:
            return int(opened.metadata.num_rows)
    except (pa.ArrowInvalid, OSError):  # whoever reads the rows says so
        return 0
