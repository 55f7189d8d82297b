"""Finds out which of some rows went, by the sums of the hashes of those that went.

Where a bucket lost a few rows, or kept a few, one choice of rows has the right sum of 64-bit hashes; so few choices are
tried that another one hardly has it, too.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from tidemark.collections.digest.digest import Digest

MOST_ROWS = 100_000  # of a bucket, of which one or two went
MOST_CHOICES = 100_000  # of half of the rows that went
_MOST_WORK = 20_000_000  # choices in all buckets together: some seconds
_SAME = 8  # choices with one sum that are looked at: copies of a row have one hash


def settle(
    lost: Digest, positions: NDArray[np.int64], hashes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], list[int]]:
    """Return which rows went, and the buckets for which that is not known.

    ``lost`` is the digest of the rows that went, all of which are among the rows of ``positions`` and ``hashes``.
    """
    buckets = positions & (lost.bucket_count - 1)
    order = np.argsort(buckets, kind="stable")
    wanted = np.flatnonzero((lost.sums != 0).any(axis=0))
    starts, ends = (np.searchsorted(buckets[order], wanted, side) for side in ("left", "right"))
    unsigned = hashes.view(np.uint64)
    gone, unsettled, work = [np.zeros(0, dtype=np.int64)], list[int](), 0
    for bucket, start, end in zip(wanted.tolist(), starts, ends, strict=True):
        rows = order[start:end]
        count, high, low = (int(each) for each in lost.sums[:, bucket])
        target = ((high << 32) + low) % (1 << 64)
        work += _count_choices(len(rows), count)
        found = None if work > _MOST_WORK else choose(unsigned[rows], count, target)
        if found is None:
            unsettled.append(bucket)
        else:
            gone.append(rows[found])
    return np.concatenate(gone), unsettled


def choose(hashes: NDArray[np.uint64], count: int, target: int) -> NDArray[np.intp] | None:
    """Return ``count`` places whose hashes have the sum ``target`` modulo 2^64; None if they are not found."""
    size, everything = len(hashes), np.arange(len(hashes))
    if not 0 <= count <= size:
        return None
    if count > size - count:  # fewer stay than go
        stays = choose(hashes, size - count, (_total(hashes) - target) % (1 << 64))
        return None if stays is None else np.delete(everything, stays)
    if count == 0:
        return everything[:0] if target == 0 else None
    if _count_choices(size, count) > (MOST_ROWS if count <= 2 else MOST_CHOICES):  # noqa: PLR2004 - one or two rows
        return None
    return _meet(hashes, count, target)


def _count_choices(size: int, count: int) -> int:
    fewer = min(count, size - count)
    return 1 if fewer <= 0 else comb(size, (fewer + 1) // 2)


def _meet(hashes: NDArray[np.uint64], count: int, target: int) -> NDArray[np.intp] | None:
    """Meet in the middle: choose the smaller half of the rows, and look for the rest among all larger halves."""
    if count == 1:
        found = np.flatnonzero(hashes == np.uint64(target))
        return found[:1] if len(found) else None
    larger = _choices(len(hashes), (count + 1) // 2)
    smaller = larger if count % 2 == 0 else _choices(len(hashes), count // 2)
    sums = hashes[larger].sum(axis=1, dtype=np.uint64)
    order = np.argsort(sums, kind="stable")
    rest = np.uint64(target) - hashes[smaller].sum(axis=1, dtype=np.uint64)
    starts, ends = (np.searchsorted(sums[order], rest, side) for side in ("left", "right"))
    for number in np.flatnonzero(ends > starts):
        for place in order[starts[number] : min(ends[number], starts[number] + _SAME)]:
            chosen = np.unique(np.concatenate([smaller[number], larger[place]]))
            if len(chosen) == count:
                return chosen
    return None


def _choices(size: int, count: int) -> NDArray[np.intp]:
    """Return all choices of ``count`` of so many places, one in each row."""
    if count == 1:
        return np.arange(size)[:, None]
    if count == 2:  # noqa: PLR2004 - the usual case, at once
        return np.stack(np.triu_indices(size, 1), axis=1)
    return np.array(list(combinations(range(size), count)), dtype=np.intp)


def _total(hashes: NDArray[np.uint64]) -> int:
    return int(hashes.sum(dtype=np.uint64))
