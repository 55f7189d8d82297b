"""Which batches a buffer has accepted, without reading the name of each one: from the newest checkpoint on.

Every so many names an append writes a checkpoint into a second log beside the buffer: the ledgers of all producers up
to a name. A checkpoint is never the truth. It counts only while the log of names still has the very name that the
checkpoint ends with; where it is lost, damaged, or of another log, the names are read from the first one on, and the
next append writes another one.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from tidemark.clock import Clock
from tidemark.errors import ConfigurationInvalid, TidemarkError, UsageError
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.batches.names import LoggedBatch, read_batches
from tidemark.write_buffer.errors import BufferMissing, BufferUnreachable
from tidemark.write_buffer.formats.entry import SequencedEntry
from tidemark.write_buffer.formats.json_rows import encode_json_rows
from tidemark.write_buffer.ranges import read_range
from tidemark.write_buffer.reader import Reader
from tidemark.write_buffer.registry import find_back_end, open_reader, open_writer

logger = logging.getLogger(__name__)

INTERVAL = 100  # numbers of the log of names from one checkpoint to the next: they are read in a few ms
_VERSION = 1
Ledgers = dict[str, dict[str, Ledger]]  # by collection and producer


class AcceptedName(NamedTuple):
    """Whose batch it is, and its half-open range."""

    collection: str
    producer: str
    numbers: Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What was accepted up to the name ``last``, included."""

    last: LoggedBatch
    ledgers: Ledgers


@dataclass(slots=True)
class AcceptedBatches:
    """The batches that count, of those that were named: of batches that share a number the first one."""

    last: LoggedBatch | None = None  # the newest name that was taken in
    start: int = 0  # the number after that of the checkpoint that this began with
    kept: int = 0  # the number after that of the newest checkpoint
    ledgers: Ledgers = field(default_factory=dict)
    rows: dict[AcceptedName, int] = field(default_factory=dict)  # of batches from ``start`` on

    @property
    def end(self) -> int:
        """The first number of the log of names that was not looked at."""
        return 0 if self.last is None else self.last.number + 1

    def ledger(self, collection: str, producer: str) -> Ledger:
        return _ledger_in(self.ledgers, collection, producer)

    def take(self, named: Iterable[LoggedBatch]) -> None:
        """Take in the next names."""
        for batch in named:
            self.last = batch
            if batch.name is None:
                continue
            name = AcceptedName(batch.collection, batch.name.producer, batch.name.range)
            accepted = self.ledger(name.collection, name.producer)
            if not accepted.overlaps(name.numbers):
                self.ledgers.setdefault(name.collection, {})[name.producer] = accepted.add(name.numbers)
                self.rows[name] = batch.rows


def read_accepted(connection: Connection, batches: Reader, identity: str) -> AcceptedBatches:
    """Return the accepted batches of the buffer ``identity``.

    Raises as ``read_batches``.
    """
    if batches.fetch_high_watermark(0) <= INTERVAL:  # there is no checkpoint yet
        return _read_from(None, batches, identity)
    try:
        with _open_checkpoints(connection) as checkpoints:
            numbers = _numbers(checkpoints)
            newest = _read(checkpoints, numbers[-1]) if numbers else None
    except BufferUnreachable as error:  # the names say the same, in more time
        logger.warning("all names of batches are read: %s", error)
        newest = None
    return _read_from(newest, batches, identity)


def count_rows(connection: Connection, batches: Reader, identity: str, batch: AcceptedName) -> int:
    """Return how many rows an accepted batch has that is older than the newest checkpoint.

    0 if its numbers came in other batches. Only the names from the last checkpoint without the batch to the next one
    are read.
    """
    before = after = None
    try:
        with _open_checkpoints(connection) as checkpoints:

            def has_batch(number: int) -> bool:
                known = _read(checkpoints, number)
                if known is None or known.last.log != identity:
                    return False
                return _ledger_in(known.ledgers, batch.collection, batch.producer).covers(batch.numbers)

            written = _numbers(checkpoints)
            place = bisect_left(written, x=True, key=has_batch)
            before = _read(checkpoints, written[place - 1]) if place else None
            after = _read(checkpoints, written[place]) if place < len(written) else None
    except BufferUnreachable as error:
        logger.warning("all names of batches are read: %s", error)
    accepted = _read_from(before, batches, identity, None if after is None else after.last.number + 1)
    if not accepted.ledger(batch.collection, batch.producer).covers(batch.numbers):  # names were cut off, others came
        accepted = _read_from(None, batches, identity)
    return accepted.rows.get(batch, 0)


def keep_checkpoint(connection: Connection, accepted: AcceptedBatches, *, clock: Clock) -> None:
    """Write a checkpoint if the newest one lies too many names back.

    The names are durable without it, so that one that cannot be written is no error: the next append tries again.
    """
    if accepted.last is None or accepted.end - accepted.kept <= INTERVAL:
        return
    accepted.kept = accepted.end
    last = {**accepted.last.to_json(), "number": accepted.last.number}
    ledgers = {
        collection: {producer: str(ledger) for producer, ledger in producers.items()}
        for collection, producers in accepted.ledgers.items()
    }
    try:
        with open_writer(_place_of(connection), clock=clock, create=True) as writer:
            writer.store_entry(encode_json_rows([{"version": _VERSION, "last": last, "ledgers": ledgers}]), 0)
    except TidemarkError as error:
        logger.warning("appends read more names of batches than they need to: no checkpoint was written: %s", error)


def _read_from(
    checkpoint: Checkpoint | None, batches: Reader, identity: str, end: int | None = None
) -> AcceptedBatches:
    """Return what was accepted below ``end`` (None: the watermark); reads from the checkpoint on if that counts."""
    accepted = AcceptedBatches()
    if checkpoint is not None:
        named = read_batches(batches, identity, checkpoint.last.number, end)
        if named[:1] == [checkpoint.last]:
            start = checkpoint.last.number + 1
            accepted = AcceptedBatches(last=checkpoint.last, start=start, kept=start, ledgers=checkpoint.ledgers)
            accepted.take(named[1:])
            return accepted
    accepted.take(read_batches(batches, identity, 0, end))
    return accepted


@contextmanager
def _open_checkpoints(connection: Connection) -> Iterator[Reader | None]:
    """Open the log of checkpoints; None while there is none, and for a login that may not read it."""
    try:
        reader = open_reader(_place_of(connection))
    except (BufferMissing, ConfigurationInvalid):
        yield None
        return
    with reader:
        yield reader


def _ledger_in(ledgers: Ledgers, collection: str, producer: str) -> Ledger:
    return ledgers.get(collection, {}).get(producer, Ledger())


def _numbers(checkpoints: Reader | None) -> range:
    if checkpoints is None:
        return range(0)
    return range(*checkpoints.fetch_bounds(0))


def _read(checkpoints: Reader | None, number: int) -> Checkpoint | None:
    """Return one checkpoint; None if it is damaged, or of another program."""
    if checkpoints is None:
        return None
    entry = next(iter(read_range(checkpoints, 0, number, end=number + 1)), None)
    if not isinstance(entry, SequencedEntry):
        return None
    try:
        fields = json.loads(entry.entry.payload)
        last, ledgers = fields["last"], fields["ledgers"]
        parsed = Checkpoint(
            last=LoggedBatch.parse(last["number"], last),
            ledgers={
                collection: {producer: Ledger.parse(text) for producer, text in producers.items()}
                for collection, producers in ledgers.items()
            },
        )
    except (ValueError, LookupError, TypeError, AttributeError, UsageError):
        return None
    return parsed if fields["version"] == _VERSION else None


def _place_of(connection: Connection) -> Connection:
    return find_back_end(connection.type).beside(connection, "batches.checkpoints")
