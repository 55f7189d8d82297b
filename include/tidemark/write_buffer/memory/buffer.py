"""A buffer in the memory of one process: for tests of code that uses buffers, and for trying things out."""

from __future__ import annotations

import time
from dataclasses import replace
from urllib.parse import unquote, urlsplit

from tidemark.clock import Clock
from tidemark.write_buffer.back_end import BackEnd, Connection
from tidemark.write_buffer.formats.entry import Delivered, Entry, Message, Sequence, read_message
from tidemark.write_buffer.memory.state import MemoryState, find_state
from tidemark.write_buffer.reader import Position, Reader, Stream
from tidemark.write_buffer.writer import DEFAULT_LIMIT_BYTES, Stored, Writer, stored

TYPE_NAME = "memory"
_BUFFER = "the memory buffer"


class MemoryWriter(Writer):
    """Appends to the logs of ``state``; ``limit_bytes`` is the largest payload with headers."""

    type_name = TYPE_NAME

    def __init__(self, state: MemoryState, *, clock: Clock, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self._ids = state.sequencer_ids()
        self._state, self._clock, self._limit_bytes = state, clock, limit_bytes

    @property
    def name(self) -> str:
        return _BUFFER

    def sequencer_ids(self) -> frozenset[int]:
        return self._ids

    def store_entry(self, entry: Entry, sequencer_id: int) -> Stored:
        self.check_sequencer(sequencer_id)
        message = Message.of(entry, self._clock.now_ms())
        self.check_size(message, self._limit_bytes, limit_name="limit_bytes")
        return stored(sequencer_id, self._state.append(sequencer_id, message), message.time_ms or 0)


class MemoryReader(Reader):
    """Reads the logs of ``state``. An injected error is raised wherever the reader stands, as often as it passes it."""

    type_name = TYPE_NAME

    def __init__(self, state: MemoryState) -> None:
        super().__init__(state.sequencer_ids())
        self._state = state
        self._places = dict.fromkeys(self.sequencer_ids(), 0)

    @property
    def name(self) -> str:
        return _BUFFER

    @property
    def identity(self) -> str:
        return self._state.identity

    def fetch_high_watermark(self, sequencer_id: int) -> int:
        return self._state.bounds(sequencer_id)[1]

    def fetch_earliest(self, sequencer_id: int) -> int:
        return self._state.bounds(sequencer_id)[0]

    def _open_stream(self, sequencer_id: int, position: Position) -> Stream:
        return _MemoryStream(self._state, self._places, sequencer_id, position, buffer=self.name)

    def _moved(self, sequencer_id: int) -> None:
        self._places[sequencer_id] = 0


class _MemoryStream(Stream):
    def __init__(
        self, state: MemoryState, places: dict[int, int], sequencer_id: int, position: Position, *, buffer: str
    ) -> None:
        super().__init__(sequencer_id, position, buffer=buffer)
        self._state, self._places = state, places

    def _take(self, limit: int, timeout_s: float) -> list[Delivered]:
        until = time.monotonic() + timeout_s
        with self._state.changed:
            while True:
                earliest, watermark = self._state.bounds(self.sequencer_id)
                self.position.check(self.sequencer_id, earliest=earliest, watermark=watermark, buffer=self.buffer)
                if taken := self._take_present(limit):
                    return taken
                if self.position.number is None:  # the stream has seen the end of the log: it stands there from now on
                    self.position.advance(watermark)
                if not self._state.changed.wait(until - time.monotonic()):
                    return []

    def _take_present(self, limit: int) -> list[Delivered]:
        taken: list[Delivered] = []
        while len(taken) < limit:
            place, item = self._state.item_at(self.sequencer_id, self._places[self.sequencer_id])
            if item is None or (taken and isinstance(item, Exception)):
                break  # the entries before the error are delivered first; the next call raises it
            self._places[self.sequencer_id] = place + 1
            if isinstance(item, Exception):
                raise item
            if item.number >= (self.position.number or 0):
                self.position.advance(item.number + 1)
                taken.append(read_message(Sequence(self.sequencer_id, item.number), item.message))
        return taken


class MemoryBackEnd(BackEnd):
    """``memory:NAME``: the logs that this process registered under NAME."""

    shared = False

    def locate(self, connection: Connection, uri: str) -> Connection:
        return replace(connection, place=unquote(urlsplit(uri).path))

    def open_writer(self, connection: Connection, *, clock: Clock, create: bool) -> Writer:
        return MemoryWriter(_open_state(connection, create=create), clock=clock)

    def open_reader(self, connection: Connection, *, create: bool) -> Reader:
        return MemoryReader(_open_state(connection, create=create))


def _open_state(connection: Connection, *, create: bool) -> MemoryState:
    state = find_state(connection.place)
    if create and not state.exists:
        state.create(connection.sequencers)
    return state


BACK_END = MemoryBackEnd()
