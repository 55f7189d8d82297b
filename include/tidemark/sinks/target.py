"""What every target of sinks does: one transaction for the rows and the progress, which another run cannot interleave.

A run asks the target, and nobody else, how far it came::

    with open_target(sink, settings) as target:
        target.check()
        claimed = target.claim(owner, generation=1)
        target.mirror(claimed, replace(claimed, time=upper), deletes, upserts)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.collections.holds import moment_text
from tidemark.errors import CommitStateUnknown, Unreachable
from tidemark.iceberg.shard.state import Hold
from tidemark.sinks.progress import Owner, Progress, SinkColumn

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


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
    reloads: ClassVar[bool] = True  # whether ``load`` takes the place of rows that the sink has written, too

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

    def looks_away(self) -> bool:
        """Tell whether the place is as empty as one that is not mounted, and no sink ever wrote there; asks anew."""
        return False

    def refuse_away(self, found: Progress | None, holds: Mapping[str, Hold]) -> None:
        """Raise ``Unreachable`` if ``look`` found nothing in a place that looks empty while it is not mounted.

        ``holds`` are those of the collection. A run claims the target first, and takes the hold second; a drop releases
        the hold. So the hold of a sink says that the sink has written to its target.
        """
        if found is None and (held := holds.get(self.sink.hold)) is not None and self.looks_away():
            raise Unreachable(
                f"{self.title}: nothing of the sink {self.sink.name!r} is there, which has written there before, and "
                f"holds history since {moment_text(held.since)}",
                hint="mount the folder; if it is gone for good, drop the sink, and declare it again",
            )

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
        """Write the contents and the progress in one transaction; return the number of rows.

        They take the place of all rows. After the first contents, when ``before`` has a time, the columns evolve. Of a
        mirror, the rows have the columns of ``after``; of changes, which are loaded once, also ``_time`` and ``_diff``
        (bigint).
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


class Extent(NamedTuple):
    """How much a first load carries, about: its rows, and the partitions of the target that they belong into."""

    rows: int
    partitions: int


class Grouping(ABC):
    """Which rows belong into the same part."""

    count: int  # of the groups

    @abstractmethod
    def number(self, rows: pa.Table) -> NDArray[np.int64]:
        """Return the number of the group of each row."""


class PartWriter(ABC):
    """Writes parts of a first load, in any process: a writer can be pickled, and keeps nothing open between parts."""

    grouping: Grouping | None = None  # None: any rows make a part

    @abstractmethod
    def write(self, number: int, rows: Iterator[pa.Table]) -> Any:
        """Write a part, which nobody sees, and return what the commit needs to know of the part; it can be pickled.

        ``number`` tells the parts of a load apart. A part may be written more than once: what only one of several
        tries returned is committed.
        """


class PartedLoad(ABC):
    """A first load whose parts many processes write: a context manager, which removes them if the load fails.

    What a process that dies leaves stays invisible; a later run of the sink removes that.
    """

    writer: PartWriter

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        is_lost = isinstance(error, CommitStateUnknown | Unreachable)  # it may have landed, or nobody can remove parts
        if isinstance(error, Exception) and not is_lost:
            self.discard()

    @abstractmethod
    def commit(self, parts: Sequence[Any]) -> int:
        """Let the target be the rows of ``parts``, and write the progress, in one transaction; return their number.

        ``parts`` are what the writer returned. Raises as ``Target.load``.
        """

    @abstractmethod
    def discard(self) -> None:
        """Remove what was written; the load can then not be committed any more."""


class PartedTarget(Target):
    """A target that many processes can load at once."""

    @abstractmethod
    def begin_load(self, before: Progress, after: Progress, extent: Extent) -> PartedLoad:
        """Begin a load, in the place of ``load``; raises as ``load``."""
