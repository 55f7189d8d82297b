"""A buffer in a folder: for one machine, without a server. Any number of processes may write and read it at once."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tidemark.clock import Clock
from tidemark.errors import ConfigurationInvalid
from tidemark.locations import parse_uri
from tidemark.write_buffer.back_end import BackEnd, Connection
from tidemark.write_buffer.file.folder import FileFolder, open_folder
from tidemark.write_buffer.file.log import FileLog, decode_message, encode_message
from tidemark.write_buffer.formats.entry import Delivered, Entry, Message, Sequence
from tidemark.write_buffer.reader import Position, Reader, Stream
from tidemark.write_buffer.writer import DEFAULT_LIMIT_BYTES, Stored, Writer

_POLL_S = 0.02  # no other process can wake a reader; short, since a look at one name costs microseconds
TAKE_BYTES = 16 * 1024 * 1024  # stop a take after so many bytes of files: entries may be large, and limits high


class FileWriter(Writer):
    """Writes one file per entry, each durable before it is acknowledged."""

    def __init__(self, folder: FileFolder, *, clock: Clock, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        super().__init__(folder.logs, name=folder.name, limit_bytes=limit_bytes)
        self._folder, self._clock = folder, clock

    def store_entry(self, entry: Entry, sequencer_id: int) -> Stored:
        self.check_sequencer(sequencer_id)
        time_ms = self._clock.now_ms()
        message = Message.of(entry, time_ms)
        self.check_size(message)
        number = self._folder.logs[sequencer_id].append(encode_message(message))
        return Stored(Sequence(sequencer_id, number), time_ms)


class FileReader(Reader):
    """Reads the files of every sequencer in the order of their numbers; missing ones are skipped."""

    def __init__(self, folder: FileFolder) -> None:
        super().__init__(folder.logs, name=folder.name, identity=folder.identity)
        self._folder = folder

    def _bounds(self, sequencer_id: int) -> tuple[int, int]:
        return self._folder.logs[sequencer_id].bounds()

    def _open_stream(self, sequencer_id: int, position: Position) -> Stream:
        return _FileStream(self._folder.logs[sequencer_id], sequencer_id, position, buffer=self.name)


class _FileStream(Stream):
    def __init__(self, log: FileLog, sequencer_id: int, position: Position, *, buffer: str) -> None:
        super().__init__(sequencer_id, position, buffer=buffer)
        self._log = log

    def _take(self, limit: int, timeout_s: float) -> list[Delivered]:
        until = time.monotonic() + timeout_s
        while True:
            if taken := self._take_present(limit):
                return taken
            left = until - time.monotonic()
            if left <= 0:
                return []
            time.sleep(min(_POLL_S, left))

    def _take_present(self, limit: int) -> list[Delivered]:
        taken: list[Delivered] = []
        taken_bytes = 0
        while len(taken) < limit and taken_bytes < TAKE_BYTES:
            number = self.position.number
            content = None if number is None else self._log.read(number)
            if number is None or content is None:
                if taken or not self._find_next():  # deliver first: `_find_next` may raise
                    break
                continue
            taken.append(decode_message(Sequence(self.sequencer_id, number), content))
            taken_bytes += len(content)
            self.position.advance(number + 1)
        if taken:
            self._log.sync()
        return taken

    def _find_next(self) -> bool:
        """List the log and stand before its next entry; return whether there is one."""
        numbers, watermark = self._log.list_numbers()
        earliest = numbers[0] if numbers else watermark
        self.position.check(self.sequencer_id, earliest=earliest, watermark=watermark, buffer=self.buffer)
        place = bisect_left(numbers, earliest if self.position.number is None else self.position.number)
        if place < len(numbers):
            self.position.advance(numbers[place])
            return True
        if self.position.number is None or self.position.number < watermark:  # nothing but holes up to the end
            self.position.advance(watermark)
        return False


class FileBackEnd(BackEnd):
    """``file:///ABSOLUTE/FOLDER``."""

    options = frozenset({"sequencers", "limit_bytes"})

    def locate(self, connection: Connection, uri: str) -> Connection:
        if "#" in uri:
            raise ConfigurationInvalid(f"{uri!r} contains '#', the start of a fragment", hint="write %23")
        return replace(connection, place=str(parse_uri(uri.partition("?")[0])))

    def airflow_address(self, fields: Mapping[str, Any], extra: dict[str, Any]) -> str:
        return "file://" + quote(str(extra.get("path") or fields["host"]))

    def open_writer(self, connection: Connection, *, clock: Clock, create: bool) -> Writer:
        return FileWriter(_open_folder(connection, create=create), clock=clock, limit_bytes=connection.limit_bytes)

    def open_reader(self, connection: Connection, *, create: bool) -> Reader:
        return FileReader(_open_folder(connection, create=create))


def _open_folder(connection: Connection, *, create: bool) -> FileFolder:
    return open_folder(Path(connection.place), sequencers=connection.sequencers if create else None)


BACK_END = FileBackEnd()
