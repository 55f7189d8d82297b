"""A type of buffers that always fail, each call with a text of its own: for tests of what stands on buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.write_buffer.back_end import BackEnd, Connection
from tidemark.write_buffer.errors import BufferUnreachable
from tidemark.write_buffer.reader import Reader, Stream
from tidemark.write_buffer.writer import Stored, Writer

if TYPE_CHECKING:
    from tidemark.clock import Clock
    from tidemark.write_buffer.formats.entry import Delivered, Entry
    from tidemark.write_buffer.reader import Position

_NAME = "the failing buffer"


def _bad(what: str) -> BufferUnreachable:
    return BufferUnreachable(f"Something bad happened {what}", hint="this buffer always fails: it is there for tests")


class FailingWriter(Writer):
    """Has one sequencer, and never stores anything."""

    def __init__(self) -> None:
        super().__init__({0}, name=_NAME)

    def store_entry(self, entry: Entry, sequencer_id: int) -> Stored:  # noqa: ARG002 - the interface
        raise _bad("on the way to writing an entry in the write buffer")

    def close(self) -> None:
        """Nothing is held."""


class FailingReader(Reader):
    """Has one sequencer, and never delivers anything."""

    def __init__(self) -> None:
        super().__init__({0}, name=_NAME, identity=_NAME)

    def seek(self, sequencer_id: int, number: int) -> None:  # noqa: ARG002 - the interface
        raise _bad("while seeking the stream")

    def reset_to_earliest(self) -> None:
        raise _bad("while resetting the streams")

    def fetch_high_watermark(self, sequencer_id: int) -> int:  # noqa: ARG002 - the interface
        raise _bad("while fetching the high watermark")

    def fetch_earliest(self, sequencer_id: int) -> int:  # noqa: ARG002 - the interface
        raise _bad("while fetching the earliest number")

    def close(self) -> None:
        """Nothing is held."""

    def _bounds(self, sequencer_id: int) -> tuple[int, int]:  # noqa: ARG002 - the interface
        raise _bad("while fetching the bounds")

    def _open_stream(self, sequencer_id: int, position: Position) -> Stream:
        return _FailingStream(sequencer_id, position, buffer=self.name)


class _FailingStream(Stream):
    def _take(self, limit: int, timeout_s: float) -> list[Delivered]:  # noqa: ARG002 - the interface
        raise _bad("while reading from stream")


class FailingBackEnd(BackEnd):
    """``failing:NAME``, once a test has put this module into ``registry.MODULES``."""

    def locate(self, connection: Connection, uri: str) -> Connection:  # noqa: ARG002 - the interface
        return connection

    def open_writer(self, connection: Connection, *, clock: Clock, create: bool) -> Writer:  # noqa: ARG002
        return FailingWriter()

    def open_reader(self, connection: Connection, *, create: bool) -> Reader:  # noqa: ARG002
        return FailingReader()


BACK_END = FailingBackEnd()
