"""Row hashes and digest buckets as Spark columns: exact about NULLs, nested values, -0.0 and NaN.

Two rows have the same hash when Spark's grouping calls them equal: NULL equals NULL, ``-0.0`` equals ``0.0``, NaN
equals NaN, and the order of a map's entries does not matter. ``xxhash64`` alone is not enough: it skips NULLs, so that
``(NULL, 'a')`` and ``('a', NULL)`` collide, it does not see where a nested array ends, and it refuses maps.

Whoever changes hashes raises ``HASH_VERSION`` in ``digest.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from tidemark.iceberg.reading.canonical import canonical, has_map

_BITS_PER_WORD = 63  # of a NULL bitmap; the sign bit stays unused, so that no literal is negative


def canonical_row(schema: StructType, columns: Sequence[Column]) -> list[Column]:
    """Return what to hash of a whole row; of a key without NULLs, ``canonical`` values alone are enough."""
    values = [canonical(column, field.dataType) for column, field in zip(columns, schema.fields, strict=True)]
    return [*_null_bitmap(columns), *values]


def same(left: Column, right: Column, data_type: DataType) -> Column:
    """Return whether two values are equal, NULLs included; agrees with the hashes."""
    if has_map(data_type):
        left, right = canonical(left, data_type), canonical(right, data_type)
    return left.eqNullSafe(right)


def _null_bitmap(columns: Sequence[Column]) -> list[Column]:
    words = []
    for start in range(0, len(columns), _BITS_PER_WORD):
        word = F.lit(0).cast("bigint")
        for bit, column in enumerate(columns[start : start + _BITS_PER_WORD]):
            word = word.bitwiseOR(
                F.when(F.isnull(column), F.lit(1 << bit).cast("bigint")).otherwise(F.lit(0).cast("bigint"))
            )
        words.append(word)
    return words
