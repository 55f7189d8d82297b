"""One adapter for every kind of buffer: an empty place of its own, and whoever writes or reads there."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from tests.support.clock import SteppedClock
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.file.buffer import FileReader, FileWriter
from tidemark.write_buffer.file.folder import open_folder
from tidemark.write_buffer.formats.entry import SequencedEntry
from tidemark.write_buffer.formats.json_rows import encode_json_rows
from tidemark.write_buffer.kafka.reader import KafkaReader
from tidemark.write_buffer.kafka.topic import KafkaTopic
from tidemark.write_buffer.kafka.writer import KafkaWriter
from tidemark.write_buffer.memory import MemoryReader, MemoryState, MemoryWriter

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.write_buffer.formats.entry import Delivered, Entry
    from tidemark.write_buffer.reader import Reader, Stream
    from tidemark.write_buffer.writer import Writer

LIMIT_BYTES = 100_000
DELIVERED_S = 60.0  # a deadline, not a wait


class BufferContext:
    """An empty place for a buffer with ``sequencers``; what was opened here is closed at the end."""

    pending_s = 0.0  # how long a stream is watched before it counts as pending

    def __init__(self, sequencers: int) -> None:
        self.sequencers, self.clock = sequencers, SteppedClock(1_000)
        self._stack = ExitStack()

    def writing(self, *, create: bool = True) -> Writer:
        return self._stack.enter_context(self.open_writer(create=create))

    def reading(self, *, create: bool = True) -> Reader:
        return self._stack.enter_context(self.open_reader(create=create))

    def open_writer(self, *, create: bool) -> Writer:
        raise NotImplementedError

    def open_reader(self, *, create: bool) -> Reader:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()


class MemoryContext(BufferContext):
    def __init__(self, sequencers: int) -> None:
        super().__init__(sequencers)
        self.state = MemoryState()

    def open_writer(self, *, create: bool) -> Writer:
        self._create(create)
        return MemoryWriter(self.state, clock=self.clock, limit_bytes=LIMIT_BYTES)

    def open_reader(self, *, create: bool) -> Reader:
        self._create(create)
        return MemoryReader(self.state)

    def _create(self, create: bool) -> None:  # noqa: FBT001 -- one caller
        if create and not self.state.exists:
            self.state.create(self.sequencers)


class FileContext(BufferContext):
    pending_s = 0.03

    def __init__(self, sequencers: int, folder: Path) -> None:
        super().__init__(sequencers)
        self.folder = folder

    def open_writer(self, *, create: bool) -> Writer:
        folder = open_folder(self.folder, sequencers=self.sequencers if create else None)
        return FileWriter(folder, clock=self.clock, limit_bytes=LIMIT_BYTES)

    def open_reader(self, *, create: bool) -> Reader:
        return FileReader(open_folder(self.folder, sequencers=self.sequencers if create else None))


class KafkaContext(BufferContext):
    pending_s = 0.15

    def __init__(self, sequencers: int, bootstrap: str, topic: str, **options: str) -> None:
        super().__init__(sequencers)
        self.connection = Connection(
            type="kafka",
            place=bootstrap,
            topic=topic,
            sequencers=sequencers,
            topic_options={"max.message.bytes": str(LIMIT_BYTES + 512), **options},
            timeout_s=1.5,
        )
        self.topic = KafkaTopic(self.connection)

    def open_writer(self, *, create: bool) -> Writer:
        return KafkaWriter(self.topic, clock=self.clock, create=create)

    def open_reader(self, *, create: bool) -> Reader:
        return KafkaReader(self.topic, create=create)


def entry(text: str) -> Entry:
    """A small entry that is told from others by its text."""
    return encode_json_rows([{"text": text}], table="texts")


def take(stream: Stream, count: int) -> list[Delivered]:
    """Take exactly ``count`` from ``stream``, in as many steps as it makes of them."""
    taken: list[Delivered] = []
    until = time.monotonic() + DELIVERED_S
    while len(taken) < count:
        assert time.monotonic() < until, f"only {len(taken)} of {count} came: {taken}"
        taken += stream.take(count - len(taken), timeout_s=1.0)
    return taken


def entries(delivered: list[Delivered]) -> list[Entry]:
    """The entries among what was delivered, which must be all of it."""
    good = [each.entry for each in delivered if isinstance(each, SequencedEntry)]
    assert len(good) == len(delivered), delivered
    return good


def take_entries(stream: Stream, count: int) -> list[Entry]:
    """Take ``count`` entries."""
    return entries(take(stream, count))
