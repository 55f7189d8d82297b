"""What the driver makes of the rows that may differ; no JVM."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructField, StructType

from tidemark.collections.digest.row_layout import RowShape
from tidemark.collections.reconcile.driver_corrections import compare_candidates

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    Row = tuple[int, int]  # its position, and a value

FIELDS = StructType([StructField("k", LongType()), StructField("v", LongType())])
MULTISET = RowShape(FIELDS)
# Few values, so that there are equal rows, and positions that agree in the low bits, in the high bits, or nowhere.
POSITIONS = st.sampled_from([0, 1, 1 << 20, (1 << 20) + 1, 1 << 62, -1, -(1 << 63)])
ROWS = st.lists(st.tuples(POSITIONS, st.integers(0, 3)), max_size=12)


def hash_row(row: Row) -> int:
    """Return 64 bits as mixed as Spark's: the sum of Python's hashes of a few tuples may well be that of others."""
    return int.from_bytes(blake2b(repr(row).encode(), digest_size=8).digest(), "big", signed=True)


def candidates(new: Sequence[Row], old: Sequence[Row]) -> pa.Table:
    """Return a table as Spark makes it; the youngest of the old rows comes first."""
    rows = np.array([*new, *old], dtype=np.int64).reshape(-1, 2)
    places = np.arange(len(old), dtype=np.int64)
    nowhere = pa.nulls(len(new), pa.int64())
    hashes = np.array([hash_row(row) for row in [*new, *old]], dtype=np.int64)
    columns = {"0": rows[:, 0], "1": rows[:, 1], "hash": hashes, "position": rows[:, 0]}
    found = {"file": places, "pos": places, "time": places[::-1]}
    return pa.table({**columns, **{name: pa.chunked_array([nowhere, pa.array(each)]) for name, each in found.items()}})


@given(new=ROWS, old=ROWS)
def test_corrections_are_the_difference_of_both_multisets(new: list[Row], old: list[Row]) -> None:
    found = compare_candidates(candidates(new, old), MULTISET)
    inserted, retracted = (
        Counter(zip(side.column("0").to_pylist(), side.column("1").to_pylist(), strict=True))
        for side in (found.new, found.old)
    )
    assert (inserted, retracted) == (Counter(new) - Counter(old), Counter(old) - Counter(new))


def test_the_youngest_of_equal_stored_rows_are_retracted() -> None:
    found = compare_candidates(candidates([(5, 7)], [(5, 7), (5, 7), (5, 7)]), MULTISET)
    assert sorted(found.old.column("pos").to_pylist()) == [0, 1]


def test_rows_that_both_sides_have_are_not_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_rows = []
    lexsort = np.lexsort
    monkeypatch.setattr(np, "lexsort", lambda keys: (sorted_rows.append(len(keys[0])), lexsort(keys))[1])
    rows = np.random.default_rng(1).integers(-(2**63), 2**63, (20_000, 2)).tolist()
    changed = [(position, hashed ^ 1) for position, hashed in rows[:100]]
    found = compare_candidates(candidates([*changed, *rows[100:]], rows[::-1]), MULTISET)
    assert (found.inserted, found.retracted) == (100, 100)
    assert sum(sorted_rows) < 1000
