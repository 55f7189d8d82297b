"""The state in which a run finds a source: a name for it, and whether it has changed since. Without rows, and a JVM.

Two states with one name hold the same rows. So a collection that was made equal to a state need not be compared with
a state of the same name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidemark.collections.sources.file_listing import FileListing, FileState, have_moved
from tidemark.errors import TidemarkError
from tidemark.interval import Interval, fill_interval, time_text
from tidemark.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.iceberg.shards import Shards

_SETTLED_MS = 60_000  # also for clocks that differ
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Looking:
    """What a look at the state of a source needs."""

    shards: Shards  # open the collections that the source reads
    settings: Settings  # have the connections
    interval: Interval | None = None  # the run's data interval; fills `{start}` and `{end}`
    spark: SparkSession | None = None  # other threads may share the session; without one, some states cannot be told

    def fill(self, text: str) -> str:
        """Return ``text`` with the data interval filled in."""
        if self.interval is None:
            return text
        return fill_interval(text, time_text(self.interval.start_ms), time_text(self.interval.end_ms))


class Pin(Protocol):
    """The state of one input."""

    def text(self) -> str:
        """Return the name of the state."""

    def moved(self) -> bool:
        """Say whether another read of the pinned input might return other rows, or fail."""

    def is_still(self, since_ms: int) -> bool:
        """Say whether the input has the same state still as at ``since_ms``, and a change from now on will show."""


@dataclass(frozen=True, slots=True)
class FilesPin:
    """Files by name, size, times and inode."""

    listing: FileListing
    spark: SparkSession | None = None

    def text(self) -> str:
        return "\n".join(str(file) for file in self.listing.files)

    def moved(self) -> bool:
        return have_moved(self.listing, self.spark)

    def is_still(self, since_ms: int) -> bool:
        """Look at times alone, since ``moved`` has looked at the same files."""
        return all(is_settled(file, since_ms) for file in self.listing.files)


def is_settled(file: FileState, since_ms: int) -> bool:
    """Say whether a change of the file after ``since_ms`` would show: some file systems tell whole seconds.

    A file of the same size that replaced one in the same second has the same name.
    """
    settled_ns = (since_ms - _SETTLED_MS) * 1_000_000
    return file.changed_ns % _SECOND_NS > 0 or max(file.modified_ns, file.changed_ns) < settled_ns


@dataclass(frozen=True, slots=True)
class SnapshotPin:
    """A snapshot of an Iceberg table, which never changes; ``contents`` names its rows, which others may share."""

    contents: str

    def text(self) -> str:
        return self.contents

    def moved(self) -> bool:
        return False

    def is_still(self, since_ms: int) -> bool:  # noqa: ARG002 - as the protocol says
        return True


@dataclass(frozen=True, slots=True)
class VersionPin:
    """What a database answers to a query that names its state; no state of a database can be pinned."""

    answer: str
    ask: Callable[[], str | None]

    def text(self) -> str:
        return self.answer

    def moved(self) -> bool:
        return False

    def is_still(self, since_ms: int) -> bool:  # noqa: ARG002 - as the protocol says
        try:
            return self.ask() == self.answer
        except TidemarkError:  # the rows were read, whatever the database says now
            return False


def name_state(pins: Sequence[Pin], *decisive: str) -> str:
    """Return the name of the state of all inputs together, and of whatever else is ``decisive`` for the rows."""
    text = "\0".join([*decisive, *(pin.text() for pin in pins)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
