"""Digests of data frames: one scan, whose hashes the driver or Spark adds up by bucket, and no shuffle of rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no annotations
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.collections.digest.digest import LOW_HALF, Digest
from tidemark.collections.digest.driver_room import DRIVER_ROOM
from tidemark.collections.digest.file_digests import choose_file_buckets
from tidemark.collections.digest.row_layout import NO_BUCKET, RowShape

log = logging.getLogger(__name__)

DRIVER_HASHES = 25_000_000  # rows whose hashes the driver adds up
_HASH_BYTES = 16  # of the driver's memory for each row: a bucket and a hash, and what Arrow adds
_FILE_BYTES = 16  # the same for the number of the file, and a value
_GROWTH, _FEW_ROWS = 1.25, 10_000  # the driver takes so many times the expected rows, and so many more
_UNEVEN = 2  # times as many rows as their bytes say may lie in some files
_RESULT_LIMIT = "spark.driver.maxResultSize"  # a source many times as large as expected exceeds that before ours
ROW_BITS = 33  # of Spark's row numbers; the partition is above
FILE = "_tidemark_file"  # the number of the file of a row, an int; no column of a user
VALUE = "_tidemark_value"  # a bigint


@dataclass(slots=True)
class FileScan:
    """The rows of one file that have a complete key: their digest, and their smallest and largest ``VALUE``."""

    digest: Digest
    low: int | None = None
    high: int | None = None
    is_bounded: bool = True  # whether each row has a value

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The smallest and the largest value; None if there is no row, or a row without a value."""
        is_known = self.is_bounded and self.low is not None and self.high is not None
        return (self.low, self.high) if is_known else None  # type: ignore[return-value]  # mypy sees no way from is_known

    def include(self, rows: pa.RecordBatch, position: str) -> None:
        """Add rows with ``hash`` and ``VALUE``; the column ``position`` decides their buckets."""
        self.digest.include(rows.column(position).to_numpy(), rows.column("hash").to_numpy())
        values = rows.column(VALUE)
        self.is_bounded &= not values.null_count
        if values.null_count < len(values):
            found = pc.min_max(values).as_py()
            self.low = found["min"] if self.low is None else min(self.low, found["min"])
            self.high = found["max"] if self.high is None else max(self.high, found["max"])


@dataclass(frozen=True, slots=True)
class Scanned:
    """The digest of the rows with a complete key, and the number of rows with a NULL in the key.

    ``by_file`` has the digest of each file with rows, if it was asked for, and the way to the result allows it.
    """

    digest: Digest
    null_keys: int
    by_file: dict[int, FileScan] | None = None

    def __add__(self, other: Scanned) -> Scanned:
        """Return what is known of the rows of both; they are in different files, and both in as many buckets."""
        is_known = self.by_file is not None and other.by_file is not None
        by_file = {**(self.by_file or {}), **(other.by_file or {})} if is_known else None
        return Scanned(self.digest + other.digest, self.null_keys + other.null_keys, by_file)


def scan_files(
    frame: DataFrame, shape: RowShape, prefix: str, bucket_count: int, *, expected_rows: int, sizes: Mapping[int, int]
) -> Scanned:
    """Compute the digest of ``frame``, and that of each file; the rows also have the columns ``FILE`` and ``VALUE``.

    ``sizes`` are those of the files in bytes, by number. Of more rows than the driver takes, some files are read after
    the others: a look at the rows of some files reads no other file.
    """
    file_buckets = choose_file_buckets(rows=expected_rows, files=len(sizes))
    if bucket_count == 1 or file_buckets is None:
        return scan_digest(frame, shape, prefix, bucket_count, expected_rows=expected_rows)
    groups = [frame]
    if expected_rows > DRIVER_HASHES:
        listed = _group_files(sizes, sum(sizes.values()) * DRIVER_HASHES // (_UNEVEN * expected_rows))
        groups = [frame.where(f"{FILE} IN ({', '.join(map(str, numbers))})") for numbers in listed]
        expected_rows = DRIVER_HASHES
    scans = (
        scan_digest(group, shape, prefix, bucket_count, expected_rows=expected_rows, file_buckets=file_buckets)
        for group in groups
    )
    return reduce(Scanned.__add__, scans)


def _group_files(sizes: Mapping[int, int], most: int) -> Iterator[list[int]]:
    """Yield the numbers of files that have at most so many bytes together, or of one larger file."""
    group, total = list[int](), 0
    for number, size in sizes.items():
        if group and total + size > most:
            yield group
            group, total = [], 0
        group.append(number)
        total += size
    if group:
        yield group


def scan_digest(
    frame: DataFrame, shape: RowShape, prefix: str, bucket_count: int, *, expected_rows: int = 0, file_buckets: int = 0
) -> Scanned:
    """Compute the digest of ``frame``, rows with the columns of ``shape`` under ``prefix`` (``new_`` or ``old_``).

    ``bucket_count`` is a power of two; one bucket only shows whether anything differs, at the cost of hashing.
    ``expected_rows`` is a guess, 0 without one, that chooses between two ways to one result.
    With ``file_buckets``, a power of two not above ``bucket_count``, the rows also have the columns ``FILE`` and
    ``VALUE``, and each file gets a digest of so many buckets.
    """
    if bucket_count == 1:
        return _scan_all(frame, shape, prefix)
    if 0 < expected_rows <= DRIVER_HASHES:
        limit = int(_GROWTH * expected_rows) + _FEW_ROWS
        with DRIVER_ROOM.taking((_HASH_BYTES + (_FILE_BYTES if file_buckets else 0)) * limit):
            scanned = _scan_in_driver(frame, shape, prefix, bucket_count, limit=limit, file_buckets=file_buckets)
        if scanned is not None:
            return scanned
    hashed = frame.select(shape.bucket(prefix, bucket_count).alias("bucket"), shape.hash(prefix).alias("hash"))
    found = hashed.groupBy("bucket").agg(F.count(F.lit(1)).alias("count"), *_sums(F.col("hash"))).toArrow()
    buckets, *sums = (found.column(name).to_numpy().astype(np.int64) for name in found.column_names)
    keyed = buckets != NO_BUCKET
    digest = Digest.empty(bucket_count)
    digest.sums[:, buckets[keyed]] = np.stack(sums)[:, keyed]
    return Scanned(digest, null_keys=int(sums[0][~keyed].sum()))


def _scan_in_driver(
    frame: DataFrame, shape: RowShape, prefix: str, bucket_count: int, *, limit: int, file_buckets: int = 0
) -> Scanned | None:
    """Let the driver add up the hashes of all rows; None if there are too many rows.

    Spark's grouping takes twice the CPU time, and more with every bucket.
    """
    try:
        also = [FILE, VALUE] if file_buckets else []
        found = _collect_hashes(frame, shape, prefix, bucket_count, limit=limit, also=also)
    except (PySparkException, Py4JJavaError) as error:
        if _RESULT_LIMIT not in str(error):
            raise
        log.info("the rows are many more than expected: Spark's limit for results is reached")
        return None
    if found.column("hash").null_count:
        return None
    digest, null_keys = Digest.empty(bucket_count), 0
    files: dict[int, FileScan] = {}
    for batch in found.to_batches():  # one by one: together the intermediate values would take more than the rows
        buckets, hashes = (column.to_numpy() for column in batch.columns[:2])
        keyed = buckets != NO_BUCKET
        digest.include(buckets[keyed], hashes[keyed])
        null_keys += int((~keyed).sum())
        if file_buckets:
            include_by_file(files, batch.filter(pa.array(keyed)), "bucket", file_buckets)
    return Scanned(digest, null_keys=null_keys, by_file=files if file_buckets else None)


def include_by_file(files: dict[int, FileScan], rows: pa.RecordBatch, position: str, bucket_count: int) -> None:
    """Add rows with ``hash``, ``FILE`` and ``VALUE`` to what is known of their files."""
    if not len(rows):
        return
    numbers = rows.column(FILE).to_numpy()
    is_one = numbers.min() == numbers.max()  # which is quicker to find out than to sort
    for number in numbers[:1].tolist() if is_one else np.unique(numbers).tolist():
        found = files.setdefault(number, FileScan(Digest.empty(bucket_count)))
        found.include(rows if is_one else rows.filter(pa.array(numbers == number)), position)


def _collect_hashes(
    frame: DataFrame, shape: RowShape, prefix: str, bucket_count: int, *, limit: int, also: Sequence[str] = ()
) -> pa.Table:
    """Return ``bucket`` and ``hash`` of every row, but of partition n (from 0) ``limit / (n + 1)`` rows at most.

    That is enough for rows that are spread evenly, however many the partitions, whose number is not known before Spark
    runs. Where a partition has more rows, one with NULL for its hash tells so.
    """
    number = F.col("number")
    rank = F.shiftright(number, ROW_BITS) + 1
    taken = number.bitwiseAND(F.lit((1 << ROW_BITS) - 1).cast("bigint")) * rank
    hashed = frame.select(
        shape.bucket(prefix, bucket_count).cast("int").alias("bucket"),
        shape.hash(prefix).alias("hash"),
        F.monotonically_increasing_id().alias("number"),
        *also,
    )
    few = hashed.where(taken < F.lit(limit) + rank)
    return few.select("bucket", F.when(taken < F.lit(limit), F.col("hash")).alias("hash"), *also).toArrow()


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
