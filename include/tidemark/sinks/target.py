"""What every target of sinks does: one transaction for the rows and the progress, which another run cannot interleave.

A run asks the target, and nobody else, how far it came::

    with open_target(sink, settings) as target:
        target.check()
        claimed = target.claim(owner, generation=1)
        target.mirror(claimed, replace(claimed, time=upper), deletes, upserts)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.sinks.progress import Owner, Progress, SinkColumn

if TYPE_CHECKING:
    import pyarrow as pa


class Target(ABC):
    """One target for one run; a context manager, which opens connections when they are needed, and closes them.

    Every writing method takes the progress ``before``, as ``claim`` or the last write returned it, and the progress
    ``after``, which the target stores in the same transaction. ``after.columns`` are the columns of the rows, in order;
    the target evolves by field ids from ``before.columns``: new columns are added, renamed and widened in the same
    transaction, dropped ones stay and get NULL.

    Every writing method raises:
        FencedByEpoch: If another run claimed the target since; nothing was written.
        SchemaMismatch: If the target cannot have such columns; with both schemas, nothing was written.
        Unreachable: If the target went away; nothing was written, as the target says afterwards.
        CommitStateUnknown: If the commit may have landed, and the target cannot be asked. The next run asks.
    """

    title: str  # as messages name the target; without secrets

    def __init__(self, sink: SinkDeclaration) -> None:
        self.sink = sink

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027 - a target may have nothing open
        """Release what is open; nothing that is not committed stays in the target."""

    @abstractmethod
    def check(self) -> None:
        """Return once the target answers. Raises ``Unreachable`` within 5 s."""

    @abstractmethod
    def look(self) -> Progress | None:
        """Return the progress, without claiming the target; None if no sink ever wrote there."""

    @abstractmethod
    def inspect(self, columns: tuple[SinkColumn, ...]) -> None:
        """Check that what is there can take a first load of ``columns``; writes nothing.

        Raises ``SchemaMismatch`` with both schemas; ``Refused`` if rows are there, and the declaration
        does not say ``existing: replace``.
        """

    @abstractmethod
    def claim(self, owner: Owner, *, generation: int) -> Progress:
        """Take the target over from every older run, in one transaction; return the progress with the new epoch.

        Raises:
            NotPossible: If the target belongs to somebody else.
            FencedByGeneration: If a newer deployment wrote the target.
        """

    @abstractmethod
    def load(self, before: Progress, after: Progress, rows: Iterator[pa.RecordBatch]) -> int:
        """Write the first contents and the progress in one transaction; return the number of rows.

        Of a mirror, the rows have the columns of ``after``; of changes, also ``_time`` and ``_diff`` (bigint).
        """

    @abstractmethod
    def mirror(self, before: Progress, after: Progress, deletes: pa.Table, upserts: pa.Table) -> None:
        """Make net changes and write the progress in one transaction; both tables may be empty.

        ``deletes`` has the key columns of rows that are gone, ``upserts`` all columns of rows that came or changed;
        each key stands at most once in the two together.
        """

    @abstractmethod
    def append(self, before: Progress, after: Progress, updates: Iterator[pa.RecordBatch]) -> None:
        """Append updates and write the progress in one transaction.

        The batches have the columns of ``after``, ``_time`` and ``_diff``; ordered by time, and of one time
        retractions before insertions.
        """

    @abstractmethod
    def forget(self, owner: Owner) -> None:
        """Remove the progress if it is still that of ``owner``, after the sink was dropped; the rows stay."""

    def describe(self) -> dict[str, Any]:
        """Return what else people want to know of the target, for ``tidemark sink status``."""
        return {}
