"""The digest of a collection: per hash bucket a row count and two sums of row hashes.

Digests add up: the digest of a collection after a correction is the one before plus that of the corrections. They
nest: ``fold`` adds fine buckets up to coarse ones. Equal digests mean equal contents, but for a hash collision of
64 bits in one bucket. A digest is only ever a short-cut; what cannot be used is computed again from the rows.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.collections.digest.row_hash import HASH_VERSION
from tidemark.errors import CorruptState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Longs = NDArray[np.int64]

_MAGIC = b"TMDG"
_LOW_HALF = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True, eq=False)
class Digest:
    """Per bucket: how many rows, and the sums of the upper and lower 32 bits of their hashes (arrays of int64)."""

    counts: Longs
    high_sums: Longs
    low_sums: Longs

    @classmethod
    def empty(cls, bucket_count: int) -> Digest:
        """Return the digest of no rows."""
        return cls(*(np.zeros(bucket_count, dtype=np.int64) for _ in range(3)))

    @classmethod
    def of_hashes(cls, positions: Longs, hashes: Longs, bucket_count: int, *, diff: int = 1) -> Digest:
        """Return the digest of single rows.

        Args:
            positions: The 64-bit hash that a row's bucket is taken from.
            hashes: The row hashes.
            bucket_count: A power of two.
            diff: The multiplicity of every row; -1 gives the digest of retractions.
        """
        digest = cls.empty(bucket_count)
        buckets = positions & (bucket_count - 1)
        np.add.at(digest.counts, buckets, diff)
        np.add.at(digest.high_sums, buckets, diff * (hashes >> 32))
        np.add.at(digest.low_sums, buckets, diff * (hashes & _LOW_HALF))
        return digest

    @property
    def bucket_count(self) -> int:
        return len(self.counts)

    @property
    def row_count(self) -> int:
        return int(self.counts.sum())

    def __add__(self, other: Digest) -> Digest:
        """Return the digest of both multisets together; the coarser of the two decides the buckets."""
        buckets = min(self.bucket_count, other.bucket_count)
        mine, theirs = self.fold(buckets), other.fold(buckets)
        return Digest(mine.counts + theirs.counts, mine.high_sums + theirs.high_sums, mine.low_sums + theirs.low_sums)

    def __neg__(self) -> Digest:
        """Return what takes these rows away when it is added."""
        return Digest(-self.counts, -self.high_sums, -self.low_sums)

    def fold(self, bucket_count: int) -> Digest:
        """Return the same digest in fewer buckets.

        Raises:
            ValueError: If more buckets are asked for, which only a new scan can give.
        """
        if bucket_count == self.bucket_count:
            return self
        if bucket_count > self.bucket_count:
            raise ValueError(f"a digest of {self.bucket_count} buckets cannot be split into {bucket_count}")
        return Digest(
            *(array.reshape(-1, bucket_count).sum(axis=0) for array in (self.counts, self.high_sums, self.low_sums))
        )

    def differing(self, other: Digest) -> Longs:
        """Return the buckets, ascending, in which two digests of the same bucket count differ."""
        unequal = (
            (self.counts != other.counts) | (self.high_sums != other.high_sums) | (self.low_sums != other.low_sums)
        )
        return np.flatnonzero(unequal).astype(np.int64)


@dataclass(frozen=True, slots=True)
class DigestNote:
    """What is remembered beside a digest, as text in the shard's state, and read without the digest.

    Args:
        bucket_count: The resolution that the digest should have.
        change_rate: The share of the rows that recent runs corrected, those that corrected any; 0 if none did yet.
        is_quiet: Whether the last run found nothing to correct.
        source: The fingerprint of the source that the collection was made equal to; empty if it has none (a database).
    """

    bucket_count: int
    change_rate: float
    is_quiet: bool
    source: str = ""

    def __str__(self) -> str:
        quiet = "yes" if self.is_quiet else "no"
        text = f"buckets={self.bucket_count} change-rate={self.change_rate:.3g} quiet={quiet}"
        return f"{text} source={self.source}" if self.source else text

    def expects_nothing(self, source: str) -> bool:
        """Return whether a run over a source of that fingerprint will most likely find nothing to correct.

        Only a guess, which decides how to look first: files may be written anew with the same rows.
        """
        return self.source == source if self.source and source else self.is_quiet

    @classmethod
    def parse(cls, text: str) -> DigestNote | None:
        """Read what ``str`` wrote; None if it is anything else, which only means that nothing is remembered."""
        match = re.fullmatch(r"buckets=(\d+) change-rate=([0-9.e+-]+) quiet=(yes|no)(?: source=([0-9a-f]+))?", text)
        return cls(int(match[1]), float(match[2]), match[3] == "yes", match[4] or "") if match else None


def digest_to_bytes(digest: Digest, layout: str) -> bytes:
    """Return magic number, length of the header, header (JSON), arrays. Sums of hashes would hardly compress.

    Args:
        digest: The digest.
        layout: What the hashes were made of (see ``layout_of``); a digest of another layout is of no use.
    """
    body = b"".join(array.astype("<i8").tobytes() for array in (digest.counts, digest.high_sums, digest.low_sums))
    header = {
        "version": HASH_VERSION,
        "buckets": digest.bucket_count,
        "layout": layout,
        "crc32": zlib.crc32(body),
    }
    text = json.dumps(header).encode()
    return _MAGIC + struct.pack("<I", len(text)) + text + body


def digest_from_bytes(blob: bytes, layout: str) -> Digest | None:
    """Read what ``digest_to_bytes`` wrote; None if it was made by another version or of another ``layout``.

    Raises:
        CorruptState: If it is not a digest, or a damaged one.
    """
    if blob[:4] != _MAGIC:
        raise CorruptState("a digest file does not start with its magic number")
    try:
        (length,) = struct.unpack("<I", blob[4:8])
        header: dict[str, Any] = json.loads(blob[8 : 8 + length])
        body = blob[8 + length :]
        if zlib.crc32(body) != header["crc32"]:
            raise CorruptState("a digest file is damaged: its checksum does not match")
        if header["version"] != HASH_VERSION or header["layout"] != layout:
            return None
        arrays = np.frombuffer(body, dtype="<i8").reshape(3, header["buckets"]).astype(np.int64)
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise CorruptState(f"a digest file is damaged: {error!r}") from error
    return Digest(arrays[0], arrays[1], arrays[2])


def layout_of(columns: Sequence[tuple[str, str]], key: Sequence[str]) -> str:
    """Return the text that a digest is bound to: names and types of the columns in order, then the key."""
    return json.dumps({"columns": [list(column) for column in columns], "key": list(key)}, separators=(",", ":"))
