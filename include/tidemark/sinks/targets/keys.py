"""The keys of rows for targets without an index of their own: found among stored rows, hashed, and checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType

from tidemark.errors import Refused
from tidemark.iceberg.files.arrow_values import to_rows
from tidemark.iceberg.files.key_index import KeyIndex
from tidemark.iceberg.reading.arrow import comparable
from tidemark.report import plain

_HASHES = 2**31 - 1
# The hash of the Iceberg specification: of equal values the same in every version, and of an int as of a bigint.
_hash = BucketTransform(num_buckets=_HASHES).pyarrow_transform(LongType())
_SAMPLE = 5


class Keys:
    """Some keys, to be found among rows."""

    def __init__(self, rows: pa.Table, key: Sequence[str]) -> None:
        self._key = tuple(key)
        self._index, _ = KeyIndex.of(_comparable(rows, key), key)

    def find(self, rows: pa.Table) -> NDArray[np.int64]:
        """Return the places of the rows with such keys, ascending."""
        places, _ = self._index.find(_comparable(rows, self._key))
        return places


def hash_keys(rows: pa.Table, key: Sequence[str]) -> NDArray[np.int64]:
    """Return a number for each row, from 0, that is the same for equal keys, today and later; NULL equals NULL."""
    found = np.zeros(rows.num_rows, dtype=np.int64)
    for name in key:
        column = comparable(rows.column(name))
        is_text = pa.types.is_boolean(column.type) or pa.types.is_floating(column.type)
        hashes = _hash(column.cast(pa.string()) if is_text else column)
        found = (found * 31 + np.asarray(pc.fill_null(hashes, 0).to_numpy(), dtype=np.int64)) % _HASHES
    return found


class UniqueKeys:
    """Finds out whether the keys of a stream of rows are unique: 4 bytes a row, and a second look at few of them."""

    def __init__(self, key: Sequence[str], *, where: str) -> None:
        self._key = tuple(key)
        self._where = where
        self._hashes: list[NDArray[np.int32]] = []

    def add(self, rows: pa.Table) -> None:
        """Note the keys of some rows, which have no NULL."""
        self._hashes.append(hash_keys(rows, self._key).astype(np.int32))

    def check(self, pieces: Iterable[pa.Table]) -> None:
        """Raise ``Refused`` if two of all rows have the same key; ``pieces`` are these rows once more.

        The pieces are read only if the hashes of two rows are equal.
        """
        hashes, counts = np.unique(np.concatenate([np.zeros(0, np.int32), *self._hashes]), return_counts=True)
        suspects = hashes[counts > 1]
        if not len(suspects):
            return
        chosen = [
            rows.select(list(self._key)).filter(pa.array(np.isin(hash_keys(rows, self._key), suspects)))
            for rows in pieces
        ]
        rows = pa.concat_tables(chosen)
        index, numbers = KeyIndex.of(_comparable(rows, self._key), self._key)
        if index.count == rows.num_rows:
            return
        _, first, counts = np.unique(numbers, return_index=True, return_counts=True)
        twice = first[counts > 1]
        raise Refused(
            f"{self._where}: {len(twice)} keys ({', '.join(self._key)}) belong to more than one row each",
            hint="declare columns as `key` that tell all rows apart, or `mode: changes`",
            sample=plain(to_rows(rows.take(pa.array(twice[:_SAMPLE])))),
        )


def _comparable(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    return pa.table({name: comparable(rows.column(name)) for name in key})
