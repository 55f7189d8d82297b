"""Writes to a buffer: the caller names the sequencer, and a call returns when the entry is durable."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple, Self

from tidemark.write_buffer.errors import EntryTooLarge, UnknownSequencer
from tidemark.write_buffer.formats.entry import Entry, Message, Sequence

DEFAULT_LIMIT_BYTES = 10 * 1024 * 1024  # payload and headers of one entry


class Stored(NamedTuple):
    """The place of a stored entry, and the producer's time in it, in ms since the Unix epoch."""

    sequence: Sequence
    time_ms: int


class Writer(ABC):
    """Writes entries to the sequencers that the buffer had when it was opened. Threads may share a writer."""

    limit_name = "limit_bytes"  # the setting that limits the size of an entry

    def __init__(self, sequencer_ids: Iterable[int], *, name: str, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.name = name  # as messages name the buffer, without secrets
        self._ids = frozenset(sequencer_ids)
        self._limit_bytes = limit_bytes

    @property
    def limit_bytes(self) -> int:
        """The most bytes of an entry's payload and headers."""
        return self._limit_bytes

    def sequencer_ids(self) -> frozenset[int]:
        """Return the sequencers: never none, and the same ones for the life of the writer."""
        return self._ids

    @abstractmethod
    def store_entry(self, entry: Entry, sequencer_id: int) -> Stored:
        """Store ``entry`` and return its place once it is durable.

        Rows of one primary key must always go to one sequencer, since order exists only inside one: see
        ``partitioner.Partitioner``.

        Raises:
            UnknownSequencer: If the buffer has no such sequencer.
            EntryTooLarge: If the entry is larger than the buffer takes; nothing was sent.
            BufferUnreachable: If no answer came. The entry may be in the log all the same.
        """

    def store_entries(self, entries: Iterable[Entry], sequencer_id: int) -> list[Stored]:
        """Store ``entries`` in their order, and return their places once all are durable; else as ``store_entry``.

        All entries before one that is too large are stored. After ``BufferUnreachable`` any of the entries may be in
        the log: look there before you write them again.
        """
        return [self.store_entry(entry, sequencer_id) for entry in entries]

    def close(self) -> None:  # noqa: B027 -- most writers hold nothing
        """Close the connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def check_sequencer(self, sequencer_id: int) -> None:
        """Check that the buffer has a sequencer.

        Raises ``UnknownSequencer`` if the buffer does not have the sequencer.
        """
        if sequencer_id not in self.sequencer_ids():
            raise UnknownSequencer.named(sequencer_id, self.sequencer_ids(), buffer=self.name)

    def check_size(self, message: Message) -> None:
        """Check the size of a message before anything is sent.

        Raises ``EntryTooLarge`` if payload and headers exceed the limit of the buffer.
        """
        size = message.size_bytes()
        if size > self._limit_bytes:
            raise EntryTooLarge(size, self._limit_bytes, buffer=self.name, limit_name=self.limit_name)
