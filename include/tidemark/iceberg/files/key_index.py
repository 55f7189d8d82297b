"""Keys by number: finds the keys of an index among many rows, a column at a time; no two keys are taken for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

ABSENT = -1


@dataclass(frozen=True, slots=True)
class _Step:
    """One column of the key: its values, and the pairs (number of the columns before, place of the value) there are."""

    column: str
    values: pa.Array
    pairs: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """The distinct keys of some rows, numbered from 0. Keys have no NULL; NaN equals NaN, and -0.0 equals 0.0."""

    steps: tuple[_Step, ...]
    count: int

    @classmethod
    def of(cls, rows: pa.Table, key: Sequence[str]) -> tuple[KeyIndex, NDArray[np.int64]]:
        """Return the index of the keys of ``rows``, and the number of each row's key."""
        numbers = np.zeros(rows.num_rows, dtype=np.int64)
        steps = []
        count = 1
        for name in key:
            column = _normal(rows.column(name))
            values = column.unique()
            pairs = numbers * len(values) + _places(column, values)
            found, inverse = np.unique(pairs, return_inverse=True)
            numbers, count = inverse.astype(np.int64), len(found)
            steps.append(_Step(name, values, found))
        return cls(tuple(steps), count), numbers

    def find(self, rows: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the places of those ``rows`` whose key is in the index, ascending, and the numbers of their keys."""
        at = np.arange(rows.num_rows, dtype=np.int64)
        numbers = np.zeros(rows.num_rows, dtype=np.int64)
        for step in self.steps:
            column = _normal(rows.column(step.column))
            if len(at) < len(column):
                column = column.take(pa.array(at))
            places = _places(column, step.values)
            known = np.flatnonzero(places != ABSENT)
            at = at[known]
            pairs = numbers[known] * len(step.values) + places[known]
            nearest = np.minimum(np.searchsorted(step.pairs, pairs), max(len(step.pairs) - 1, 0))
            exists = step.pairs[nearest] == pairs if len(step.pairs) else np.zeros(len(pairs), dtype=np.bool_)
            at, numbers = at[exists], nearest[exists]
        return at, numbers


def _places(column: pa.ChunkedArray, values: pa.Array) -> NDArray[np.int64]:
    found = pc.fill_null(pc.index_in(column, value_set=values), ABSENT)
    return np.asarray(found.to_numpy(), dtype=np.int64)


def _normal(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.add(column, pa.scalar(0.0, column.type)) if pa.types.is_floating(column.type) else column
