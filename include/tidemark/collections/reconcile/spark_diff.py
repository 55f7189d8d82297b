"""The net difference between a source and a stored collection, as Spark data frames.

Every function takes numbered rows (see ``RowShape``): rows of the source under ``new_``, stored rows under ``old_``
with ``file`` (the path), ``pos`` and ``time``. A change is one row with a new side (to insert), an old side (to
retract), or both (a key whose row changed), and with ``file`` (the hash of the path), ``pos`` and ``inserts``. A
missing side is all NULL: ``file`` is NULL without an old side, ``inserts`` is False without a new side.
"""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.collections.digest.row_layout import NEW, OLD, RowShape
from tidemark.iceberg.reading.canonical import canonical

_WORD_BITS = 64


def bucket_set(wanted: NDArray[np.int64], bucket_count: int) -> Column:
    """Return the set of the ``wanted`` buckets of ``bucket_count`` as 64-bit words, one bit for each bucket.

    Nothing is sent to the executors but the words, which a plan holds as a constant: no join has to be planned.
    """
    bits = np.zeros(max(_WORD_BITS, bucket_count), dtype=np.uint8)
    bits[wanted] = 1
    words = np.packbits(bits, bitorder="little").view("<i8")
    return F.from_json(F.lit(json.dumps(words.tolist())), "array<bigint>")


def in_buckets(frame: DataFrame, shape: RowShape, prefix: str, bucket_count: int, wanted: Column) -> DataFrame:
    """Return the rows in the ``wanted`` buckets (see ``bucket_set``) of ``bucket_count``."""
    bucket = shape.bucket(prefix, bucket_count)
    word = F.get(wanted, F.shiftright(bucket, _WORD_BITS.bit_length() - 1).cast("int"))
    bit = F.call_function("shiftright", word, bucket.bitwiseAND(F.lit(_WORD_BITS - 1).cast("bigint")).cast("int"))
    return frame.where(bit.bitwiseAND(F.lit(1).cast("bigint")) == 1)


def candidates(desired: DataFrame, stored: DataFrame, shape: RowShape) -> DataFrame:
    """Return the union of the rows of both sides, for a comparison outside of Spark.

    Columns: numbers from ``"0"``, ``hash``, ``position``, and ``file``, ``pos``, ``time`` (NULL for rows of the
    source).
    """
    short = with_short_places(stored)
    nowhere = [F.lit(None).cast("bigint").alias(name) for name in ("file", "pos", "time")]
    sides = [
        frame.select(
            *(column.alias(str(n)) for n, column in enumerate(shape.columns(prefix))), *shape.hashes(prefix), *places
        )
        for frame, prefix, places in ((desired, NEW, nowhere), (short, OLD, ["file", "pos", "time"]))
    ]
    return sides[0].union(sides[1])


def keyed_changes(desired: DataFrame, stored: DataFrame, shape: RowShape) -> DataFrame:
    """Compare by key; right only if no key is NULL or occurs twice on one side."""
    keys = list(zip(shape.key_columns(NEW), shape.key_columns(OLD), strict=True))
    matches = [new == old for new, old in keys]  # plain equality: `<=>` keeps Spark from planning a hash join well
    joined = desired.join(with_short_places(stored), on=matches, how="full_outer")
    has_new, has_old = F.isnotnull(keys[0][0]), F.isnotnull("file")
    changed = joined.where(~has_new | ~has_old | shape.unequal())
    return changed.select(*shape.columns(NEW), *shape.columns(OLD), "file", "pos", has_new.alias("inserts"))


def multiset_changes(desired: DataFrame, stored: DataFrame, shape: RowShape) -> DataFrame:
    """Compare whole rows with their multiplicities; right for every input.

    Both sides number the copies of a row, and copy n of one side pairs with copy n of the other: a copy without a
    partner is inserted or retracted. The oldest stored copies get the lowest numbers, so they stay.
    """
    new = _numbered_copies(desired, shape, NEW, [])
    old = _numbered_copies(with_short_places(stored), shape, OLD, [F.col("time"), F.col("file"), F.col("pos")])
    names = ("hash", "position", "copy")
    matches = [F.col(f"{NEW}{name}") == F.col(f"{OLD}{name}") for name in names]
    joined = new.join(old, on=matches, how="full_outer")
    has_new = F.isnotnull(f"{NEW}copy")
    changed = joined.where(~has_new | F.isnull("file"))
    return changed.select(*shape.columns(NEW), *shape.columns(OLD), "file", "pos", has_new.alias("inserts"))


def differing_row_hashes(desired: DataFrame, stored: DataFrame, shape: RowShape) -> DataFrame:
    """Return the hash pairs (``hash``, ``position``) of rows whose multiplicity differs: the row-hash union.

    This shuffles 24 bytes a row instead of whole rows: the cheapest full comparison of two multisets.
    """
    sides = [
        frame.select(*shape.hashes(prefix), F.lit(diff).cast("bigint").alias("diff"))
        for frame, prefix, diff in ((desired, NEW, 1), (stored, OLD, -1))
    ]
    net = sides[0].union(sides[1]).groupBy("hash", "position").agg(F.sum("diff").alias("diff"))
    return net.where(F.col("diff") != 0).drop("diff")


def with_row_hashes(frame: DataFrame, shape: RowShape, prefix: str, hashes: DataFrame) -> DataFrame:
    """Return the rows whose hash pair is among ``hashes``."""
    hashed = frame.select("*", *shape.hashes(prefix))
    return hashed.join(hashes, on=["hash", "position"], how="left_semi").drop("hash", "position")


def first_by(desired: DataFrame, shape: RowShape, column: str) -> DataFrame:
    """Keep one row of each key, with the smallest ``column``, NULL last; the whole row breaks ties repeatably."""
    whole_row = [
        canonical(value, field.dataType).asc_nulls_last()
        for value, field in zip(shape.columns(NEW), shape.schema, strict=True)
    ]
    first = whole_row[shape.schema.names.index(column)]
    copies = Window.partitionBy(*shape.key_columns(NEW)).orderBy(first, *whole_row)
    return desired.withColumn("copy", F.row_number().over(copies)).where(F.col("copy") == 1).drop("copy")


def duplicate_keys(desired: DataFrame, shape: RowShape) -> DataFrame:
    """Return the keys that occur more than once (``new_…`` of the key columns) and their ``count``."""
    counted = desired.groupBy(*shape.key_columns(NEW)).agg(F.count(F.lit(1)).alias("count"))
    return counted.where(F.col("count") > 1)


def with_hashes(changes: DataFrame, shape: RowShape) -> DataFrame:
    """Add ``new_hash``, ``old_hash``, ``new_position`` and ``old_position``, from which digests are computed."""
    has_new, has_old = F.col("inserts"), F.isnotnull("file")
    return changes.select(
        "*",
        F.when(has_new, shape.hash(NEW)).alias("new_hash"),
        F.when(has_old, shape.hash(OLD)).alias("old_hash"),
        F.when(has_new, shape.position(NEW)).alias("new_position"),
        F.when(has_old, shape.position(OLD)).alias("old_position"),
    )


def with_short_places(stored: DataFrame) -> DataFrame:
    """Replace the path of a file by its hash: most paths are longer than a row, and costly to shuffle."""
    return stored.withColumn("file", F.xxhash64("file"))


def _numbered_copies(frame: DataFrame, shape: RowShape, prefix: str, order: list[Column]) -> DataFrame:
    hashed = frame.select("*", *shape.hashes(prefix, prefix))
    pair = [F.col(f"{prefix}hash"), F.col(f"{prefix}position")]
    copies = Window.partitionBy(*pair).orderBy(*(order or pair))
    return hashed.withColumn(f"{prefix}copy", F.row_number().over(copies))
