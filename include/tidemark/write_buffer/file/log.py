"""The folder of one sequencer: a file per number, and the floor below which retention removed them.

A hard link from a finished file commits a number: a link never replaces a file, so two processes cannot have one
number, and nobody sees half a message. ``n`` is linked only after ``n - 1``, so a missing number below the watermark is
a hole that somebody made later, not an entry that is still being written.

A file is a line of JSON that says what follows, then the payload: readable with `head` and `cat`.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemark.fail_points import fail_point
from tidemark.write_buffer.errors import BufferUnreachable
from tidemark.write_buffer.formats.entry import BadMessage, BadReason, Delivered, Message, Sequence, read_message

FAIL_POINTS = ("buffer-file.before-commit", "buffer-file.after-commit", "buffer-file.before-remove")
_DIGITS = 20  # of a 64-bit number
_TEMPORARY, _FLOOR = "tmp", "floor"
_ABANDONED_S = 86_400  # a temporary file of this age has lost its writer
_VERSION = 1  # of the files
_HEADER_BYTES = "latin-1"  # maps every byte to one character, so that any header value survives JSON


class FileLog:
    """One sequencer's messages below ``folder``, shared by any number of processes on one machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._next = 0  # the first number that this writer tries; every number below was given once

    def create(self) -> None:
        """Make the folder, unless it is there."""
        (self.folder / _TEMPORARY).mkdir(parents=True, exist_ok=True)
        sync_folder(self.folder)

    def append(self, content: bytes) -> int:
        """Store ``content`` at the next free number, and return the number once it is durable.

        Raises ``BufferUnreachable`` if the disk refuses.
        """
        with disk_errors(self.folder):
            temporary = self._write_temporary(content)
            fail_point("buffer-file.before-commit")
            number = self._link(temporary)
            self.sync()
            fail_point("buffer-file.after-commit")
            temporary.unlink()
        return number

    def read(self, number: int) -> bytes | None:
        """Return the message at ``number``; ``None`` if there is none."""
        with disk_errors(self.folder):
            try:
                return self.path(number).read_bytes()
            except FileNotFoundError:
                return None

    def sync(self) -> None:
        """Make all present names durable, so that a power failure takes back no message that a reader has acted on."""
        with disk_errors(self.folder):
            sync_folder(self.folder)

    def bounds(self) -> tuple[int, int]:
        """Return the earliest number, and the watermark: the number that will be written next."""
        numbers, watermark = self.list_numbers()
        return numbers[0] if numbers else watermark, watermark

    def list_numbers(self) -> tuple[list[int], int]:
        """Return the numbers of all messages below the watermark, in order, and the watermark."""
        with disk_errors(self.folder):
            # A listing may miss a name that is linked meanwhile, and yet contain a later one. All numbers up to the
            # largest of the first listing exist before the second listing begins, so the second one misses none.
            watermark = max(self._scan(), default=-1) + 1
            numbers = self._scan()
            floor = self._floor()  # read last: it is raised before anything is removed
            watermark = max(watermark, floor)
            return sorted(number for number in numbers if floor <= number < watermark), watermark

    def expire(self, below: int) -> int:
        """Remove the messages below ``below`` and return their count; their numbers are not given again.

        Raises ``BufferUnreachable`` if the disk refuses.
        """
        with disk_errors(self.folder), _locked(self.folder):
            below = min(below, self.list_numbers()[1])
            temporary = self._write_temporary(str(max(below, self._floor())).encode())
            now_s = temporary.stat().st_mtime  # by the clock of the disk, like the times that it is compared with
            temporary.rename(self.folder / _FLOOR)
            self.sync()
            fail_point("buffer-file.before-remove")
            expired = [number for number in self._scan() if number < below]
            for number in expired:
                self.path(number).unlink(missing_ok=True)
            for file in (self.folder / _TEMPORARY).iterdir():
                if now_s - file.stat().st_mtime > _ABANDONED_S:
                    file.unlink(missing_ok=True)
        return len(expired)

    def path(self, number: int) -> Path:
        """Return the file of ``number``, which need not exist."""
        return self.folder / f"{number:0{_DIGITS}}"

    def _link(self, temporary: Path) -> int:
        number = self._next or self.list_numbers()[1]
        while True:
            try:
                os.link(temporary, self.path(number))
            except FileExistsError:  # another writer was faster: try the next number
                number += 1
                continue
            if number >= (floor := self._floor()):
                self._next = max(self._next, number + 1)
                return number
            self.path(number).unlink()  # retention freed the number: no reader looks below the floor
            number = floor

    def _write_temporary(self, content: bytes) -> Path:
        temporary = self.folder / _TEMPORARY / uuid.uuid4().hex
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return temporary

    def _scan(self) -> list[int]:
        with os.scandir(self.folder) as entries:
            names = [entry.name for entry in entries]
        return [int(name) for name in names if len(name) == _DIGITS and name.isdecimal()]  # others are not ours

    def _floor(self) -> int:
        try:
            return int((self.folder / _FLOOR).read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn the operating system's errors on ``folder`` into BufferUnreachable."""
    try:
        yield
    except OSError as error:
        raise BufferUnreachable(
            f"the file buffer at {str(folder)!r} does not answer: {error}", hint="look at the disk and at who may write"
        ) from error


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable: a file survives a power failure only with its name."""
    with _opened(folder) as descriptor:
        os.fsync(descriptor)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with _opened(folder) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # ends when the descriptor is closed, also by death
        yield


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def encode_message(message: Message) -> bytes:
    """Return the content of the file of ``message``."""
    payload = message.payload
    about = {
        "version": _VERSION,
        "time_ms": message.time_ms,
        "headers": [[name, value.decode(_HEADER_BYTES)] for name, value in message.headers],
        "bytes": None if payload is None else len(payload),
        "crc32": zlib.crc32(payload or b""),
    }
    return json.dumps(about, separators=(",", ":")).encode() + b"\n" + (payload or b"")


def decode_message(sequence: Sequence, content: bytes) -> Delivered:
    """Return the entry in the file's ``content``, or a bad message: disks and people damage files."""
    first, _, payload = content.partition(b"\n")
    try:
        about = json.loads(first)
        version, size, crc32, time_ms = (about[name] for name in ("version", "bytes", "crc32", "time_ms"))
        headers = tuple((str(name), value.encode(_HEADER_BYTES)) for name, value in about["headers"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return _damaged(sequence, content, f"the first line is not that of a message: {error}")
    if version != _VERSION:
        detail = f"Unknown message format: file version {version}"
        return BadMessage(sequence, Message(content), BadReason.FORMAT_UNKNOWN, detail)
    if len(payload) != (size or 0) or zlib.crc32(payload) != crc32:
        return _damaged(sequence, content, f"the payload is not the {size} bytes that were written")
    return read_message(sequence, Message(None if size is None else payload, headers, time_ms))


def _damaged(sequence: Sequence, content: bytes, detail: str) -> BadMessage:
    return BadMessage(sequence, Message(content), BadReason.DAMAGED, detail)
