"""Small slices of Parquet files, cut and appended without a JVM, exactly as Spark would cut them.

Catching up with a year of hours takes thousands of batches of a few rows: hours with a JVM for each batch, minutes
without. Spark gets every source whose rows might differ without Spark: other conditions, other formats, remote paths.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.dataset as ds

from tidemark.clock import Clock
from tidemark.collections.append.append import Append
from tidemark.collections.append.batch_fit import fit_columns
from tidemark.collections.append.forward import Appended, user_columns
from tidemark.collections.declarations.collection import Declaration, OnSchemaChange
from tidemark.collections.deployment import Deployment
from tidemark.collections.schema.types import Columns
from tidemark.collections.sources.batch_file import GivenColumns
from tidemark.collections.sources.file_listing import FileListing, have_moved, list_files
from tidemark.collections.sources.formats.parquet_files import ParquetSource, parquet_columns, with_columns_of
from tidemark.collections.staged.batches import BatchName
from tidemark.errors import Refused, SourceMoved
from tidemark.iceberg.shard.shard import Shard
from tidemark.interval import Interval
from tidemark.locations import parse_uri
from tidemark.report import CollectionReport

LIMIT_BYTES = 64 * 1024 * 1024  # of all files together: larger sources are worth a JVM
_NAME = r"`?([A-Za-z_][A-Za-z0-9_]*)`?"
_CUT = re.compile(rf"\s*{_NAME}\s*>=\s*'\{{start\}}'\s+AND\s+{_NAME}\s*<\s*'\{{end\}}'\s*", re.IGNORECASE)
_TIME_TYPES = {"timestamp", "timestamp_ntz"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallFiles:
    """Local Parquet files whose slices are ``column >= start AND column < end``."""

    listing: FileListing
    columns: Columns
    column: str
    where: str  # names the source in messages

    def read(self, interval: Interval, names: list[str]) -> pa.Table:
        """Return the columns ``names`` of the rows of one slice.

        Raises:
            SourceMoved: If a file changed meanwhile.
            Refused: If a file is corrupt.
        """
        try:
            dataset = ds.dataset([str(file.local_path) for file in self.listing.files], format="parquet")
            time_type, time = dataset.schema.field(self.column).type, ds.field(self.column)
            start, end = (
                pa.scalar(bound, pa.timestamp("ms", time_type.tz)).cast(time_type)
                for bound in (interval.start_ms, interval.end_ms)
            )
            rows = dataset.to_table(columns=names, filter=(time >= start) & (time < end))
        except (pa.ArrowInvalid, OSError) as error:
            self.check_unmoved()
            reason = str(error).splitlines()[0]
            raise Refused(f"{self.where} cannot be read: {reason}", hint="replace the file") from error
        self.check_unmoved()
        return rows

    def check_unmoved(self) -> None:
        if have_moved(self.listing):
            raise SourceMoved(f"{self.where} changed while it was read", hint="run it again")


def find_small_files(declaration: Declaration) -> SmallFiles | None:
    """Return the files of the declared source if this module can cut slices; None if Spark has to.

    Raises:
        InputMissing: If there is no file.
        Refused: If a file is corrupt.
        SchemaMismatch: If the columns of files differ.
    """
    source = declaration.source
    if not isinstance(source, ParquetSource) or source.options:
        return None
    cut = _CUT.fullmatch(source.where or "")
    if cut is None or cut[1] != cut[2] or parse_uri(source.path) is None:
        return None
    where = f"the source of {declaration.name!r}"
    listing = list_files(source.path, where=where)
    if listing.size_bytes > LIMIT_BYTES or listing.has_partition_folders:
        return None
    columns = parquet_columns(listing, where=where)
    if {column.name: str(column.type) for column in columns}.get(cut[1]) not in _TIME_TYPES:
        return None
    return SmallFiles(listing=listing, columns=columns, column=cut[1], where=where)


def append_slice(
    shard: Shard,
    name: BatchName,
    files: SmallFiles,
    interval: Interval,
    *,
    declaration: Declaration,
    deployment: Deployment,
    clock: Clock,
) -> CollectionReport:
    """Append the slice ``interval`` of ``files`` as the batch ``name``, once.

    Raises:
        SchemaMismatch: If the columns are not the collection's; nothing was appended.
        SourceMoved: If a file changed while it was read; nothing was appended.
        ReadOnly: If the deployment is read-only and the collection rejects batches, or would have to change its schema.
        TidemarkError: As ``append_rows``.
    """
    batch = Append(shard=shard, name=name, deployment=deployment, clock=clock)
    return batch.run(_append_once, batch, files, interval, declaration).report()


def _append_once(batch: Append, files: SmallFiles, interval: Interval, declaration: Declaration) -> Appended:
    if (answer := batch.look()) is not None:
        return answer
    if not batch.is_written:
        kept = set(user_columns(batch.head.table).names)
        given = tuple(column for column in files.columns if column.name in kept or not declaration.declares_columns)
        names = tuple(column.name for column in given)
        columns = GivenColumns(where=files.where, names=names, types=given)
        fit_columns(batch, columns, evolve=declaration.on_schema_change is OnSchemaChange.EVOLVE)
        rows = files.read(interval, list(names))
        batch.write(with_columns_of(user_columns(batch.head.table), rows))
    return batch.finish()
