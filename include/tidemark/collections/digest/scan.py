"""Digests of data frames: one scan, an aggregation by bucket, and no shuffle of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.collections.digest.digest import LOW_HALF, Digest
from tidemark.collections.digest.row_layout import NO_BUCKET, RowShape


@dataclass(frozen=True, slots=True)
class Scanned:
    """The digest of the rows with a complete key, and the number of rows with a NULL in the key."""

    digest: Digest
    null_keys: int


def scan_digest(frame: DataFrame, shape: RowShape, prefix: str, bucket_count: int) -> Scanned:
    """Compute the digest of ``frame``, rows with the columns of ``shape`` under ``prefix`` (``new_`` or ``old_``).

    ``bucket_count`` is a power of two; one bucket only shows whether anything differs, at the cost of hashing.
    """
    if bucket_count == 1:
        return _scan_all(frame, shape, prefix)
    hashed = frame.select(shape.bucket(prefix, bucket_count).alias("bucket"), shape.hash(prefix).alias("hash"))
    found = hashed.groupBy("bucket").agg(F.count(F.lit(1)).alias("count"), *_sums(F.col("hash"))).toArrow()
    buckets, *sums = (found.column(name).to_numpy().astype(np.int64) for name in found.column_names)
    keyed = buckets != NO_BUCKET
    digest = Digest.empty(bucket_count)
    digest.sums[:, buckets[keyed]] = np.stack(sums)[:, keyed]
    return Scanned(digest, null_keys=int(sums[0][~keyed].sum()))


def _scan_all(frame: DataFrame, shape: RowShape, prefix: str) -> Scanned:
    """Compute a digest of one bucket: without grouping, as fast as hashing alone."""
    has_key = ~shape.has_null_key(prefix)
    hashed = frame.select(F.when(has_key, shape.hash(prefix)).alias("hash"), has_key.alias("has_key"))
    totals = hashed.agg(F.count(F.lit(1)), F.count_if("has_key"), *_sums(F.col("hash"))).collect()[0]
    rows, keyed, high, low = (total or 0 for total in totals)
    return Scanned(Digest(np.array([[keyed], [high], [low]], dtype=np.int64)), null_keys=rows - keyed)


def _sums(value: Column) -> list[Column]:
    """Sum the halves of 64-bit hashes: a sum of whole hashes overflows, which is an error in ANSI mode."""
    low = value.bitwiseAND(F.lit(LOW_HALF).cast("bigint"))
    return [F.sum(F.shiftright(value, 32)).alias("high"), F.sum(low).alias("low")]
