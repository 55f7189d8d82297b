from __future__ import annotations

import sqlite3

import pytest

from tidemark.catalog.migration.stash_rows import key_ranges


@pytest.mark.parametrize("partitions", [1, 2, 5])
@pytest.mark.parametrize("keys", [[], ["a"], ["a", "b", "it's", 'q"', "z"] * 3])
def test_every_key_meets_exactly_one_range(keys: list[str], partitions: int) -> None:
    ranges = key_ranges(keys, partitions)
    assert 1 <= len(ranges) <= partitions
    connection = sqlite3.connect(":memory:")
    for key in [*keys, "", "Z", "~", "b'"]:
        met = [connection.execute(f"SELECT {each} FROM (SELECT ? AS key)", [key]).fetchone()[0] for each in ranges]
        assert sum(met) == 1
    connection.close()
