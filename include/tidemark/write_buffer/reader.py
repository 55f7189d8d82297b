"""Reads from a buffer: one stream per sequencer, which begins at the reader's position."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from tidemark.write_buffer.errors import AfterWatermark, BufferMissing, NoLongerExists, StreamsOpen
from tidemark.write_buffer.formats.entry import Delivered

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.write_buffer.formats.arrow_messages import MessageColumns


@dataclass(slots=True)
class Position:
    """The next number to deliver. A stream moves the position, a reader keeps it."""

    number: int | None = None  # None: the earliest number of the log
    may_lie_beyond: bool = False  # a caller chose the number: it may lie beyond the end of the log

    def seek(self, number: int) -> None:
        """Stand before ``number``; 0 means the earliest number of the log, since nothing before 0 can be missed."""
        self.number, self.may_lie_beyond = (number, True) if number > 0 else (None, False)

    def advance(self, number: int) -> None:
        """Stand before ``number``: everything below was delivered or is a hole."""
        self.number, self.may_lie_beyond = number, False

    def check(self, sequencer_id: int, *, earliest: int, watermark: int, buffer: str) -> None:
        """Compare the position with the present log ``[earliest, watermark)``.

        Raises:
            NoLongerExists: If retention removed the next entries.
            AfterWatermark: If the log ends before a number that it once reached.
        """
        if self.number is None:
            return
        if self.number < earliest:
            raise NoLongerExists(sequencer_id, self.number, earliest, buffer=buffer)
        if self.number > watermark and not self.may_lie_beyond:
            raise AfterWatermark(sequencer_id, self.number, watermark, buffer=buffer)


def check_range_start(sequencer_id: int, start: int, *, earliest: int, watermark: int, buffer: str) -> None:
    """Check that ``[start, watermark)`` can be read whole; ``start`` is a progress that was stored earlier.

    Raises:
        NoLongerExists: If retention removed a part of the range; also if ``start`` is 0 and the log begins later.
        AfterWatermark: If the log ends before ``start``: it was made anew, or cut.
    """
    Position(start).check(sequencer_id, earliest=earliest, watermark=watermark, buffer=buffer)


class Stream(ABC):
    """The entries of one sequencer, in order, without an end: with no data the stream is pending. For one thread."""

    def __init__(self, sequencer_id: int, position: Position, *, buffer: str) -> None:
        self.sequencer_id, self.position, self.buffer = sequencer_id, position, buffer
        self._closed = False

    @property
    def next_number(self) -> int | None:
        """The next number: everything below was delivered or is a hole. ``None``: the earliest number of the log.

        A range is done when this number reaches its end; a range may end with holes, not with an entry.
        """
        return self.position.number

    def take(self, limit: int, *, timeout_s: float = 0.0) -> list[Delivered]:
        """Return up to ``limit`` entries or bad messages; wait up to ``timeout_s`` for the first. Empty: pending.

        Raises:
            NoLongerExists: If retention removed the next entries; again at every call until the reader is moved.
            AfterWatermark: If the log was made anew or cut.
            BufferUnreachable: If the log cannot be read now; a later call goes on where this one stopped.
            StreamsOpen: If this stream was closed; the reader gives new streams.
        """
        self._check_open()
        return self._take(limit, timeout_s)

    def take_batch(
        self, columns: MessageColumns, *, end: int, limit: int, timeout_s: float = 0.0
    ) -> pa.RecordBatch | None:
        """Return up to ``limit`` messages below ``end`` as one batch; None: there are none.

        Unlike ``take``, this waits for a server that does not answer.

        Raises as ``take``.
        """
        self._check_open()
        return self._take_batch(columns, end, limit, timeout_s)

    @abstractmethod
    def _take(self, limit: int, timeout_s: float) -> list[Delivered]: ...

    def _take_batch(self, columns: MessageColumns, end: int, limit: int, timeout_s: float) -> pa.RecordBatch | None:
        taken = [delivered for delivered in self._take(limit, timeout_s) if delivered.sequence.number < end]
        return columns.batch_of(taken) if taken else None

    def _check_open(self) -> None:
        if self._closed:
            raise StreamsOpen(f"this stream of {self.buffer} is closed", hint="ask the reader for its streams again")

    def close(self) -> None:
        """End the stream; the reader's next stream delivers the remaining entries."""
        self._closed = True


class Streams(Mapping[int, Stream]):
    """One stream per sequencer. Until they are closed the reader cannot be moved, and gives no other streams."""

    def __init__(self, streams: Iterable[Stream], reader: Reader) -> None:
        self._streams = {stream.sequencer_id: stream for stream in streams}
        self._reader = reader

    def __getitem__(self, sequencer_id: int) -> Stream:
        return self._streams[sequencer_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """End every stream; the reader's next streams go on after the last delivered entries."""
        for stream in self._streams.values():
            stream.close()
        self._reader._streams_closed(self)  # noqa: SLF001 - the two are one concept in two classes


class Reader(ABC):
    """Reads the sequencers that the buffer had when it was opened, from the earliest number on.

    Readers do not share positions, and the buffer keeps none: progress is committed together with the data.
    """

    def __init__(self, sequencer_ids: Iterable[int], *, name: str, identity: str) -> None:
        self.name = name  # as messages name the buffer, without secrets
        self.identity = identity  # a log that is made anew under the same name has another one, and other numbers
        self._positions = {sequencer_id: Position() for sequencer_id in sorted(sequencer_ids)}
        self._open: Streams | None = None
        self._lock = threading.Lock()

    def sequencer_ids(self) -> frozenset[int]:
        """Return the sequencers: never none, and the same ones for the life of the reader."""
        return frozenset(self._positions)

    def streams(self) -> Streams:
        """Return one stream per sequencer, from its position on; close them before you move the reader.

        Raises ``StreamsOpen`` if the reader's last streams are still open.
        """
        with self._lock:
            self._refuse_while_streaming("its streams are still open")
            made = [self._open_stream(sequencer_id, position) for sequencer_id, position in self._positions.items()]
            self._open = Streams(made, self)
            return self._open

    def seek(self, sequencer_id: int, number: int) -> None:
        """Let the next entry of the sequencer be the first one from ``number`` on, which may lie beyond the end.

        Beyond the end the stream is pending, and never delivers entries below ``number``. An unknown sequencer is
        ignored.

        Raises:
            StreamsOpen: If streams are open.
            ValueError: If ``number`` is negative.
        """
        if number < 0:
            raise ValueError(f"numbers begin with 0, not with {number}")
        with self._lock:
            self._refuse_while_streaming("it cannot be moved while its streams are open")
            if sequencer_id in self._positions:
                self._positions[sequencer_id].seek(number)
                self._moved(sequencer_id)

    def resume(self, sequencer_id: int, number: int) -> None:
        """Let the next entry of the sequencer be the first one from ``number`` on, and accept no loss.

        Unlike after ``seek``, the next take raises ``NoLongerExists`` if retention removed entries from ``number`` on
        (even from 0 on), and ``AfterWatermark`` if the log ends before ``number``.

        Raises:
            BufferMissing: If there is no such sequencer.
            StreamsOpen: If streams are open.
        """
        if sequencer_id not in self._positions:
            raise BufferMissing(f"{self.name} has no sequencer {sequencer_id} any more", hint="was it made anew?")
        self.seek(sequencer_id, number)
        self._positions[sequencer_id].advance(number)

    def reset_to_earliest(self) -> None:
        """Let every stream begin with the earliest number of the log.

        Raises ``StreamsOpen`` if streams are open.
        """
        with self._lock:
            self._refuse_while_streaming("it cannot be moved while its streams are open")
            for sequencer_id, position in self._positions.items():
                position.seek(0)
                self._moved(sequencer_id)

    def fetch_high_watermark(self, sequencer_id: int) -> int:
        """Return the number that will be written next: 0 for a new log, and for a sequencer that does not exist.

        Raises ``BufferUnreachable`` if the log does not answer.
        """
        return self.fetch_bounds(sequencer_id)[1]

    def fetch_earliest(self, sequencer_id: int) -> int:
        """Return the smallest number that can still be read; the watermark if there is none.

        Raises ``BufferUnreachable`` if the log does not answer.
        """
        return self.fetch_bounds(sequencer_id)[0]

    def fetch_bounds(self, sequencer_id: int) -> tuple[int, int]:
        """Return the earliest number and the high watermark, which together cost what one of them costs."""
        return self._bounds(sequencer_id) if sequencer_id in self._positions else (0, 0)

    def tell_progress(self, group: str, numbers: Mapping[int, int]) -> None:  # noqa: B027 -- most have nobody to tell
        """Show people who watch the buffer the progress of ``group``: the next number by sequencer. Never an error."""

    def close(self) -> None:
        """Close the streams, and connections if there are any."""
        if self._open is not None:
            self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @abstractmethod
    def _bounds(self, sequencer_id: int) -> tuple[int, int]:
        """Return the earliest number and the watermark of a sequencer that was there when this was opened."""

    @abstractmethod
    def _open_stream(self, sequencer_id: int, position: Position) -> Stream: ...

    def _moved(self, sequencer_id: int) -> None:  # noqa: B027 - most readers keep nothing but the position
        """React to a position that a caller changed."""

    def _refuse_while_streaming(self, why: str) -> None:
        if self._open is not None:
            raise StreamsOpen(f"a reader of {self.name} was used although {why}", hint="close the streams first")

    def _streams_closed(self, streams: Streams) -> None:
        with self._lock:
            if self._open is streams:
                self._open = None
