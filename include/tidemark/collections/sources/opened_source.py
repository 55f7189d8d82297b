"""An open source: its rows, and the state to which its inputs are pinned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from tidemark.collections.sources.errors import translating
from tidemark.collections.sources.file_listing import list_files
from tidemark.collections.sources.pins import FilesPin, Looking, Pin, VersionPin
from tidemark.errors import InputMissing, Refused, SourceMoved, TidemarkError
from tidemark.interval import Interval
from tidemark.locations import to_path
from tidemark.settings import Settings

if TYPE_CHECKING:
    from tidemark.collections.sources.followed.file_set import FollowedFiles
    from tidemark.collections.sources.followed.iceberg_changes import FollowedTable
    from tidemark.iceberg.shards import Shards


@dataclass(frozen=True, slots=True)
class Opening:
    """What a source and its inputs need to open."""

    spark: SparkSession  # other threads may share the session
    shards: Shards  # open the collections that the source reads
    settings: Settings  # have the connections
    interval: Interval | None = None  # the run's data interval; fills `{start}` and `{end}`
    expected: Mapping[str, OpenedSource] = field(default_factory=dict)  # collections that are read as they will be

    @property
    def looking(self) -> Looking:
        """What a look at the state of the source needs."""
        return Looking(self.shards, self.settings, self.interval, self.spark)

    def fill(self, text: str) -> str:
        """Return ``text`` with the data interval filled in."""
        return self.looking.fill(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSource:
    """The rows of one source in this run. Every pass reads the same files and snapshots.

    If ``pinnable``, two passes see one state as long as ``moved`` is False. Otherwise (a database, a query whose result
    depends on more than its inputs) the caller has to compare the rows of both passes.
    """

    where: str  # names the source in messages
    desired: DataFrame  # the rows that the collection should hold; each Spark action evaluates the rows again
    pinnable: bool
    pins: tuple[Pin, ...] = ()
    state: tuple[Pin, ...] | None = None  # whose names together name the rows, also those of a copy; None: nothing does
    followed: FollowedTable | FollowedFiles | None = None  # whose files decide the rows; None: cannot be followed
    place: str = ""  # where the rows come from, for messages
    input_columns: Mapping[str, list[str]] = field(default_factory=dict)  # of each input of a query
    # Returns the columns that occur in any row; None if a row without a column is an error already.
    occurring_columns: Callable[[], frozenset[str]] | None = None

    def moved(self) -> bool:
        """Say whether a pinned input was changed or removed since the source was opened."""
        return any(pin.moved() for pin in self.pins)

    @property
    def is_named_exactly(self) -> bool:
        """Whether equal names mean rows that are equal to the last bit, and not only up to rounding and ties."""
        return self.pinnable or any(isinstance(pin, VersionPin) for pin in self.state or ())

    def is_still_named(self, since_ms: int) -> bool:
        """Say whether the state has its name still, so that no row can have come between the name and the rows.

        ``since_ms`` is when the run looked at the source.
        """
        return all(pin.is_still(since_ms) for pin in self.state or ())

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn Spark's errors in the block into typed errors, if this source causes them.

        Raises ``SourceMoved`` if a read failed and a pinned input changed: a file that is being replaced looks damaged.
        """
        try:
            with translating(self.where):
                yield
        except Exception as error:
            may_be_of_source = isinstance(error, Refused | InputMissing) or not isinstance(error, TidemarkError)
            if may_be_of_source and self.moved():
                raise SourceMoved(f"{self.where} was changed while it was read: {error}") from error
            raise

    def materialise(self, folder: str) -> OpenedSource:
        """Copy the rows into Parquet files below the URI ``folder``, and return a source that reads the copy.

        Driver and executors share the folder; it is private to this run, and the caller removes it.

        Raises ``SourceMoved`` if a pinned input changed before all rows were copied: the copy may mix two states.
        """
        with self.reading():
            self.desired.write.mode("overwrite").parquet(folder)
        if self.moved():
            raise SourceMoved(f"{self.where} was changed while it was copied")
        spark = self.desired.sparkSession
        return replace(
            self,
            where=f"a copy of {self.where}",
            desired=spark.read.schema(self.desired.schema).parquet(folder),
            pins=(FilesPin(list_files(str(to_path(folder) or folder), spark), spark),),
            pinnable=True,
            followed=None,
        )
