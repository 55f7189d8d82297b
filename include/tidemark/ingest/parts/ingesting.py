"""One collection whose buffer is open: what the steps of an ingest share, be it for one run or for hours."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tidemark.clock import Clock
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Deployment, Mode
from tidemark.collections.sources.formats.buffer import BufferSource
from tidemark.errors import TidemarkError, UsageError
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shards import Shards
from tidemark.ingest.batches import BatchesSeen
from tidemark.ingest.buffer_log import BufferLog, check_buffer_source
from tidemark.ingest.delivery import SMALL_ENTRIES
from tidemark.ingest.publish import Target
from tidemark.write_buffer.address import find_connection
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.keys import Key, read_keys
from tidemark.write_buffer.ranges import DEFAULT_PART_NUMBERS
from tidemark.write_buffer.reader import Reader
from tidemark.write_buffer.registry import open_reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

KEYS_FRESH_MS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How an ingest may do its work."""

    start_spark: Callable[[], SparkSession] | None = None  # called only for much work; None: raise ``NeedsSpark``
    max_entries: int | None = None  # of one run and collection
    small_entries: int = SMALL_ENTRIES  # this process ingests up to so many, Spark ingests more
    part_numbers: int = DEFAULT_PART_NUMBERS  # of one task of Spark's

    def __post_init__(self) -> None:
        if self.max_entries is not None and self.max_entries < 1:
            raise UsageError(f"a run takes at least one entry, not {self.max_entries}", hint="leave the limit out")


@dataclass(slots=True)
class Ingesting:
    """The request, the open reader, and what the last look found. For one thread; ``engine`` may be set anew."""

    target: Target
    declaration: Declaration
    source: BufferSource
    connection: Connection
    reader: Reader
    engine: Engine
    mode: Mode = field(init=False)
    head: ShardHead = field(init=False)
    other_attempts: list[str] = field(init=False)  # branches of attempts that died, or are still at work
    seen: BatchesSeen = field(init=False)
    dropped: list[dict[str, str]] = field(default_factory=list)  # batches that nobody could publish, not reported yet
    mint: str = ""  # the id of the last mint that the reader was compared with the buffer for; empty: just opened
    keys: Mapping[str, Key] | None = None
    keys_until_ms: int | None = None  # when they are to be read again; None: nobody has read them

    def look_again(self, mint: str) -> None:
        """Compare the reader with the buffer, once for each ``mint``: a reader knows what there was when it was opened.

        If the log has other sequencers by now, or was made anew, the reader is opened again.

        Raises as ``open_reader``.
        """
        if self.mint not in {"", mint}:
            fresh = open_reader(self.connection)
            if (fresh.identity, fresh.sequencer_ids()) == (self.reader.identity, self.reader.sequencer_ids()):
                fresh.close()  # the other one has its connections
            else:
                self.reader.close()
                self.reader = fresh
                self.target = replace(self.target, log=log_of(self.connection, fresh))
                self.keys_until_ms = None
        self.mint = mint

    def fetch_keys(self) -> Mapping[str, Key] | None:
        """Return the keys of tables that the buffer keeps, as of half a minute ago at most; None if it keeps none.

        Raises as ``read_keys`` if the declaration wants every key to be looked at.
        """
        now_ms = self.target.clock.now_ms()
        if self.keys_until_ms is None or now_ms >= self.keys_until_ms:
            self.keys, self.keys_until_ms = self._read_keys(), now_ms + KEYS_FRESH_MS
        return self.keys

    def _read_keys(self) -> Mapping[str, Key] | None:
        try:
            return read_keys(self.connection) or None
        except TidemarkError as error:  # a login may be allowed to read the buffer, and not what stands beside it
            if self.source.check_keys:
                raise
            log.warning("the keys of %s cannot be read, so that none are checked: %s", self.reader.name, error)
            return None


def log_of(connection: Connection, reader: Reader) -> BufferLog:
    """Return the log that ``reader`` reads."""
    return BufferLog.of(connection, identity=reader.identity, title=reader.name)


@contextmanager
def open_ingesting(
    shards: Shards, declaration: Declaration, *, deployment: Deployment, clock: Clock, engine: Engine
) -> Iterator[Ingesting]:
    """Open the buffer of one collection for the steps of ``parts``, which may be taken again and again, for hours.

    The reader stays open between the steps. What it would miss, as a new partition or a log that was made anew, each
    mint looks at again, and so does the first part that is written of a mint of another process.

    Raises:
        UsageError: If the collection does not read a buffer.
        ConfigurationInvalid: If its buffer is not set.
        BufferUnreachable: If its buffer does not answer.
        BufferMissing: If its buffer does not exist.
    """
    source = check_buffer_source(declaration)
    connection = find_connection(source.buffer, deployment.settings.connections)
    shard = shards.open(declaration.name)
    reader = open_reader(connection)
    target = Target(
        shards=shards,
        shard=shard,
        log=log_of(connection, reader),
        deployment=deployment,
        clock=clock,
        expect=declaration.expect,
    )
    run = Ingesting(target, declaration, source, connection, reader, engine)
    try:
        yield run
    finally:
        run.reader.close()
