"""A buffer in the memory of one process: for tests of code that uses buffers, and for trying things out.

Writers and readers of the process share the logs; tests can make holes, errors and losses in them.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from tidemark.clock import Clock
from tidemark.errors import ConfigurationInvalid
from tidemark.write_buffer.back_end import BackEnd, Connection
from tidemark.write_buffer.errors import BufferMissing
from tidemark.write_buffer.formats.entry import Delivered, Entry, Message, Sequence, read_message
from tidemark.write_buffer.reader import Position, Reader, Stream
from tidemark.write_buffer.writer import DEFAULT_LIMIT_BYTES, Stored, Writer

_BUFFER = "the memory buffer"


# -- the logs --------------------------------------------------------------------------------------------------------


class Numbered(NamedTuple):
    """A message at its number."""

    number: int
    message: Message


@dataclass(slots=True)
class _Log:
    items: list[Numbered | Exception] = field(default_factory=list)
    removed: int = 0  # items that retention removed: places count them, too
    earliest: int = 0
    watermark: int = 0


class MemoryState:
    """Sequencers and their messages; without ``sequencers`` a later call of ``create`` makes them."""

    def __init__(self, sequencers: int | None = None) -> None:
        self.identity = uuid.uuid4().hex
        self.beside: dict[str, MemoryState] = {}  # logs that keep what belongs to this one, such as keys of tables
        self.changed = threading.Condition()
        self._logs: dict[int, _Log] | None = None
        if sequencers is not None:
            self.create(sequencers)

    def create(self, sequencers: int) -> None:
        """Make the sequencers ``[0, sequencers)``.

        Raises ``ValueError`` if there are sequencers already, or ``sequencers`` is less than 1.
        """
        with self.changed:
            if self._logs is not None:
                raise ValueError("already initialized")
            if sequencers < 1:
                raise ValueError("a buffer has at least one sequencer")
            self._logs = {sequencer_id: _Log() for sequencer_id in range(sequencers)}

    @property
    def exists(self) -> bool:
        return self._logs is not None

    def sequencer_ids(self) -> frozenset[int]:
        """Return the sequencers.

        Raises ``BufferMissing`` if nobody has made them yet.
        """
        if self._logs is None:
            raise BufferMissing.of(_BUFFER)
        return frozenset(self._logs)

    def append(self, sequencer_id: int, message: Message) -> int:
        """Store ``message`` behind all others and return its number."""
        with self.changed:
            number = self._log(sequencer_id).watermark
            self.push(sequencer_id, number, message)
            return number

    def push(self, sequencer_id: int, number: int, message: Message) -> None:
        """Store ``message`` at ``number``, which may leave a hole, and wake the waiting readers.

        Raises ``ValueError`` if there is no such sequencer, or the number is not larger than all before it.
        """
        with self.changed:
            log = self._log(sequencer_id)
            if number < log.watermark:
                raise ValueError(
                    f"sequence number {number} is less/equal than current max sequencer number {log.watermark - 1}"
                )
            log.items.append(Numbered(number, message))
            log.watermark = number + 1
            self.changed.notify_all()

    def push_error(self, sequencer_id: int, error: Exception) -> None:
        """Let every reader that passes this place raise ``error`` there, once.

        Raises ``ValueError`` if there is no such sequencer.
        """
        with self.changed:
            self._log(sequencer_id).items.append(error)
            self.changed.notify_all()

    def messages(self, sequencer_id: int) -> list[Numbered | Exception]:
        """Return a copy of the items of the log.

        Raises ``ValueError`` if there is no such sequencer.
        """
        with self.changed:
            return list(self._log(sequencer_id).items)

    def expire(self, sequencer_id: int, below: int | None = None) -> None:
        """Remove the messages below ``below`` (None: all) as retention does; numbers are not given again.

        Raises ``ValueError`` if there is no such sequencer.
        """
        with self.changed:
            log = self._log(sequencer_id)
            floor = log.watermark if below is None else min(below, log.watermark)
            kept: list[Numbered | Exception] = [
                item for item in log.items if isinstance(item, Numbered) and item.number >= floor
            ]
            log.removed += len(log.items) - len(kept)
            log.items, log.earliest = kept, max(log.earliest, floor)

    def bounds(self, sequencer_id: int) -> tuple[int, int]:
        """Return the earliest number and the watermark; zeros for an unknown sequencer."""
        with self.changed:
            log = (self._logs or {}).get(sequencer_id)
            return (log.earliest, log.watermark) if log else (0, 0)

    def item_at(self, sequencer_id: int, place: int) -> tuple[int, Numbered | Exception | None]:
        """Return the first item from ``place`` on, with its place; ``None`` if there is none yet."""
        log = self._log(sequencer_id)
        place = max(place, log.removed)
        index = place - log.removed
        return place, log.items[index] if index < len(log.items) else None

    def _log(self, sequencer_id: int) -> _Log:
        if self._logs is None:
            raise ValueError("the memory buffer has no sequencers yet: create them first")
        try:
            return self._logs[sequencer_id]
        except KeyError:
            raise ValueError(f"the memory buffer has no sequencer {sequencer_id}") from None


_REGISTERED: dict[str, MemoryState] = {}  # all code of this process that opens `memory:NAME` finds the same logs


@contextmanager
def registered(name: str, state: MemoryState) -> Iterator[None]:
    """Let ``memory:NAME`` mean ``state`` in this process, until the block ends.

    Raises ``ValueError`` if the name is taken.
    """
    if name in _REGISTERED:
        raise ValueError(f"a memory buffer named {name!r} is registered already")
    _REGISTERED[name] = state
    try:
        yield
    finally:
        del _REGISTERED[name]


# -- writer and reader -----------------------------------------------------------------------------------------------


class MemoryWriter(Writer):
    """Appends to the logs of ``state``; ``limit_bytes`` is the largest payload with headers."""

    def __init__(self, state: MemoryState, *, clock: Clock, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        super().__init__(state.sequencer_ids(), name=_BUFFER, limit_bytes=limit_bytes)
        self._state, self._clock = state, clock

    def store_entry(self, entry: Entry, sequencer_id: int) -> Stored:
        self.check_sequencer(sequencer_id)
        message = Message.of(entry, self._clock.now_ms())
        self.check_size(message)
        return Stored(Sequence(sequencer_id, self._state.append(sequencer_id, message)), message.time_ms or 0)


class MemoryReader(Reader):
    """Reads the logs of ``state``. An injected error is raised wherever the reader stands, as often as it passes it."""

    def __init__(self, state: MemoryState) -> None:
        super().__init__(state.sequencer_ids(), name=_BUFFER, identity=state.identity)
        self._state = state
        self._places = dict.fromkeys(self.sequencer_ids(), 0)

    def _bounds(self, sequencer_id: int) -> tuple[int, int]:
        return self._state.bounds(sequencer_id)

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
    name = connection.place
    owner, _, what = name.rpartition("/")
    if owner in _REGISTERED and name not in _REGISTERED:
        state = _REGISTERED[owner].beside.setdefault(what, MemoryState())
    elif name not in _REGISTERED:
        known = ", ".join(sorted(_REGISTERED)) or "none"
        raise ConfigurationInvalid(f"Unknown memory buffer: {name}", hint=f"registered in this process are: {known}")
    else:
        state = _REGISTERED[name]
    if create and not state.exists:
        state.create(connection.sequencers)
    return state


BACK_END = MemoryBackEnd()
