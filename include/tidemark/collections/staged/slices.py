"""Which rows a staged correction is about: those of a slice of the declared scope, or all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemark.collections.staged.batches import EVERYTHING, QueuedBatch, parse_range
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.staging.correction_branches import staged_about
from tidemark.interval import Interval, time_text


@dataclass(frozen=True, slots=True)
class Slice:
    """The rows whose ``column`` lies in ``times``, in ms, half-open.

    Without a column it is unknown which rows: an older Tidemark, which staged them, did not say so.
    """

    column: str
    times: Range


@dataclass(slots=True)
class Coverage:
    """The rows that some corrections are about."""

    has_all: bool = False
    parts: dict[str, Ledger] = field(default_factory=dict)  # by column

    def add(self, one: Slice | None) -> None:
        """Add the rows of a slice that touches none of the slices so far; None: all rows."""
        if one is None:
            self.has_all = True
        else:
            self.parts[one.column] = self.parts.get(one.column, Ledger()).add(one.times)

    def covers(self, one: Slice | None) -> bool:
        """Tell whether every row of ``one`` (None: of the collection) is among these rows."""
        if self.has_all or one is None:
            return self.has_all
        return bool(one.column) and self.parts.get(one.column, Ledger()).covers(one.times)

    def touches(self, one: Slice | None) -> bool:
        """Tell whether a row may be both in ``one`` (None: all rows) and among these rows."""
        if self.has_all or not self.parts:
            return self.has_all
        if one is None or not one.column or {*self.parts} != {one.column}:
            return True
        return bool(self.parts[one.column].overlaps(one.times))


def slice_text(one: Slice | None) -> str:
    """Return the form that a staged correction carries."""
    return EVERYTHING if one is None else f"{one.times.start}:{one.times.end} {one.column}"


def read_slice(head: ShardHead, branch: str, *, column: str = "") -> Slice | None:
    """Return the slice of the correction on ``branch``; None: all rows.

    A correction that does not say which rows it is about has a slice of ``column``, by the name of its branch.
    """
    times, _, said = (staged_about(head, branch) or branch.rpartition("/")[2]).partition(" ")
    return None if times == EVERYTHING else Slice(said or column, parse_range(times))


def to_reconcile(head: ShardHead, branches: Iterable[str], *, column: str) -> list[Interval | None]:
    """Return the intervals whose reconciles cover the corrections on ``branches``; None: everything.

    ``column`` is that of the declared scope, empty without a scope.
    """
    slices = [read_slice(head, branch, column=column) for branch in branches]
    intervals = {Interval(*one.times) for one in slices if one is not None and one.column == column != ""}
    return [*sorted(intervals)] if len(intervals) == len({*slices}) else [None]


def describe_stale(queued: Iterable[QueuedBatch]) -> list[str]:
    """Say of each correction that cannot be published any more why not, and what to do."""
    return [
        f"{batch.branch} is stale, {batch.stale}: once its deployment may write, the DAG flush_staged_batches, or "
        f"`{reconcile_command(batch.collection, batch.interval)}`, reconciles these rows"
        for batch in queued
        if batch.stale
    ]


def reconcile_command(name: str, interval: Interval | None) -> str:
    """Return what reconciles the rows of ``interval``; None: everything."""
    if interval is None:
        return f"tidemark reconcile {name}"
    start, end = (time_text(time).replace(" ", "T") for time in (interval.start_ms, interval.end_ms))
    return f"tidemark reconcile {name} --interval {start} {end}"
