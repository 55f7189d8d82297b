"""How to compare, decided from digests alone: pure, and therefore tested without a JVM.

The costs are counted in rows that take part in a join: what matters is where one way becomes cheaper than another,
and that moves little from one machine to the next.
"""

from __future__ import annotations

import math
from enum import StrEnum

COARSEST, FINEST = 1 << 12, 1 << 20  # bucket counts; finer ones cost more memory in every task than they save
LEAST_CHANGE_RATE = 1e-4
USUAL_CHANGE_RATE = 1e-3  # of a collection that was never corrected yet
LARGEST_CHANGE_RATE = 0.02  # to be remembered: more is an event, not a habit
DRIVER_ROWS = 250_000  # corrections that are collected and written without Spark
DRIVER_ROWS_AT_MOST = 5_000_000  # what could be collected if every compared row had changed, against all odds
DRIVER_CANDIDATES = 2_500_000  # rows, changed or not, that are collected from both sides to be compared
DRIVER_BYTES = 256 << 20
# What a digest costs for each row hashed, above one of 2^12 buckets; 1 is a key to be joined. Measured at 5 M and 20 M
# rows: up to 2^18 groups stay in the caches, above that each one is a miss.
_COST_BY_BITS = {12: 0.0, 13: 0.005, 14: 0.015, 15: 0.03, 16: 0.05, 17: 0.07, 18: 0.11, 19: 0.21, 20: 0.33}
_FULL_FROM = 0.6  # share of the buckets from which on comparing everything is as cheap as filtering first
_FINER_FROM = 0.35  # share of the buckets from which on another, finer pass over the source costs less than it saves
_ROWS_PER_BUCKET = 20  # of a digest that is kept


class Method(StrEnum):
    """How the corrections were found; the word in a report's ``strategy``."""

    DIGEST = "digest"  # equal digests: no row was compared
    LOAD = "load"  # nothing is stored: every row is new
    BUCKETS = "differing-buckets"  # only rows of differing buckets were compared
    KEYED_JOIN = "keyed-join"  # all rows, joined by key
    ROW_HASH_UNION = "row-hash-union"  # all rows, by their hashes; those that differ once more as a whole


def choose_method(*, differing: int, bucket_count: int, stored_rows: int, is_keyed: bool) -> Method:
    """Return the cheapest right way to compare, given in how many of ``bucket_count`` buckets the digests differ."""
    if differing == 0:
        return Method.DIGEST
    if stored_rows == 0:
        return Method.LOAD
    if differing < _FULL_FROM * bucket_count:
        return Method.BUCKETS
    return Method.KEYED_JOIN if is_keyed else Method.ROW_HASH_UNION


def estimate_changes(differing: int, bucket_count: int) -> float:
    """Return how many changed keys most likely hit ``differing`` of ``bucket_count`` buckets; infinite if all."""
    if differing >= bucket_count:
        return math.inf
    return -bucket_count * math.log1p(-differing / bucket_count)


def choose_bucket_count(*, rows: int, change_rate: float) -> int:
    """Return the resolution at which hashing the source and comparing what that leaves over are together cheapest.

    Args:
        rows: How many rows the collection has, about.
        change_rate: The share of rows that recent runs corrected; 0 if none ever was.
    """
    changed = max(change_rate or USUAL_CHANGE_RATE, LEAST_CHANGE_RATE) * rows

    def cost(bits: int) -> float:
        return _COST_BY_BITS[bits] - math.expm1(-changed / (1 << bits))

    comparable = kept_bucket_count(rows)  # a finer look than that at the stored rows tells nothing more
    return 1 << min((bits for bits in _COST_BY_BITS if 1 << bits <= comparable), key=cost)


def kept_bucket_count(rows: int) -> int:
    """Return the resolution of the digest that is kept: fine enough for a second look, whatever the first one was."""
    wanted = max(1, rows // _ROWS_PER_BUCKET)
    return min(max(COARSEST, 1 << wanted.bit_length()), FINEST)


def needs_finer_look(*, differing: int, bucket_count: int, finest: int) -> bool:
    """Return whether to hash the source once more, in ``finest`` buckets, before rows are compared.

    Not if all buckets differ: then there is no telling that finer ones would not.
    """
    return finest > bucket_count and _FINER_FROM * bucket_count <= differing < bucket_count


def blend_change_rate(before: float, *, changed: int, rows: int) -> float:
    """Return the change rate to remember after a run that corrected something: half of it is that run."""
    now = min(LARGEST_CHANGE_RATE, changed / rows) if rows else 0.0
    return (before + now) / 2 if before else now


def candidates_fit_driver(rows: int, row_bytes: int) -> bool:
    """Return whether ``rows`` that may have changed can be compared in the driver, which spares Spark a shuffle."""
    return rows <= DRIVER_CANDIDATES and rows * row_bytes <= DRIVER_BYTES


def fits_driver(*, expected: float, at_most: int) -> bool:
    """Return whether so many changes may be collected: what is expected decides, the bound keeps the driver alive."""
    return at_most <= DRIVER_ROWS or (expected <= DRIVER_ROWS and at_most <= DRIVER_ROWS_AT_MOST)
