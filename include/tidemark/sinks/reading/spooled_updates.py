"""The updates of a log in their order, summed up on disk where they are more than one process should hold.

Rows that may be equal are kept in one part, so that each part is summed up and sorted alone; the sorted parts are then
merged piece by piece.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import IO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.iceberg.reading.arrow import scan_updates_by_file
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.iceberg.shard.head import ShardHead
from tidemark.sinks.reading.net_changes import order_updates
from tidemark.sinks.targets.keys import hash_keys

PART_UPDATES = 1_000_000  # about so many are in memory at once
_PIECE_ROWS = 16_384  # of each part, while they are merged
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


@contextmanager
def spooled_updates(
    head: ShardHead, from_: int, until: int, columns: Sequence[str], key: Sequence[str], *, updates: int
) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield the same as ``order_updates`` of the updates at times ``[from_, until)``, in pieces, once they are on disk.

    ``key`` are columns by which rows are told apart more or less; ``updates`` is about how many there are.
    """
    with ExitStack() as open_files:
        count = -(-updates // PART_UPDATES)
        files: list[IO[bytes]] = [open_files.enter_context(tempfile.TemporaryFile()) for _ in range(count)]
        _split(scan_updates_by_file(head, from_, until), files, [*columns, TIME, DIFF], key)
        for file in files:
            _sort(file, columns)
        yield _merge([_read(file) for file in files])


def _split(tables: Iterator[pa.Table], files: Sequence[IO[bytes]], columns: Sequence[str], key: Sequence[str]) -> None:
    """Write each row into the file that its hash chooses; a file may stay empty."""
    writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
    schema: pa.Schema | None = None
    for table in tables:
        rows = table.select(list(columns))
        schema = schema or rows.schema
        rows = rows.cast(schema)  # files may differ in how long their texts can be
        numbers = hash_keys(rows, key) % len(files)
        order = np.argsort(numbers, kind="stable")
        ordered, starts = rows.take(pa.array(order)), np.searchsorted(numbers[order], np.arange(len(files) + 1))
        for number, (start, end) in enumerate(pairwise(starts)):
            if start < end:
                if number not in writers:
                    writers[number] = pa.ipc.new_stream(files[number], schema, options=_COMPRESSED)
                writers[number].write_table(ordered.slice(start, end - start))
    for writer in writers.values():
        writer.close()


def _sort(file: IO[bytes], columns: Sequence[str]) -> None:
    """Let the file have its rows summed up and in order."""
    pieces = list(_read(file))
    if not pieces:
        return
    ordered = order_updates(pa.Table.from_batches(pieces), columns)
    file.seek(0)
    file.truncate()
    with pa.ipc.new_stream(file, ordered.schema, options=_COMPRESSED) as writer:
        writer.write_table(ordered, max_chunksize=_PIECE_ROWS)


def _read(file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    if file.seek(0, 2):
        file.seek(0)
        with pa.ipc.open_stream(file) as stream:
            yield from stream


def _merge(parts: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of parts that are in order, in order.

    Each step takes what is in order before the first end of a piece, and so at least that piece.
    """
    heads = {number: piece for number, part in enumerate(parts) if (piece := next(part, None)) is not None}
    while heads:
        end = min(map(_last, heads.values()))
        taken = []
        for number, piece in list(heads.items()):
            count = _count_until(piece, *end)
            taken.append(piece.slice(0, count))
            if count < piece.num_rows:
                heads[number] = piece.slice(count)
            elif (following := next(parts[number], None)) is not None:
                heads[number] = following
            else:
                del heads[number]
        step = pa.Table.from_batches(taken).sort_by([(TIME, "ascending"), (DIFF, "ascending")])
        yield from step.combine_chunks().to_batches()


def _last(piece: pa.RecordBatch) -> tuple[int, int]:
    time, diff = (piece.column(name)[-1].as_py() for name in (TIME, DIFF))
    return time, diff


def _count_until(piece: pa.RecordBatch, time: int, diff: int) -> int:
    """Return how many rows, which are in order, do not come after ``diff`` at ``time``."""
    times, diffs = (_numbers(piece, name) for name in (TIME, DIFF))
    return int(np.count_nonzero((times < time) | ((times == time) & (diffs <= diff))))


def _numbers(piece: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    return np.asarray(piece.column(name).to_numpy(), dtype=np.int64)
