"""Looks at staged batches before a flush publishes them: are they whole, new, and what their collection expects?"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow.parquet import ParquetFile

from include.collections.expectations import BatchFiles, check_expectations
from include.errors import DamagedBatch, ExpectationFailed, RangeOverlap, TidemarkError
from include.persist.batch import Batch
from include.persist.ledger import Ledger
from include.persist.staging import read_intact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from include.collections.append_only_declaration import Expectations
    from include.collections.staged_batches import QueuedBatch
    from include.persist.shard_head import ShardHead

_READERS = 8


@dataclass(frozen=True, slots=True)
class Trouble:
    """A staged batch that is left where it is, and why."""

    queued: QueuedBatch
    error: TidemarkError


@dataclass(slots=True)
class Audited:
    """What an audit of the staged batches of one collection found."""

    batches: list[Batch] = field(default_factory=list)  # in (producer, range) order
    already_published: list[QueuedBatch] = field(default_factory=list)  # only their branches are to go
    troubles: list[Trouble] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(batch.inserted_rows for batch in self.batches)

    @property
    def is_refused(self) -> bool:
        """Whether some rows are not what the collection expects: then people look, before any of it is visible."""
        return any(isinstance(each.error, ExpectationFailed) for each in self.troubles)

    def without_batches(self) -> Audited:
        return Audited(troubles=self.troubles)


def audit(head: ShardHead, queued: Sequence[QueuedBatch], *, expect: Expectations | None = None) -> Audited:
    """Look at every staged batch before it is published: one snapshot, files that are there and hold what they say.

    A batch whose range is in the ledger by now has nothing to add; one whose range is there in part is in trouble. One
    that is being written is none yet.
    """
    queued = [each for each in queued if each.is_written]
    audited = Audited()
    ledgers: dict[str, Ledger] = dict(head.state.ledgers)
    with ThreadPoolExecutor(_READERS) as pool:
        looked = list(pool.map(lambda each: _look_at(head.table, each, expect), queued))
    for each, found in zip(queued, looked, strict=True):
        producer, wanted = each.name.producer, each.name.range
        ledger = ledgers.get(producer, Ledger())
        if ledger.covers(wanted):
            audited.already_published.append(each)
        elif overlap := ledger.overlaps(wanted):
            message = f"staged range {wanted} of producer {producer!r} overlaps {', '.join(map(str, overlap))}"
            hint = (
                f"discard it, and append the missing numbers: tidemark discard {each.collection} --producer {producer}"
            )
            audited.troubles.append(Trouble(each, RangeOverlap(message, hint=hint)))
        elif isinstance(found, TidemarkError):
            audited.troubles.append(Trouble(each, found))
        else:
            ledgers[producer] = ledger.add(wanted)
            audited.batches.append(
                Batch(added=found, branches=((each.branch, each.snapshot_id),), producer=producer, range=wanted)
            )
    return audited


def _look_at(
    table: Table, queued: QueuedBatch, expect: Expectations | None
) -> tuple[DataFile, ...] | DamagedBatch | ExpectationFailed:
    """Return the files of an intact batch, else what is wrong with it."""
    staged = read_intact(table, queued.branch, None, of_present_schema=False)
    if staged is None:
        return _damaged(queued, "its branch does not hold exactly one staged snapshot")
    for file in staged.files:
        try:
            with table.io.new_input(file.file_path).open() as stream, ParquetFile(stream) as parquet:
                stored = parquet.metadata.num_rows
        except (OSError, pa.ArrowInvalid) as error:
            return _damaged(queued, f"{file.file_path} cannot be read: {type(error).__name__}")
        if stored != file.record_count:
            return _damaged(
                queued, f"{file.file_path} holds {stored} rows, not the {file.record_count} it was staged with"
            )
    if expect is not None:
        name = queued.name
        which = f"tidemark discard {queued.collection} --producer {name.producer} --range {name.range_text}"
        hint = f"discard it ({which}), or alter `expect` and apply it; then flush again"
        try:
            check_expectations(table, BatchFiles(queued.collection, str(name), staged.files, hint), expect)
        except ExpectationFailed as error:
            return error
    return staged.files


def _damaged(queued: QueuedBatch, what: str) -> DamagedBatch:
    return DamagedBatch(
        f"the staged batch {queued.name} of {queued.collection!r} is damaged and was not published: {what}",
        hint=f"append it again, or discard it: tidemark discard {queued.collection} --producer {queued.name.producer}",
    )
