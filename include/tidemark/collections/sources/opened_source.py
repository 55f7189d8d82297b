"""What it takes to open a source, and a source that was opened: what it gives, and what it is pinned to."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidemark.collections.sources.errors import translating
from tidemark.collections.sources.file_listing import FileListing, have_moved, list_files
from tidemark.errors import InputMissing, Refused, SourceMoved, TidemarkError
from tidemark.interval import fill_interval, time_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from tidemark.collections.schema.types import Columns
    from tidemark.iceberg.shards import Shards
    from tidemark.interval import Interval
    from tidemark.settings import Settings


@dataclass(frozen=True, slots=True)
class Opening:
    """What opening a source takes, and its inputs share; ``planned`` collections are about to be created or altered."""

    spark: SparkSession
    shards: Shards
    settings: Settings
    interval: Interval | None
    planned: Mapping[str, Columns]

    def fill(self, text: str) -> str:
        """Return ``text`` with the data interval filled in."""
        if self.interval is None:
            return text
        return fill_interval(text, time_text(self.interval.start_ms), time_text(self.interval.end_ms))


class Pin(Protocol):
    """One state of one thing that is read."""

    def moved(self) -> bool:
        """Tell whether reading it again might give something else."""

    def text(self) -> str:
        """Return the same text for the same state."""


@dataclass(frozen=True, slots=True)
class FilesPin:
    """Files by name, size, times and inode."""

    listing: FileListing
    spark: SparkSession

    def moved(self) -> bool:
        return have_moved(self.listing, self.spark)

    def text(self) -> str:
        return "\n".join(str(file) for file in self.listing.files)


@dataclass(frozen=True, slots=True)
class SnapshotPin:
    """A snapshot of an Iceberg table, which never changes."""

    table: str
    snapshot_id: int
    manifests: tuple[str, ...] = ()  # of a collection, whose every quiet run commits another snapshot of the same files

    def moved(self) -> bool:
        return False

    def text(self) -> str:
        return f"{self.table}@{' '.join(self.manifests) or self.snapshot_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSource:
    """What one source gives in this run. Every pass reads the same files and snapshots.

    Only if ``pinnable``, two passes over it are known to see one state as long as ``moved`` says no. Otherwise (a
    database, a query whose result depends on more than its inputs) the caller has to compare what both passes saw.
    """

    where: str  # names the source in messages
    desired: DataFrame
    pins: tuple[Pin, ...]
    pinnable: bool
    size_bytes: int | None  # as stored; None if that is not known without reading it
    copy_of: str | None = None  # the fingerprint of the source that this is a copy of
    place: str = ""  # where the rows come from, for messages
    # Tells which columns occur in any row; None where one that is missing in a row is an error already.
    occurring_columns: Callable[[], frozenset[str]] | None = None

    def frame(self) -> DataFrame:
        """Return what the collection should hold; evaluated anew by every action."""
        return self.desired

    def moved(self) -> bool:
        """Tell whether anything that is pinned was changed or removed since the source was opened."""
        return any(pin.moved() for pin in self.pins)

    @property
    def fingerprint(self) -> str:
        """The same for the same pinned state; empty if the source, or what it is a copy of, cannot be pinned."""
        if self.copy_of is not None:
            return self.copy_of
        if not self.pinnable:
            return ""
        return hashlib.sha256("\0".join(pin.text() for pin in self.pins).encode()).hexdigest()[:16]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn what Spark throws in the block because of this source into a typed error.

        Raises:
            SourceMoved: If reading failed, and what is pinned moved: a file that is being replaced looks damaged.
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
        """Read the source once into Parquet files below ``folder`` and return a source that reads these.

        Args:
            folder: A URI that driver and executors share; private to this run, and removed by the caller.

        Raises:
            SourceMoved: If what is pinned moved before all of it was read: the copy may mix two states.
        """
        with self.reading():
            self.desired.write.mode("overwrite").parquet(folder)
        if self.moved():
            raise SourceMoved(f"{self.where} was changed while it was copied")
        spark = self.desired.sparkSession
        listing = list_files(folder, spark)
        copy = spark.read.schema(self.desired.schema).parquet(folder)
        return OpenedSource(
            where=f"a copy of {self.where}",
            desired=copy,
            pins=(FilesPin(listing, spark),),
            pinnable=True,
            size_bytes=listing.size_bytes,
            copy_of=self.fingerprint,
            place=self.place,
            occurring_columns=self.occurring_columns,
        )
