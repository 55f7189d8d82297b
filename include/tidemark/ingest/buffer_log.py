"""One log as an ingest sees it: the producer name of each sequencer, and the numbers that each sequencer holds now."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import NamedTuple

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.sources.formats.buffer import BufferSource
from tidemark.errors import UsageError
from tidemark.iceberg.shard.ledger import SEQUENCER
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.reader import Reader

_NAME_LENGTH, _DIGEST_LENGTH = 70, 8
BATCHES = ".batches"  # behind a log's name: the log that names its batches
RETRIED = ".retried"  # behind a producer's name: entries of which no bad row is left
RETRIED_ROWS = ".retried.rows"  # single rows of other entries
ROWS_BITS = 32  # of a row's number there, for its place in the entry


class Bounds(NamedTuple):
    """A sequencer holds the numbers ``[earliest, watermark)``, with holes."""

    earliest: int
    watermark: int


@dataclass(frozen=True, slots=True)
class BufferLog:
    """Names the producers of one log: ``NAME.IDENTITY.SEQUENCER``.

    IDENTITY is a digest of the log's identity: a log that is made anew under the same name gets other producers, and
    its numbers are never taken for those of the old log. The address plays no part, since a broker may move.
    """

    name: str
    digest: str
    title: str = ""  # as messages name the buffer

    @classmethod
    def of(cls, connection: Connection, *, identity: str, title: str = "") -> BufferLog:
        """Return the log behind a connection."""
        full_name = connection.topic or connection.type
        name = re.sub(r"[^A-Za-z0-9._-]|^[^A-Za-z0-9]+", "", full_name)[:_NAME_LENGTH] or connection.type
        return cls(name, hashlib.sha256(identity.encode()).hexdigest()[:_DIGEST_LENGTH], title or full_name)

    @classmethod
    def of_producer(cls, producer: str) -> BufferLog:
        """Return the log that has a sequencer of that name; one without sequencers for the name of anything else."""
        match = SEQUENCER.fullmatch(producer)
        return cls(match[1], match[2]) if match else cls(producer, "")

    @property
    def id(self) -> str:
        """What the producers of this log alone begin with."""
        return f"{self.name}.{self.digest}"

    def producer(self, sequencer_id: int) -> str:
        """Return the producer name of a sequencer; its ledger says which numbers are ingested."""
        return f"{self.id}.{sequencer_id}"

    def sequencer_of(self, producer: str) -> int | None:
        """Return the sequencer of a producer name; None if the producer belongs to another log."""
        match = SEQUENCER.fullmatch(producer)
        return int(match[3]) if match and match[1] == self.name and match[2] == self.digest else None

    def is_other_log(self, producer: str) -> bool:
        """Tell whether a producer is a sequencer of another log of the same name."""
        match = SEQUENCER.fullmatch(producer)
        return match is not None and match[1] == self.name and match[2] != self.digest

    def is_elsewhere(self, producer: str) -> bool:
        """Tell whether a producer is a sequencer of another log of whatever name, but for the log of the batches."""
        match = SEQUENCER.fullmatch(producer)
        return match is not None and match[1] != self.name + BATCHES and f"{match[1]}.{match[2]}" != self.id


def look_at(reader: Reader) -> dict[int, Bounds]:
    """Read the bounds of each sequencer once.

    Raises ``BufferUnreachable`` if the buffer does not answer.
    """
    return {id_: Bounds(*reader.fetch_bounds(id_)) for id_ in sorted(reader.sequencer_ids())}


def check_buffer_source(declaration: Declaration) -> BufferSource:
    """Return the buffer that a collection reads.

    Raises ``UsageError`` if the collection does not read a buffer.
    """
    if not isinstance(declaration.source, BufferSource):
        raise UsageError(
            f"{declaration.name!r} does not read a write buffer", hint="declare `source: {buffer: NAME}` and apply it"
        )
    return declaration.source
