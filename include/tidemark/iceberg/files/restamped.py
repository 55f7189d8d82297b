"""Writes the rows of staged files anew with another time, a piece at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from tidemark.errors import DamagedBatch
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.shard.column_names import TIME

PIECE_BYTES = 128 * 1024 * 1024  # of rows in memory


def restamp(table: Table, files: Sequence[DataFile], *, time: int) -> tuple[DataFile, ...]:
    """Write all rows of ``files`` with ``_time`` = ``time``, in few files; nothing becomes visible.

    The files have the table's present schema, and no row of them is deleted. Raises ``DamagedBatch`` if they hold other
    rows than their number says.
    """
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    # Its public methods read a whole file into memory first.
    batches = scan._record_batches_from_scan_tasks_and_deletes(map(FileScanTask, files), {})  # noqa: SLF001
    written: list[DataFile] = []
    for rows in _in_pieces(batches):
        place = rows.schema.get_field_index(TIME)
        stamped = rows.set_column(place, rows.schema.field(place), pa.repeat(pa.scalar(time), rows.num_rows))
        written += write_rows(table, stamped)
    found, staged = sum(file.record_count for file in written), sum(file.record_count for file in files)
    if found != staged:
        raise DamagedBatch(f"{len(files)} staged files hold {found} rows, not the {staged} they were staged with")
    return tuple(written)


def _in_pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    gathered: list[pa.Table] = []
    for batch in batches:
        gathered.append(pa.Table.from_batches([batch]))
        if sum(rows.nbytes for rows in gathered) >= PIECE_BYTES:
            yield pa.concat_tables(gathered, promote_options="permissive")
            gathered = []
    if gathered:
        yield pa.concat_tables(gathered, promote_options="permissive")  # some batches have large types, others not
