"""Opens Avro files, the manifests, only if they are whole: no cut file passes for a shorter one.

pyiceberg takes the end of a file for the end of its entries, and its compiled decoder may crash the process on garbage.
"""

from __future__ import annotations

import zlib
from io import BytesIO

from pyiceberg.io import InputFile, InputStream
from pyiceberg.io.pyarrow import PyArrowFileIO

from tidemark.errors import CorruptState, Unreachable

_MARK = 16  # bytes, at the end of the header and of every block
_MORE = 0x80  # the bit of a byte of a number that another one follows


class CheckedFileIO(PyArrowFileIO):
    """Reads and writes files as pyiceberg does, but for Avro files, which it reads whole and checks."""

    def new_input(self, location: str) -> InputFile:  # type: ignore[override]  # all that callers need
        file = super().new_input(location)
        return AvroInput(file) if location.endswith(".avro") else file


class AvroInput(InputFile):
    """An Avro file whose content is checked when it is opened."""

    def __init__(self, file: InputFile) -> None:
        super().__init__(file.location)
        self._file = file

    def __len__(self) -> int:
        return len(self._file)

    def exists(self) -> bool:
        return self._file.exists()

    def open(self, seekable: bool = True) -> InputStream:  # noqa: FBT001, FBT002 -- the signature of its base
        """Return the content. Raises ``CorruptState`` if it is gone or damaged, ``Unreachable`` if nobody can tell."""
        hint = "restore it from a backup"
        try:
            with self._file.open(seekable) as stream:
                content = stream.read()
            _check(_Reader(content))
        except FileNotFoundError as error:
            raise CorruptState(f"{self.location} is gone", hint=hint) from error
        except OSError as error:
            raise Unreachable.by(error) from error
        except (ValueError, OverflowError, zlib.error) as error:
            raise CorruptState(f"{self.location} is cut, or garbage: {error}", hint=hint) from error
        return BytesIO(content)


class _Reader(BytesIO):
    """Reads the parts of an Avro file: numbers, and texts of exactly the given length."""

    def number(self) -> int:
        value = shift = 0
        while (byte := self.text(1)[0]) >= _MORE:
            value |= (byte - _MORE) << shift
            shift += 7
        value |= byte << shift
        return (value >> 1) ^ -(value & 1)

    def text(self, length: int) -> bytes:
        found = self.read(length) if length >= 0 else b""
        if len(found) != length:
            raise ValueError("it ends too early")
        return found


def _check(file: _Reader) -> None:
    """Raise an error unless the file is a header and blocks, each of which ends with the mark in the header."""
    if file.read(4) != b"Obj\x01":
        raise ValueError("it does not start as Avro does")
    meta: dict[bytes, bytes] = {}
    while count := file.number():
        if count < 0:  # the size of these entries follows
            file.number()
        for _ in range(abs(count)):
            key = file.text(file.number())
            meta[key] = file.text(file.number())
    mark = file.text(_MARK)
    while file.tell() < len(file.getbuffer()):
        file.number()
        block = file.text(file.number())
        if file.text(_MARK) != mark:
            raise ValueError("a block does not end where it should")
        if meta.get(b"avro.codec") == b"deflate":
            zlib.decompress(block, -zlib.MAX_WBITS)
