"""Looks at staged batches before a flush publishes them: are they whole, new, and what their collection expects?"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemark.collections.quality.expectations import BatchFiles, check_expectations
from tidemark.collections.staged.batch_damage import read_whole
from tidemark.errors import DamagedBatch, ExpectationFailed, RangeOverlap, TidemarkError
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.shard.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from tidemark.collections.declarations.append_only import Expectations
    from tidemark.collections.staged.batches import QueuedBatch
    from tidemark.iceberg.shard.head import ShardHead

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

    A batch whose range is in the ledger by now has nothing to add; one whose range is there in part is in trouble.
    """
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
            hint = f"discard it, and append the missing numbers: {each.discard_command}"
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
    """Return the files of a whole batch, else what is wrong with it."""
    staged = read_whole(table, queued)
    if isinstance(staged, DamagedBatch):
        return staged
    if expect is not None:
        hint = f"discard it ({queued.discard_command}), or alter `expect` and apply it; then flush again"
        try:
            check_expectations(table, BatchFiles(queued.collection, str(queued.name), staged.files, hint), expect)
        except ExpectationFailed as error:
            return error
    return staged.files
