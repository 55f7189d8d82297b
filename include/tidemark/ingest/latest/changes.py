"""The last change of each key in each sequencer, kept while messages stream by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.iceberg.files.key_index import ABSENT, KeyIndex
from tidemark.iceberg.shard.column_names import DIFF
from tidemark.ingest.latest.decoding import DELETE

FOLD_ROWS = 65_536


@dataclass(slots=True)
class Folding:
    """Keeps the last change of each key of one sequencer; changes come in the order of the log.

    Memory: twice the changes that are kept, and ``FOLD_ROWS`` more.
    """

    key: Sequence[str]
    fold_rows: int = FOLD_ROWS
    _kept: pa.Table | None = None
    _waiting: list[pa.Table] = field(default_factory=list)
    _count: int = 0

    def add(self, changes: pa.Table) -> None:
        if changes.num_rows:
            self._waiting.append(changes)
            self._count += changes.num_rows
        if self._count >= max(self.fold_rows, self._kept.num_rows if self._kept else 0):
            self._fold()

    def last(self) -> pa.Table | None:
        """Return the last change of each key, in the order of the log; None if there was none."""
        self._fold()
        return self._kept

    @property
    def size_bytes(self) -> int:
        return sum(table.nbytes for table in (*self._waiting, *([self._kept] if self._kept else [])))

    def _fold(self) -> None:
        if self._waiting:
            self._kept = keep_last(pa.concat_tables([*([self._kept] if self._kept else []), *self._waiting]), self.key)
            self._waiting, self._count = [], 0


def keep_last(changes: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the last row of each key, in the order of ``changes``."""
    changes = changes.combine_chunks()
    index, numbers = KeyIndex.of(changes, key)
    if index.count == changes.num_rows:
        return changes
    last = np.zeros(index.count, dtype=np.int64)
    last[numbers] = np.arange(changes.num_rows)  # of places for one key, the last one stays
    return changes.take(pa.array(np.sort(last)))


@dataclass(frozen=True, slots=True)
class Changes:
    """The last change of each key and sequencer, of all sequencers."""

    rows: pa.Table  # the user's columns, and `_diff`
    sequencers: NDArray[np.int64]  # of each row
    index: KeyIndex
    keys: NDArray[np.int64]  # the number of each row's key

    @classmethod
    def of(cls, by_sequencer: Mapping[int, pa.Table], schema: pa.Schema, key: Sequence[str]) -> Changes:
        """Return the changes; ``schema`` has the columns of the tables."""
        tables = [schema.empty_table(), *(table.cast(schema) for table in by_sequencer.values())]
        counts = np.array([table.num_rows for table in by_sequencer.values()], dtype=np.int64)
        sequencers = np.repeat(np.array(list(by_sequencer), dtype=np.int64), counts)
        rows = pa.concat_tables(tables).combine_chunks()
        return cls(rows, sequencers, *KeyIndex.of(rows, key))

    @property
    def deletes(self) -> NDArray[np.bool_]:
        return np.asarray(pc.equal(self.rows.column(DIFF), DELETE))

    def find_owners(self, stored: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sequencer that each key is of: by its stored row, else the smallest one with a change of the key.

        ``stored`` has the sequencer of the stored row by number of the key, ``ABSENT`` where none is known.
        """
        smallest = np.full(self.index.count, np.iinfo(np.int64).max)
        np.minimum.at(smallest, self.keys, self.sequencers)
        return np.where(stored == ABSENT, smallest, stored)

    def take(self, chosen: NDArray[np.bool_]) -> Changes:
        """Return the chosen rows; the numbers of keys stay."""
        if chosen.all():
            return self
        return Changes(self.rows.filter(pa.array(chosen)), self.sequencers[chosen], self.index, self.keys[chosen])
