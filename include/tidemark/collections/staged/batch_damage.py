"""Whether staged batches are whole: one snapshot on the branch, and files that are there and hold what they say.

What is not whole is as good as not there: it is never published, and the batch may be appended again.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow.parquet import ParquetFile

from tidemark.collections.staged.batches import queued_batches
from tidemark.errors import DamagedBatch, Unreachable
from tidemark.iceberg.shard.ledger import Ledger
from tidemark.iceberg.staging.branches import read_intact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from tidemark.collections.staged.batches import QueuedBatch
    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.iceberg.shard.ledger import Range
    from tidemark.iceberg.staging.branches import StagedBatch

_READERS = 8


def read_whole(table: Table, queued: QueuedBatch) -> StagedBatch | DamagedBatch:
    """Return the batch with its files, or what is wrong with it.

    Raises:
        Unreachable: If the store is in trouble, which may pass: nothing is known of the batch then.
    """
    staged = read_intact(table, queued.branch, None, of_present_schema=False)
    if staged is None:
        return _damaged(queued, "its branch does not hold exactly one staged snapshot")
    for file in staged.files:
        if what := _what_is_wrong(table, file):
            return _damaged(queued, what)
    return staged


def only_whole(table: Table, queued: Sequence[QueuedBatch]) -> list[QueuedBatch]:
    """Return those batches that are whole, in order."""
    if not queued:
        return []
    with ThreadPoolExecutor(_READERS) as pool:
        found = list(pool.map(lambda each: read_whole(table, each), queued))
    return [each for each, staged in zip(queued, found, strict=True) if not isinstance(staged, DamagedBatch)]


def whole_ranges(head: ShardHead, wanted: Range, *, producer: str, collection: str, generation: int) -> list[Range]:
    """Return the ranges that a deployment has staged whole for ``producer`` and that overlap ``wanted``, in order."""
    queued = [
        each
        for each in queued_batches(head, collection=collection, generation=generation)
        if each.name.producer == producer and Ledger((each.name.range,)).overlaps(wanted)
    ]
    return [each.name.range for each in only_whole(head.table, queued)]


def _what_is_wrong(table: Table, file: DataFile) -> str:
    try:
        with table.io.new_input(file.file_path).open() as stream, ParquetFile(stream) as parquet:
            stored = parquet.metadata.num_rows
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        return f"{file.file_path} cannot be read: {type(error).__name__}"
    except OSError as error:
        if "thrift" in str(error):  # its footer is garbage, which Arrow tells so
            return f"{file.file_path} cannot be read: its footer is damaged"
        raise Unreachable(f"{file.file_path} cannot be read: {error}", hint="it may be there the next time") from error
    if stored != file.record_count:
        return f"{file.file_path} holds {stored} rows, not the {file.record_count} it was staged with"
    return ""


def _damaged(queued: QueuedBatch, what: str) -> DamagedBatch:
    return DamagedBatch(
        f"the staged batch {queued.name} of {queued.collection!r} is damaged and was not published: {what}",
        hint=f"append it again, or discard it: {queued.discard_command}",
    )
