"""The digests of the files that a collection was made from, one by one, so that files can be taken away and added.

Together they have the digest of the collection. What is kept is a short-cut, as the digest is: without it, or if it
does not fit, all rows are compared.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tidemark.collections.digest.digest import HASH_VERSION, Digest, pack, unpack
from tidemark.errors import CorruptState

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAGIC = b"TMFD"
FEWEST_BUCKETS, _MOST_BUCKETS = 1 << 4, 1 << 12
_MOST_SUMS = 1 << 20  # buckets of all files together: 24 MiB


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The rows of one file that a collection keeps.

    ``state`` names the contents of the file; a file whose state is empty may have other contents by now. ``bounds``
    are the smallest and the largest value of one column, or None.
    """

    state: str
    digest: Digest
    bounds: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class FileDigests:
    """The digests of all files, by name; all have the same number of buckets.

    No bucket if only the states of the files are kept.
    """

    decided_by: str  # names all that decides, beside the files, which rows these are
    files: Mapping[str, FileDigest]

    @property
    def bucket_count(self) -> int:
        return next((file.digest.bucket_count for file in self.files.values()), FEWEST_BUCKETS)

    @property
    def has_sums(self) -> bool:
        """Whether the digests are kept, and not the states of the files alone."""
        return self.bucket_count > 0

    def total(self, names: Iterable[str] | None = None) -> Digest:
        """Return the digest of the rows of these files, or of all files."""
        total = Digest.empty(self.bucket_count)
        for name in self.files if names is None else names:
            total.sums[...] += self.files[name].digest.sums
        return total

    def fitted(self) -> Self | None:
        """Return these digests in no more buckets than so many files should have; None if there are too many files."""
        wanted = choose_file_buckets(rows=self.total().row_count, files=len(self.files))
        if wanted is None or wanted >= self.bucket_count:
            return None if wanted is None else self
        files = {name: replace(file, digest=file.digest.fold(wanted)) for name, file in self.files.items()}
        return type(self)(self.decided_by, files)

    def says_the_same_as(self, others: Self) -> bool:
        """Say whether both are about the same files in the same states."""
        states = [{name: file.state for name, file in each.files.items()} for each in (self, others)]
        is_same = self.decided_by == others.decided_by and self.bucket_count == others.bucket_count
        return is_same and states[0] == states[1]

    def to_bytes(self, layout: str) -> bytes:
        """Return what ``from_bytes`` reads; ``layout`` says which columns were hashed."""
        digests = [file.digest.sums for file in self.files.values()]
        body = np.stack(digests).astype("<i8").tobytes() if digests else b""
        header = {
            "version": HASH_VERSION,
            "layout": layout,
            "decided_by": self.decided_by,
            "buckets": self.bucket_count,
            "files": [[name, file.state, file.bounds] for name, file in self.files.items()],
        }
        return pack(_MAGIC, {**header, "crc32": _checksum(header, body)}, body)

    @classmethod
    def from_bytes(cls, blob: bytes, layout: str) -> Self | None:
        """Read the bytes of ``to_bytes``; None for another hash version or another ``layout``.

        Raises ``CorruptState`` if ``blob`` is something else, or is damaged.
        """
        header, body = unpack(_MAGIC, blob)
        try:
            if header.pop("crc32") != _checksum(header, body):
                raise CorruptState("the digests of files are damaged: their checksum does not match")
            if header["version"] != HASH_VERSION or header["layout"] != layout:
                return None
            return cls(str(header["decided_by"]), dict(_read_files(header, body)))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptState(f"the digests of files are damaged: {error!r}") from error


def _checksum(header: Mapping[str, Any], body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(json.dumps(header).encode()))


def _read_files(header: Mapping[str, Any], body: bytes) -> Iterable[tuple[str, FileDigest]]:
    sums: NDArray[np.int64] = np.frombuffer(body, dtype="<i8").astype(np.int64)
    each = sums.reshape(len(header["files"]), 3, header["buckets"])
    for (name, state, bounds), digest in zip(header["files"], each, strict=True):
        yield str(name), FileDigest(str(state), Digest(digest), None if bounds is None else (bounds[0], bounds[1]))


def choose_file_buckets(*, rows: int, files: int) -> int | None:
    """Return the number of buckets for each file: about one for each of its rows; None if there are too many files."""
    if files * FEWEST_BUCKETS > _MOST_SUMS:
        return None
    wanted = 1 << (rows // max(1, files)).bit_length()
    most = min(_MOST_BUCKETS, 1 << ((_MOST_SUMS // max(1, files)).bit_length() - 1))
    return min(max(wanted, FEWEST_BUCKETS), most)
