"""Which file a row belongs into: the folder of its partition, as Hive names such folders, and the bucket of its key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.collections.schema.types import Decimal, Primitive, Type
from tidemark.errors import Refused
from tidemark.iceberg.files.arrow_values import to_values
from tidemark.sinks.targets.files.manifest import Group
from tidemark.sinks.targets.keys import hash_keys

NULL = "__HIVE_DEFAULT_PARTITION__"
BUCKET_ROWS = 100_000  # a change of one row writes about so many anew
MOST_BUCKETS = 1_024
_LONGEST_NAME = 255  # bytes, on nearly all file systems
_ODD = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")  # as Hive and Spark escape them


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows are spread over files. Without a ``key``, as in a log of changes, there is one bucket."""

    partition: tuple[str, ...]
    key: tuple[str, ...]
    buckets: int

    @property
    def finds_groups_by_key(self) -> bool:
        """Whether the key tells the partition of a row."""
        return {*self.partition} <= {*self.key}

    def split(self, rows: pa.Table) -> Iterator[tuple[Group, pa.Table]]:
        """Yield the rows of each group, in their order."""
        groups, numbers = self._number(rows)
        if len(groups) == 1:
            yield groups[0], rows
            return
        order = np.argsort(numbers, kind="stable")
        ordered = rows.take(pa.array(order))
        starts = np.searchsorted(numbers[order], np.arange(len(groups) + 1))
        for group, start, end in zip(groups, starts, starts[1:], strict=False):
            yield group, ordered.slice(start, end - start)

    def groups(self, rows: pa.Table) -> set[Group]:
        return set(self._number(rows)[0])

    def group_hashes(self, rows: pa.Table) -> NDArray[np.int64]:
        """Return a number for each row that is the same for rows of one group, in every process."""
        if rows.num_rows == 0:
            return np.zeros(0, dtype=np.int64)
        groups, numbers = self._number(rows)
        hashes = np.array([crc32(group.directory.encode()) * MOST_BUCKETS + group.bucket for group in groups])
        return hashes[numbers]

    def buckets_of(self, rows: pa.Table) -> NDArray[np.int64]:
        return hash_keys(rows, self.key) % self.buckets

    def _number(self, rows: pa.Table) -> tuple[list[Group], NDArray[np.int64]]:
        """Return the groups of the rows, and for each row the place of its group among them."""
        directories, numbers = _number_directories(rows, self.partition)
        if self.buckets > 1:
            numbers = numbers * self.buckets + self.buckets_of(rows)
        found, inverse = np.unique(numbers, return_inverse=True)
        groups = [Group(directories[int(each) // self.buckets], int(each) % self.buckets) for each in found]
        return groups, inverse.astype(np.int64)


def count_directories(rows: pa.Table, partition: Sequence[str]) -> set[str]:
    """Return the folders of the rows."""
    return set(_number_directories(rows, partition)[0]) if rows.num_rows else set()


def count_buckets(rows: int, directories: int) -> int:
    """Return into how many buckets each of so many directories is split."""
    return min(MOST_BUCKETS, max(1, -(-rows // (BUCKET_ROWS * max(1, directories)))))


def can_partition(type_: Type) -> bool:
    """Say whether values of the type have a text that can name a folder."""
    return isinstance(type_, Decimal) or (isinstance(type_, Primitive) and type_.name != "binary")


def directory_name(column: str, value: Any) -> str:
    """Return the name of the folder for rows with this value. Raises ``Refused`` if no file system allows the name."""
    name = f"{_escape(column)}={_escape(_text(value)) or NULL}"
    if len(name.encode()) > _LONGEST_NAME:
        raise Refused(
            f"the value {_text(value)[:50]!r}… of {column!r} is too long for the name of a folder",
            hint="partition by another column, of few and short values",
        )
    return name


def _number_directories(rows: pa.Table, partition: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the folders of the rows, and for each row the place of its folder among them."""
    names = [""]
    numbers = np.zeros(rows.num_rows, dtype=np.int64)
    for column in partition:
        encoded = rows.column(column).combine_chunks().dictionary_encode(null_encoding="encode")
        values = [directory_name(column, value) for value in to_values(encoded.dictionary)]
        codes = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)
        found, inverse = np.unique(numbers * len(values) + codes, return_inverse=True)
        pairs = [divmod(int(each), len(values)) for each in found]
        names = [f"{names[before]}/{values[own]}".lstrip("/") for before, own in pairs]
        numbers = inverse.astype(np.int64)
    return names, numbers


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value + 0.0) if isinstance(value, float) else str(value)  # -0.0 is 0.0


def _escape(text: str) -> str:
    return _ODD.sub(lambda match: f"%{ord(match[0]):02X}", text)
