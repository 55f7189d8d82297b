"""The digest of a collection: per hash bucket a row count and two sums of row hashes.

Digests add up: the old digest of a collection plus the digest of the corrections is the new digest. Digests nest:
``fold`` sums fine buckets into coarse ones. Equal digests mean equal contents, except for a collision of 64-bit hashes
in one bucket. A digest is only a short-cut: a digest that cannot be used is computed again from the rows.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tidemark.errors import CorruptState

if TYPE_CHECKING:
    Longs = NDArray[np.int64]

HASH_VERSION = 1  # part of every stored digest: change the version whenever hashes or buckets change
_MAGIC = b"TMDG"
LOW_HALF = 0xFFFF_FFFF
_NOTE = re.compile(
    r"buckets=(\d+) change-rate=([0-9.e+-]+) quiet=(yes|no)(?: source=([0-9a-f]+))?(?: compared=(\d+))?(?: at=(\S+))?"
)


@dataclass(frozen=True, slots=True, eq=False)
class Digest:
    """Three rows of int64, with a column per bucket: row counts, and sums of the upper and lower halves of hashes."""

    sums: Longs

    @classmethod
    def empty(cls, bucket_count: int) -> Digest:
        """Return the digest of no rows."""
        return cls(np.zeros((3, bucket_count), dtype=np.int64))

    @classmethod
    def of_hashes(cls, positions: Longs, hashes: Longs, bucket_count: int, *, diff: int = 1) -> Digest:
        """Return the digest of rows with these ``hashes``; a 64-bit hash in ``positions`` decides the bucket of a row.

        ``bucket_count`` is a power of two; ``diff`` is the multiplicity of every row: -1 for retractions.
        """
        digest = cls.empty(bucket_count)
        digest.include(positions, hashes, diff=diff)
        return digest

    def include(self, positions: NDArray[np.signedinteger], hashes: Longs, *, diff: int = 1) -> None:
        """Add rows to this digest in place; the arguments are those of ``of_hashes``."""
        buckets = positions & (self.bucket_count - 1)
        for sums, values in zip(self.sums, (np.ones_like(hashes), hashes >> 32, hashes & LOW_HALF), strict=True):
            np.add.at(sums, buckets, diff * values)

    @property
    def counts(self) -> Longs:
        """The row count of every bucket."""
        counts: Longs = self.sums[0]
        return counts

    @property
    def bucket_count(self) -> int:
        return len(self.counts)

    @property
    def row_count(self) -> int:
        return int(self.counts.sum())

    def __add__(self, other: Digest) -> Digest:
        """Return the digest of both multisets together, in the buckets of the coarser digest."""
        buckets = min(self.bucket_count, other.bucket_count)
        return Digest(self.fold(buckets).sums + other.fold(buckets).sums)

    def __neg__(self) -> Digest:
        """Return the digest that removes these rows from a digest to which it is added."""
        return Digest(-self.sums)

    def fold(self, bucket_count: int) -> Digest:
        """Return the same digest in fewer buckets.

        Raises ``ValueError`` if ``bucket_count`` is larger, which needs a new scan.
        """
        if bucket_count == self.bucket_count:
            return self
        if bucket_count > self.bucket_count:
            raise ValueError(f"a digest of {self.bucket_count} buckets cannot be split into {bucket_count}")
        return Digest(self.sums.reshape(3, -1, bucket_count).sum(axis=1))

    def differing(self, other: Digest) -> Longs:
        """Return the buckets, ascending, in which two digests differ, numbered as in the coarser digest."""
        buckets = min(self.bucket_count, other.bucket_count)
        return np.flatnonzero((self.fold(buckets).sums != other.fold(buckets).sums).any(axis=0)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class DigestNote:
    """What the last run left for the next one, as text in the shard's state; readable without the digest."""

    bucket_count: int  # that the digest should have
    change_rate: float  # the share of rows that recent runs with corrections corrected; 0 without such a run
    is_quiet: bool  # whether the last run found nothing to correct
    source: str = ""  # the name of the state of the source that the rows were made equal to; empty: it has none
    compared_ms: int = 0  # when all rows of the source were read last, and compared with the rows; 0: never, or unknown
    mark: str = ""  # from where the next run can follow the changes of the source; empty: it cannot

    def __str__(self) -> str:
        quiet = "yes" if self.is_quiet else "no"
        text = f"buckets={self.bucket_count} change-rate={self.change_rate:.3g} quiet={quiet}"
        known = {"source": self.source, "compared": self.compared_ms, "at": self.mark}
        return " ".join([text, *(f"{name}={value}" for name, value in known.items() if value)])

    def expects_nothing(self, source: str) -> bool:
        """Say whether a run over a source whose state has that name will most likely find nothing to correct.

        A guess, which only decides on the first scan: new files may hold the same rows.
        """
        return self.source == source if self.source and source else self.is_quiet

    @classmethod
    def parse(cls, text: str) -> DigestNote | None:
        """Read the text of ``str``; None for any other text: then nothing is known of earlier runs."""
        match = _NOTE.fullmatch(text)
        if match is None:
            return None
        source, compared_ms, mark = match[4] or "", int(match[5] or 0), match[6] or ""
        return cls(int(match[1]), float(match[2]), match[3] == "yes", source, compared_ms, mark)


def digest_to_bytes(digest: Digest, layout: str) -> bytes:
    """Return magic number, length of the header, header (JSON) and arrays; sums of hashes would hardly compress.

    ``layout`` (see ``layout_of``) says which columns were hashed: a digest of another layout cannot be compared.
    """
    body = digest.sums.astype("<i8").tobytes()
    header = {"version": HASH_VERSION, "buckets": digest.bucket_count, "layout": layout, "crc32": zlib.crc32(body)}
    return pack(_MAGIC, header, body)


def digest_from_bytes(blob: bytes, layout: str) -> Digest | None:
    """Read the bytes of ``digest_to_bytes``; None for another hash version or another ``layout``.

    Raises ``CorruptState`` if ``blob`` is not a digest, or is damaged.
    """
    header, body = unpack(_MAGIC, blob)
    try:
        if zlib.crc32(body) != header["crc32"]:
            raise CorruptState("a digest file is damaged: its checksum does not match")
        if header["version"] != HASH_VERSION or header["layout"] != layout:
            return None
        return Digest(np.frombuffer(body, dtype="<i8").reshape(3, header["buckets"]).astype(np.int64))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptState(f"a digest file is damaged: {error!r}") from error


def add_corrections(before: bytes | None, after: Sequence[bytes | None], *, is_empty: bool) -> bytes | None:
    """Return the digest of a collection after several corrections of disjoint rows; None if it cannot be told.

    ``before`` is its digest (None: none is kept; ``is_empty``: it has no rows), ``after`` the digests after each
    correction alone.
    """
    digests: list[Digest] = []
    layout = ""
    try:
        for blob in [*after, *([] if is_empty else [before])]:
            layout = layout or str(unpack(_MAGIC, blob or b"")[0]["layout"])
            if (digest := digest_from_bytes(blob or b"", layout)) is None:
                return None
            digests.append(digest)
    except (CorruptState, ValueError, KeyError):
        return None
    base = Digest.empty(digests[0].bucket_count) if is_empty else digests.pop()
    total = base
    for digest in digests:
        total += digest + -base
    return digest_to_bytes(total, layout)


def pack(magic: bytes, header: Mapping[str, Any], body: bytes) -> bytes:
    """Return magic number, length of the header, header (JSON) and body."""
    text = json.dumps(header).encode()
    return magic + struct.pack("<I", len(text)) + text + body


def unpack(magic: bytes, blob: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header and the body of ``pack``. Raises ``CorruptState`` if ``blob`` is something else."""
    if blob[:4] != magic:
        raise CorruptState(f"a digest file does not start with its magic number {magic.decode()}")
    try:
        (length,) = struct.unpack("<I", blob[4:8])
        header = json.loads(blob[8 : 8 + length])
    except (struct.error, ValueError) as error:
        raise CorruptState(f"a digest file is damaged: {error!r}") from error
    if not isinstance(header, dict):
        raise CorruptState("a digest file is damaged: its header is no object")
    return header, blob[8 + length :]


def layout_of(columns: Sequence[tuple[str, str]], key: Sequence[str]) -> str:
    """Return the layout that a digest is valid for: names and types of the columns in order, then the key."""
    return json.dumps({"columns": [list(column) for column in columns], "key": list(key)}, separators=(",", ":"))
