"""Streams and seeks against a list: what any sequence of operations delivers is what the list says."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.support.buffers import entries, entry
from tests.support.clock import SteppedClock
from tests.support.exploration import explore
from tidemark.write_buffer.errors import NoLongerExists
from tidemark.write_buffer.file.buffer import FileReader, FileWriter
from tidemark.write_buffer.file.folder import open_folder
from tidemark.write_buffer.memory import MemoryReader, MemoryState, MemoryWriter

if TYPE_CHECKING:
    from tidemark.write_buffer.reader import Reader, Streams
    from tidemark.write_buffer.writer import Writer

SEQUENCERS = st.integers(0, 1)
READERS = st.integers(0, 1)


class BufferMachine(RuleBasedStateMachine):
    """The model: per sequencer a list of texts, of which the first ones may be gone, and per reader the next number."""

    writer: Writer
    readers: list[Reader]

    def __init__(self) -> None:
        super().__init__()
        self.logs: list[list[str]] = [[], []]
        self.earliest = [0, 0]
        self.next: list[list[int | None]] = [[None, None], [None, None]]  # None: the earliest there is
        self.streams: list[Streams | None] = [None, None]
        self.written = 0

    def expire(self, sequencer: int, below: int) -> None:
        raise NotImplementedError

    @rule(sequencer=SEQUENCERS)
    def write(self, sequencer: int) -> None:
        self.written += 1
        answer = self.writer.store_entry(entry(str(self.written)), sequencer)
        assert answer.sequence == (sequencer, len(self.logs[sequencer]))
        self.logs[sequencer].append(str(self.written))

    @rule(sequencer=SEQUENCERS, share=st.floats(0, 1))
    def retain(self, sequencer: int, share: float) -> None:
        below = int(len(self.logs[sequencer]) * share)
        self.expire(sequencer, below)
        self.earliest[sequencer] = max(self.earliest[sequencer], below)

    @rule(reader=READERS, sequencer=st.integers(0, 2), number=st.integers(0, 12))
    def seek(self, reader: int, sequencer: int, number: int) -> None:
        self.close_streams(reader)
        self.readers[reader].seek(sequencer, number)
        if sequencer < len(self.logs):
            self.next[reader][sequencer] = number or None

    @rule(reader=READERS)
    def reset(self, reader: int) -> None:
        self.close_streams(reader)
        self.readers[reader].reset_to_earliest()
        self.next[reader] = [None, None]

    @rule(reader=READERS)
    def close_streams(self, reader: int) -> None:
        opened, self.streams[reader] = self.streams[reader], None
        if opened is not None:
            opened.close()

    @rule(reader=READERS, sequencer=SEQUENCERS, limit=st.integers(1, 4))
    def take(self, reader: int, sequencer: int, limit: int) -> None:
        if self.streams[reader] is None:
            self.streams[reader] = self.readers[reader].streams()
        opened = self.streams[reader]
        assert opened is not None
        start = self.next[reader][sequencer]
        if start is not None and start < self.earliest[sequencer]:
            with pytest.raises(NoLongerExists) as gone:
                opened[sequencer].take(limit)
            assert (gone.value.number, gone.value.earliest) == (start, self.earliest[sequencer])
            return
        begin = self.earliest[sequencer] if start is None else start
        wanted = self.logs[sequencer][begin : begin + limit]
        assert entries(opened[sequencer].take(limit)) == [entry(text) for text in wanted]
        self.next[reader][sequencer] = begin + len(wanted)
        assert opened[sequencer].next_number == self.next[reader][sequencer]

    @rule(reader=READERS, sequencer=SEQUENCERS)
    def look(self, reader: int, sequencer: int) -> None:
        assert self.readers[reader].fetch_high_watermark(sequencer) == len(self.logs[sequencer])
        assert self.readers[reader].fetch_earliest(sequencer) == self.earliest[sequencer]


class MemoryMachine(BufferMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = MemoryState(2)
        self.writer = MemoryWriter(self.state, clock=SteppedClock())
        self.readers = [MemoryReader(self.state), MemoryReader(self.state)]

    def expire(self, sequencer: int, below: int) -> None:
        self.state.expire(sequencer, below)


class FileMachine(BufferMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="tidemark-buffer-"))
        self.folder = open_folder(self.root, sequencers=2)
        self.writer = FileWriter(self.folder, clock=SteppedClock())
        self.readers = [FileReader(open_folder(self.root)), FileReader(open_folder(self.root))]

    def expire(self, sequencer: int, below: int) -> None:
        self.folder.logs[sequencer].expire(below)

    @rule()
    def reopen_writer(self) -> None:
        self.writer = FileWriter(open_folder(self.root), clock=SteppedClock())

    def teardown(self) -> None:
        shutil.rmtree(self.root)


TestMemory = MemoryMachine.TestCase
TestMemory.settings = explore(40, steps=30)
TestFile = pytest.mark.slow(FileMachine.TestCase)
TestFile.settings = explore(8, steps=30)  # each write waits for the disk
