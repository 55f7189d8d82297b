"""The difference between stored rows and the last change of each key: rows to add, and stored rows to retract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.errors import CorruptState
from tidemark.iceberg.files.key_index import ABSENT, KeyIndex
from tidemark.iceberg.files.row_positions import take_rows
from tidemark.iceberg.files.stored_rows import StoredRows
from tidemark.iceberg.reading.arrow import comparable
from tidemark.ingest.latest.changes import Changes


@dataclass(frozen=True, slots=True)
class TouchedRows:
    """The stored rows of some keys, with their places."""

    rows: pa.Table
    keys: NDArray[np.int64]  # the number of each row's key
    files: NDArray[np.int64]  # of each row, its place among ``paths``
    positions: NDArray[np.int64]
    paths: tuple[str, ...]

    def by_key(self, count: int) -> NDArray[np.int64]:
        """Return the place of the stored row by number of the key, ``ABSENT`` where there is none."""
        places = np.full(count, ABSENT, dtype=np.int64)
        places[self.keys] = np.arange(len(self.keys))
        return places

    def positions_of(self, chosen: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Return the positions of the rows at the places ``chosen``, by the path of their file."""
        files, positions = self.files[chosen], self.positions[chosen]
        return {self.paths[file]: positions[files == file] for file in np.unique(files)}


def find_touched(stored: StoredRows, index: KeyIndex, key: Sequence[str], columns: Sequence[str]) -> TouchedRows:
    """Return the stored rows whose keys are in ``index``, with ``columns``.

    The key columns of all files are read, and of files with such rows the row groups that have them. Memory: these
    rows, and 8 bytes for each.

    Raises ``CorruptState`` if two stored rows share a key.
    """
    tables, keys, files, positions = [], [], [], []
    for number, file in enumerate(stored.files):
        found_keys, found_positions = [], []
        for placed in stored.scan(file, key):
            places, numbers = index.find(placed.rows)
            found_keys.append(numbers)
            found_positions.append(placed.positions[places])
        at = _join(found_positions)
        if len(at):
            tables.append(take_rows(stored.table, file, columns, at))
            keys.append(_join(found_keys))
            positions.append(at)
            files.append(np.full(len(at), number, dtype=np.int64))
    all_keys = _join(keys)
    if len(np.unique(all_keys)) < len(all_keys):
        raise CorruptState(
            f"{'.'.join(stored.table.name())} has two rows with one key",
            hint="find out who wrote them; `tidemark doctor` looks at the whole collection",
        )
    rows = pa.concat_tables(tables).combine_chunks() if tables else stored.empty(columns)
    return TouchedRows(rows, all_keys, _join(files), _join(positions), tuple(file.file_path for file in stored.files))


@dataclass(frozen=True, slots=True)
class Corrections:
    """Places of changes whose rows are added, and of touched rows that are retracted."""

    added: NDArray[np.int64]
    retracted: NDArray[np.int64]

    @property
    def is_empty(self) -> bool:
        return not len(self.added) and not len(self.retracted)


def correct(changes: Changes, touched: TouchedRows, key: Sequence[str]) -> Corrections:
    """Return what makes the stored rows those that the changes leave; ``changes`` have each key once.

    A row that would be replaced by an equal one stays: NULL equals NULL, NaN equals NaN, and -0.0 equals 0.0.
    """
    old = touched.by_key(changes.index.count)[changes.keys]
    deletes, is_stored = changes.deletes, old != ABSENT
    replaced = np.flatnonzero(~deletes & is_stored)
    compared = [name for name in touched.rows.column_names if name in changes.rows.column_names and name not in key]
    differs = _differ(
        changes.rows.select(compared).take(pa.array(replaced)),
        touched.rows.select(compared).take(pa.array(old[replaced])),
    )
    updated = replaced[differs]
    inserted, deleted = np.flatnonzero(~deletes & ~is_stored), np.flatnonzero(deletes & is_stored)
    return Corrections(np.sort(np.concatenate([inserted, updated])), np.sort(old[np.concatenate([deleted, updated])]))


def _differ(new: pa.Table, old: pa.Table) -> NDArray[np.bool_]:
    """Return for each pair of rows whether they differ."""
    found = np.zeros(new.num_rows, dtype=np.bool_)
    for name in new.column_names:
        found |= ~_equal(comparable(new.column(name)), comparable(old.column(name)))
    return found


def _equal(left: pa.ChunkedArray, right: pa.ChunkedArray) -> NDArray[np.bool_]:
    equal = pc.equal(left, right.cast(left.type))
    if pa.types.is_floating(left.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    return np.asarray(pc.or_(pc.fill_null(equal, fill_value=False), both_null))


def _join(arrays: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)
