"""The names of appended batches, and what is staged: listed for people, and looked up before anything is accepted.

A staged batch is whole if its branch holds one snapshot, and the snapshot's files are there with all their rows. A
damaged batch is never published, and does not keep anybody from appending its range again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from pyiceberg.table import Table

from tidemark.collections.deployment import Deployment, StoredMode
from tidemark.errors import CorruptState, DamagedBatch, RangeOverlap, UsageError
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.shard.branch_names import STAGED
from tidemark.iceberg.shard.damage import READERS, damage_of
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging.branches import StagedBatch, branch_name, list_staged, read_intact
from tidemark.iceberg.staging.correction_branches import staged_times, why_stale
from tidemark.interval import Interval

RECONCILE = "reconcile"  # the writer of staged corrections
EVERYTHING = "all"  # the name of corrections of no slice
_PRODUCER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_RANGE = re.compile(r"(-?\d{1,18}):(-?\d{1,18})")


@dataclass(frozen=True, slots=True)
class BatchName:
    """Who made a batch, and which half-open range of that producer's numbers it holds.

    Numbers are sequence numbers, or times in ms; the same name always stands for the same rows.
    """

    producer: str
    range: Range

    def __post_init__(self) -> None:
        if not _PRODUCER.fullmatch(self.producer):
            raise UsageError(
                f"{self.producer!r} cannot name a producer",
                hint="a producer's name has letters, digits, dots, - and _, and starts with a letter or digit",
            )
        if self.range.start >= self.range.end:
            raise UsageError(
                f"range {self.range} of producer {self.producer!r} is empty or reversed",
                hint="a range is half-open: START:END with START < END",
            )

    def __str__(self) -> str:
        return f"{self.producer} {self.range_text}"

    @property
    def range_text(self) -> str:
        """``START:END``, as the command line takes it."""
        return f"{self.range.start}:{self.range.end}"

    def branch(self, generation: int) -> str:
        """Return the staging branch that a deployment of ``generation`` puts this batch on."""
        return branch_name(generation=generation, writer=self.producer, batch=self.range_text)


def parse_range(text: str) -> Range:
    """Return the half-open range that ``START:END`` stands for; it may still be empty.

    Raises ``UsageError`` if the text is not a range.
    """
    match = _RANGE.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is no range", hint="a range is START:END, whole numbers, the end not included")
    return Range(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedBatch:
    """One staged batch, as far as refs and summaries tell."""

    collection: str
    name: BatchName
    generation: int
    branch: str
    snapshot_id: int
    rows: int
    size_bytes: int
    staged_at_ms: int
    is_ingested: bool = False  # an ingest has read the rows from a buffer
    slice: str = ""  # of corrections: START:END in ms, or all
    stale: str = ""  # of corrections: why they cannot be published any more

    @property
    def interval(self) -> Interval | None:
        """The slice of corrections; None: everything."""
        return Interval(*parse_range(self.slice)) if self.slice not in {"", EVERYTHING} else None

    @property
    def discard_command(self) -> str:
        """What removes this batch, and no other."""
        name = self.name
        return (
            f"tidemark discard {self.collection} --producer {name.producer} --range {name.range_text} "
            f"--generation {self.generation}"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "collection": self.collection,
            "producer": self.name.producer,
            "range": list(self.name.range),
            "generation": self.generation,
            "rows": self.rows,
            "bytes": self.size_bytes,
            "staged_at": self.staged_at_ms,
            **({"slice": self.slice, "stale": self.stale} if self.slice else {}),
        }


def queued_batches(head: ShardHead, *, collection: str, deployment: Deployment | None = None) -> list[QueuedBatch]:
    """Return what is staged for an append-only collection, in (producer, range) order; nothing for any other kind.

    With ``deployment`` only what is this deployment's to publish, as ``choose_own`` returns it.
    """
    if head.state.layout is not ShardKind.APPEND_ONLY:
        return []
    found = sorted(
        (batch for staged in list_staged(head) if (batch := _queued(collection, staged))),
        key=lambda batch: (batch.name.producer, batch.name.range, batch.generation),
    )
    return found if deployment is None else choose_own(found, deployment)


def choose_own(queued: Iterable[QueuedBatch], deployment: Deployment) -> list[QueuedBatch]:
    """Return the batches that are this deployment's to publish (``Deployment.heir_of``), the newest deployment's first.

    Of batches that overlap, a flush publishes the first. Raises as ``Deployment.heir_of``.
    """
    batches = sorted(queued, key=lambda batch: -batch.generation)
    own = deployment.heir_of(batch.generation for batch in batches)
    return [batch for batch in batches if batch.generation in own]


def queued_corrections(head: ShardHead, *, collection: str) -> list[QueuedBatch]:
    """Return what read-only reconciles have staged.

    The range is from the upper that they were computed against to the time of their rows; of damaged ones, which do
    not tell, it is the time of their staging.
    """
    found = []
    for staged in list_staged(head):
        if staged.writer == RECONCILE and (staged.name == EVERYTHING or _RANGE.fullmatch(staged.name)):
            lower, time = staged_times(head, staged.branch) or (staged.staged_at_ms, staged.staged_at_ms)
            queued = _described(collection, staged, BatchName(RECONCILE, Range(lower, time + 1)))
            found.append(replace(queued, slice=staged.name, stale=why_stale(head, staged.branch)))
    return found


def corrections_branch(generation: int, interval: tuple[int, int] | None) -> str:
    """Return the branch of a deployment's corrections of a slice ``[start, end)`` in ms; None: of everything."""
    batch = EVERYTHING if interval is None else f"{interval[0]}:{interval[1]}"
    return branch_name(generation=generation, writer=RECONCILE, batch=batch)


def own_corrections(head: ShardHead, deployment: Deployment) -> list[str]:
    """Return the branches of corrections that are this deployment's to publish.

    Those of the newest deployment come first, and of one deployment the newest, by the order of the commits: clocks
    differ, and step back. Raises as ``Deployment.heir_of``.
    """
    queued = queued_corrections(head, collection=head.table.name()[-1])
    order = {each.snapshot_id: each.sequence_number or 0 for each in head.table.metadata.snapshots}
    queued.sort(key=lambda batch: order[batch.snapshot_id], reverse=True)
    return [batch.branch for batch in choose_own(queued, deployment)]


def kept_corrections(head: ShardHead, deployment: Deployment) -> list[str]:
    """Return the branches of corrections that somebody will publish: this deployment, or a newer one once it leads.

    No later run repeats a slice, so they are kept whatever their age. Raises as ``Deployment.heir_of``.
    """
    queued = queued_corrections(head, collection=head.table.name()[-1])
    newer = (batch.branch for batch in queued if batch.generation > deployment.generation)
    return [*own_corrections(head, deployment), *newer]


def list_batches(shards: Shards, names: Iterable[str]) -> list[QueuedBatch]:
    """Return what is staged for ``names``, or for every collection if none is given: batches, and corrections.

    Raises:
        UnknownCollection: If there is no collection of a name.
        CorruptState: If a named one cannot be read; without names it is passed over, since it may be anybody's table.
    """
    chosen = list(dict.fromkeys(names))
    found: list[QueuedBatch] = []
    for shard in [shards.open(name) for name in chosen] or shards.all():
        try:
            found += queued_in(shard.load(), collection=shard.name)
        except CorruptState:
            if chosen:
                raise
    return found


def queued_in(head: ShardHead, *, collection: str) -> list[QueuedBatch]:
    """Return what is staged for one collection, by whatever deployment: batches, or corrections."""
    if head.state.layout is ShardKind.DIFFERENTIAL:
        return queued_corrections(head, collection=collection)
    return queued_batches(head, collection=collection)


def describe_waiting(queued: Iterable[QueuedBatch], leader: StoredMode) -> str:
    """Say who publishes the batches, of whatever deployments; ``leader`` is the mode of the leading one."""
    said = []
    for generation, count in sorted(Counter(batch.generation for batch in queued).items()):
        until = f"somebody decides: `tidemark flush --take-over {generation}`, or discard them; it never led"
        if generation > leader.generation:
            until = f"deployment {generation} leads"
        elif generation == leader.generation or generation in leader.led:
            until = f"deployment {leader.generation} flushes"
        said.append(f"{count} staged by deployment {generation} wait until {until}")
    return "; ".join(said)


def taken_over(head: ShardHead, published: Iterable[Batch]) -> dict[str, object]:
    """Return the detail that names the published branches which another deployment than this leader had staged."""
    branches = [branch for batch in published for branch, _ in batch.branches]
    own = f"{STAGED}{head.state.token.generation}/"
    of_others = [branch for branch in branches if not branch.startswith(own)]
    return {"taken_over": of_others} if of_others else {}


# -- whole batches -------------------------------------------------------------------------------------------------


def read_whole(table: Table, queued: QueuedBatch) -> StagedBatch | DamagedBatch:
    """Return the batch with its files, or what is wrong with it.

    Raises ``Unreachable`` if the store is in trouble, which may pass: nothing is known about the batch then.
    """
    staged = read_intact(table, queued.branch, None, of_present_schema=False)
    if staged is None:
        return _damaged(queued, "its branch does not hold exactly one staged snapshot")
    for file in staged.files:
        if damage := damage_of(table, file):
            return _damaged(queued, f"{file.file_path} {damage}")
    return staged


def only_whole(table: Table, queued: Sequence[QueuedBatch]) -> list[QueuedBatch]:
    """Return the batches that are whole, in order."""
    if not queued:
        return []
    with ThreadPoolExecutor(READERS) as pool:
        read = list(pool.map(lambda batch: read_whole(table, batch), queued))
    return [batch for batch, staged in zip(queued, read, strict=True) if not isinstance(staged, DamagedBatch)]


def whole_ranges(
    head: ShardHead, wanted: Range, *, producer: str, collection: str, deployment: Deployment
) -> list[Range]:
    """Return the ranges of ``producer`` that overlap ``wanted`` and wait whole for a flush by ``deployment``."""
    queued = [
        batch
        for batch in queued_batches(head, collection=collection, deployment=deployment)
        if batch.name.producer == producer and Ledger((batch.name.range,)).overlaps(wanted)
    ]
    return [batch.name.range for batch in only_whole(head.table, queued)]


def _damaged(queued: QueuedBatch, damage: str) -> DamagedBatch:
    return DamagedBatch(
        f"the staged batch {queued.name} of {queued.collection!r} is damaged and was not published: {damage}",
        hint=f"append it again, or discard it: {queued.discard_command}",
    )


# -- accepted before? ---------------------------------------------------------------------------------------------


class Standing(Enum):
    """Where a range stands before it is appended."""

    FREE = auto()
    STAGED = auto()  # every number of it is staged, or published
    PUBLISHED = auto()


def standing_in(head: ShardHead, name: BatchName, *, collection: str, deployment: Deployment) -> Standing:
    """Say whether the batch was published, or is staged whole and ``deployment``'s to publish.

    Raises ``RangeOverlap`` as ``find_standing``.
    """
    staged = whole_ranges(head, name.range, producer=name.producer, collection=collection, deployment=deployment)
    return find_standing(name, published=head.state.ledgers.get(name.producer, Ledger()), staged=staged)


def find_standing(name: BatchName, *, published: Ledger, staged: Sequence[Range]) -> Standing:
    """Say whether the range of ``name`` is among the ranges of its producer, published or staged whole.

    Raises ``RangeOverlap`` if some of its numbers were accepted and others were not; naming both ranges.
    """
    wanted = name.range
    if published.covers(wanted):
        return Standing.PUBLISHED
    if published.add_free(staged).covers(wanted):
        return Standing.STAGED
    if overlap := [*published.overlaps(wanted), *(each for each in staged if Ledger((each,)).overlaps(wanted))]:
        raise RangeOverlap(
            f"range {wanted} of producer {name.producer!r} overlaps {', '.join(map(str, overlap))}, accepted before",
            hint="append the missing numbers under ranges of their own",
        )
    return Standing.FREE


def _queued(collection: str, staged: StagedBatch) -> QueuedBatch | None:
    """Return None for a branch that no append made: what it holds is nobody's to publish."""
    try:
        name = BatchName(staged.writer, parse_range(staged.name))
    except UsageError:
        return None
    return _described(collection, staged, name)


def _described(collection: str, staged: StagedBatch, name: BatchName) -> QueuedBatch:
    return QueuedBatch(
        collection=collection,
        name=name,
        generation=staged.generation,
        branch=staged.branch,
        snapshot_id=staged.snapshot_id,
        rows=staged.rows,
        size_bytes=staged.size_bytes,
        staged_at_ms=staged.staged_at_ms,
        # The fingerprint of an ingest is the name of the attempt's own branch, that of an append is the batch's name.
        is_ingested=staged.fingerprint.startswith(STAGED),
    )
