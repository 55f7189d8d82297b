"""Judges the staged batches that a flush may publish: is a batch whole, is it new, is it as its collection expects?"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from tidemark.collections.declarations.append_only import Expectations
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.quality.expectations import BatchFiles, check_expectations
from tidemark.collections.sources.formats.buffer import BufferSource
from tidemark.collections.staged.batches import QueuedBatch, read_whole
from tidemark.errors import DamagedBatch, ExpectationFailed, RangeOverlap, TidemarkError
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.shard.damage import READERS
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.ledger import FORWARDED, SEQUENCER, Ledger


@dataclass(frozen=True, slots=True)
class Trouble:
    """A staged batch that stays where it is, and why."""

    queued: QueuedBatch
    error: TidemarkError


@dataclass(slots=True)
class Audited:
    """The staged batches of one collection, sorted into what a flush does with them."""

    batches: list[Batch] = field(default_factory=list)  # to publish, in (producer, range) order
    already_published: list[QueuedBatch] = field(default_factory=list)  # only their branches are to go
    to_ingest_again: list[QueuedBatch] = field(default_factory=list)  # so are theirs: their entries are in a buffer
    troubles: list[Trouble] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(batch.inserted_rows for batch in self.batches)

    @property
    def is_refused(self) -> bool:
        """Whether some rows are not what the collection expects: a person decides before any batch is visible."""
        return any(isinstance(trouble.error, ExpectationFailed) for trouble in self.troubles)


def audit(head: ShardHead, queued: Sequence[QueuedBatch], declaration: Declaration | None) -> Audited:
    """Judge every staged batch of one collection.

    A batch whose range is in the ledger adds nothing; a batch is in trouble if the ledger has a part of its range. Of
    two batches that overlap, the first one in ``queued`` is published. Where a flush forwards batches into a buffer and
    keeps no rows, the ledger of forwarded batches counts as well. Of entries that an ingest has read from a sequencer,
    the next ingest reads again what the ledger lacks; a batch that was appended into the buffer it takes as a whole.
    """
    audited = Audited()
    expect = declaration.expect if declaration else None
    reads_buffer = declaration is not None and isinstance(declaration.source, BufferSource)
    forwards = declaration is not None and declaration.writes_to is not None and not reads_buffer
    ledgers: dict[str, Ledger] = dict(head.state.ledgers)
    with ThreadPoolExecutor(READERS) as pool:
        judged = list(pool.map(lambda batch: _judge(head.table, batch, expect), queued))
    for batch, files in zip(queued, judged, strict=True):
        producer, wanted = batch.name.producer, batch.name.range
        accepted = ledgers.get(producer, Ledger())
        is_forwarded = forwards and not batch.is_ingested
        ledger = accepted.union(ledgers.get(producer + FORWARDED, Ledger())) if is_forwarded else accepted
        if ledger.covers(wanted):
            audited.already_published.append(batch)
        elif batch.is_ingested and reads_buffer and SEQUENCER.fullmatch(producer) and ledger.overlaps(wanted):
            audited.to_ingest_again.append(batch)
        elif overlap := ledger.overlaps(wanted):
            message = f"staged range {wanted} of producer {producer!r} overlaps {', '.join(map(str, overlap))}"
            hint = f"discard it, and append the missing numbers: {batch.discard_command}"
            audited.troubles.append(Trouble(batch, RangeOverlap(message, hint=hint)))
        elif isinstance(files, TidemarkError):
            audited.troubles.append(Trouble(batch, files))
        else:
            ledgers[producer] = accepted.add(wanted)
            branches = ((batch.branch, batch.snapshot_id),)
            audited.batches.append(Batch(added=files, branches=branches, producer=producer, range=wanted))
    audited.batches.sort(key=lambda batch: (batch.producer, batch.range))
    return audited


def _judge(
    table: Table, queued: QueuedBatch, expect: Expectations | None
) -> tuple[DataFile, ...] | DamagedBatch | ExpectationFailed:
    """Return the files of a batch that is whole and as expected, else the error."""
    staged = read_whole(table, queued)
    if isinstance(staged, DamagedBatch):
        return staged
    hint = f"discard it ({queued.discard_command}), or alter `expect` and apply it; then flush again"
    try:
        check_expectations(table, BatchFiles(queued.collection, str(queued.name), staged.files, hint), expect)
    except ExpectationFailed as error:
        return error
    return staged.files
