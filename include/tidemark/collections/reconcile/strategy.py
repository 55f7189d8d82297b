"""Decides from digests alone how to compare; pure functions, so that tests need no JVM.

Costs are in joined rows: only the points matter where one method becomes cheaper than another, and these points differ
little between machines.
"""

from __future__ import annotations

import math
from enum import StrEnum

COARSEST, FINEST = 1 << 12, 1 << 21  # bucket counts; more buckets cost more memory in every task than they save
LEAST_CHANGE_RATE = 1e-4
USUAL_CHANGE_RATE = 1e-3  # of a collection without corrections so far
LARGEST_CHANGE_RATE = 0.02  # to remember: a larger rate is an exception, not a habit
DRIVER_ROWS = 250_000  # corrections that the driver collects and writes without Spark
DRIVER_ROWS_AT_MOST = 5_000_000  # to collect in the unlikely case that every compared row changed
DRIVER_CANDIDATES = 5_000_000  # rows of both sides, changed or not, that the driver collects to compare
DRIVER_BYTES = 512 << 20
UNPACKED = 5  # times larger in memory than in a compressed file
# The cost of a digest for each hashed row, above the cost with 2^12 buckets; comparing the rows of a key in the driver
# costs 1. Measured at 5 M and 20 M rows with Spark's grouping: up to 2^18 groups fit into the caches of the processor,
# up to 2^20 into Spark's quick aggregation.
_COST_BY_BITS = {12: 0.0, 13: 0.002, 14: 0.005, 15: 0.01, 16: 0.02, 17: 0.025, 18: 0.04, 19: 0.07, 20: 0.11, 21: 0.22}
_FULL_FROM = 0.6  # from this share of the buckets on, comparing all rows is as cheap as filtering first
_FINER_FROM = 0.35  # from this share of the buckets on, a finer pass over the source pays
_ROWS_PER_BUCKET, _FEWEST_PER_BUCKET = 20, 8  # of a digest that is kept: usually, and where many rows change


class Method(StrEnum):
    """How the corrections were found; the word in a report's ``strategy``."""

    DIGEST = "digest"  # equal digests: no row was compared
    LOAD = "load"  # nothing is stored: every row is new
    BUCKETS = "differing-buckets"  # only rows of differing buckets were compared
    KEYED_JOIN = "keyed-join"  # all rows, joined by key
    CHANGED_FILES = "changed-files"  # only files of the source that came or went were read, and what they touch
    CHANGES = "changes"  # a program said which rows came and went
    ROW_HASH_UNION = "row-hash-union"  # the hashes of all rows, and then the rows whose hashes differ


def choose_method(*, differing: int, bucket_count: int, stored_rows: int, is_keyed: bool) -> Method:
    """Return the cheapest right method, when ``differing`` of ``bucket_count`` buckets differ."""
    if differing == 0:
        return Method.DIGEST
    if stored_rows == 0:
        return Method.LOAD
    if differing < _FULL_FROM * bucket_count:
        return Method.BUCKETS
    return Method.KEYED_JOIN if is_keyed else Method.ROW_HASH_UNION


def estimate_changes(differing: int, bucket_count: int) -> float:
    """Return the most likely number of changes, when ``differing`` buckets differ; infinite if all differ."""
    if differing >= bucket_count:
        return math.inf
    return -bucket_count * math.log1p(-differing / bucket_count)


def choose_bucket_count(*, rows: int, change_rate: float) -> int:
    """Return the bucket count with the lowest cost of hashing the source plus comparing the remaining rows.

    ``change_rate`` is the share of rows that recent runs corrected; 0 if no row was ever corrected.
    """
    changed = max(change_rate or USUAL_CHANGE_RATE, LEAST_CHANGE_RATE) * rows

    def cost(bits: int) -> float:
        return _COST_BY_BITS[bits] - math.expm1(-changed / (1 << bits))

    finest = _bucket_count(rows, _FEWEST_PER_BUCKET)
    return 1 << min((bits for bits in _COST_BY_BITS if 1 << bits <= finest), key=cost)


def kept_bucket_count(*, rows: int, change_rate: float) -> int:
    """Return the bucket count of the digest to keep: fine enough for the scans of the next run.

    A run whose source is hashed in more buckets than an older digest has leaves the finer digest for the next run.
    """
    return max(_bucket_count(rows, _ROWS_PER_BUCKET), choose_bucket_count(rows=rows, change_rate=change_rate))


def _bucket_count(rows: int, rows_per_bucket: int) -> int:
    return min(max(COARSEST, 1 << (rows // rows_per_bucket).bit_length()), FINEST)


def is_worth_filtering(*, differing: int, bucket_count: int) -> bool:
    """Say whether to compare the rows of the differing buckets, and not to hash the source in finer ones first."""
    return differing < _FINER_FROM * bucket_count


def needs_finer_look(*, differing: int, bucket_count: int, finest: int) -> bool:
    """Say whether to hash the source once more, in ``finest`` buckets, before rows are compared.

    Not if all buckets differ: then finer buckets might all differ, too.
    """
    return finest > bucket_count and _FINER_FROM * bucket_count <= differing < bucket_count


def blend_change_rate(before: float, *, changed: int, rows: int) -> float:
    """Return the change rate to remember after a run with corrections: the mean of the old rate and of this run."""
    now = min(LARGEST_CHANGE_RATE, changed / rows) if rows else 0.0
    return (before + now) / 2 if before else now


def candidates_fit_driver(rows: int, row_bytes: int, method: Method) -> bool:
    """Say whether the driver can compare ``rows`` that may have changed, which saves Spark a shuffle.

    A load saves none, and ``row_bytes`` of a collection without rows is only a guess.
    """
    most = DRIVER_ROWS if method is Method.LOAD else DRIVER_CANDIDATES
    return rows <= most and rows * row_bytes <= DRIVER_BYTES


def fits_driver(*, expected: float, at_most: int) -> bool:
    """Say whether the driver may collect so many changes; the bound ``at_most`` keeps the driver alive."""
    return at_most <= DRIVER_ROWS or (expected <= DRIVER_ROWS and at_most <= DRIVER_ROWS_AT_MOST)
