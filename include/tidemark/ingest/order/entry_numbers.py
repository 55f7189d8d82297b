"""What `_entry` is made of: the number of an entry and, above it, the turn of its log.

So the entries of a log that is made anew, whose numbers begin at 0, are greater than all those of the log before it.
Without anything that Spark's tasks do without.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

NUMBER_BITS: Final = 48  # of `_entry`, for the number
NUMBERS: Final = (1 << NUMBER_BITS) - 1  # these bits


def as_entry(number: int, turn: int) -> int:
    """Return the `_entry` of a number of a log that has that turn; of turn 0 it is the number itself."""
    return (turn << NUMBER_BITS) + number


def as_entries(numbers: pa.Array | pa.ChunkedArray, turn: int) -> pa.Array | pa.ChunkedArray:
    """Return the same of many numbers."""
    return pc.add(numbers, pa.scalar(as_entry(0, turn), pa.int64())) if turn else numbers


def numbers_of(entries: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the numbers that values of `_entry` are of; NULL of NULL."""
    return pc.bit_wise_and(entries, pa.scalar(NUMBERS, pa.int64()))
