"""The stored side of one run: Tidemark's last snapshot, its rows with their places, and its digest if one is kept."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StructType, TimestampNTZType

from tidemark.collections.digest.digest import Digest, DigestNote, digest_from_bytes, digest_to_bytes
from tidemark.collections.digest.file_digests import FileDigests
from tidemark.collections.digest.row_layout import OLD, RowShape
from tidemark.collections.digest.scan import scan_digest
from tidemark.collections.reconcile.strategy import UNPACKED, blend_change_rate, choose_bucket_count, kept_bucket_count
from tidemark.collections.schema.convert import from_iceberg, spark_schema
from tidemark.errors import CorruptState
from tidemark.iceberg.files.manifests import read_data_files
from tidemark.iceberg.reading.spark import FILE, POSITION, pinned
from tidemark.iceberg.shard.column_names import TIME
from tidemark.iceberg.shard.digest_file import BLOB_TYPE, PARTS_TYPE, read_digest
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.layout import SYSTEM_COLUMNS
from tidemark.iceberg.shard.shard import Shard
from tidemark.interval import Interval, time_text
from tidemark.spark.quoting import quoted

T = TypeVar("T")

log = logging.getLogger(__name__)

UNKNOWN_SIZE_BUCKETS = 1 << 18  # for a first load; folded once the rows are counted
_ANOTHER = "it is of another version, or of another key or other columns"
_LEAST_ROW_BYTES = 64
_FOOTER_BYTES, _FOOTER_COLUMN_BYTES = 1000, 200  # of a file, roughly


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """The snapshot of the collection before the run."""

    spark: SparkSession
    shard: Shard
    head: ShardHead  # holds the snapshot; commits are made against this head
    shape: RowShape
    trusts_digest: bool = True  # otherwise the kept digest is as good as none

    @property
    def upper(self) -> int:
        """The upper as a time: a shard that a writer could join is never EMPTY."""
        return int(str(self.head.state.upper))

    @cached_property
    def digest(self) -> Digest | None:
        """The digest of the snapshot, if a usable digest is kept; an empty snapshot needs no stored digest."""
        if self.head.is_empty:
            return Digest.empty(UNKNOWN_SIZE_BUCKETS)
        return self._kept(BLOB_TYPE, digest_from_bytes, "the digest of %s is scanned anew: %s")

    @cached_property
    def file_digests(self) -> FileDigests | None:
        """The digests of the files that the rows were made from, if they are kept."""
        return self._kept(PARTS_TYPE, FileDigests.from_bytes, "the digests of the files of %s are made anew: %s")

    def _kept(self, blob_type: str, parse: Callable[[bytes, str], T | None], warning: str) -> T | None:
        """Return what is kept, if it is usable. It is only a short-cut: a damaged one must not stop the run."""
        blob = read_digest(self.head, blob_type) if self.trusts_digest else None
        if blob is None:
            return None
        try:
            found, reason = parse(blob, self.shape.layout), _ANOTHER
        except CorruptState as error:
            found, reason = None, str(error)
        if found is None:
            log.warning(warning, ".".join(self.head.table.name()), reason)
        return found

    def scanned_digest(self) -> Digest:
        """Return the digest of the snapshot; without a usable one, scan the rows."""
        return self.digest or scan_digest(self.read(), self.shape, OLD, self.missing_bucket_count).digest

    def wrong_buckets(self) -> int:
        """Return in how many buckets the kept digest is not that of the rows; none without a usable digest."""
        if (kept := self.digest) is None:
            return 0
        return len(kept.differing(scan_digest(self.read(), self.shape, OLD, kept.bucket_count).digest))

    def bucket_counts(self, source: str, *, expects_nothing: bool) -> tuple[int, ...]:
        """Return the bucket counts for scans of the source, one after the other as long as the digests differ.

        ``source`` is the name of its present state, or empty. One bucket is the quickest first scan when the run
        will most likely find nothing to correct, as the name says or the caller ``expects``; otherwise that scan would
        be in vain.
        """
        if self.head.is_empty:
            return (UNKNOWN_SIZE_BUCKETS,)
        closer = choose_bucket_count(rows=self.head.row_count, change_rate=self.note.change_rate)
        return (1, closer) if expects_nothing or self.note.expects_nothing(source) else (closer,)

    @property
    def missing_bucket_count(self) -> int:
        """The bucket count for a scan of the stored rows, if no digest of them is kept."""
        return kept_bucket_count(rows=self.head.row_count, change_rate=self.note.change_rate)

    @property
    def row_bytes(self) -> int:
        """The memory that a row takes, roughly: the footers of many small files may be more than their rows."""
        footers = self.head.file_count * (_FOOTER_BYTES + _FOOTER_COLUMN_BYTES * self.shape.width)
        return max(_LEAST_ROW_BYTES, UNPACKED * (self.head.size_bytes - footers) // max(1, self.head.row_count))

    def digest_to_keep(
        self, digest: Digest | None, *, changed: int, source: str, compared_ms: int, mark: str, keeps_file: bool
    ) -> tuple[str, bytes | None]:
        """Return the note for the next run, and the digest to keep; None if the stored digest stays right.

        ``digest`` covers the rows after the run; None if unknown, and then no digest is kept. ``changed`` rows were
        corrected; ``keeps_file`` if neither the rows of the snapshot change, nor what is kept beside the digest.
        ``source`` is the name of the state of the source that the rows equal after the run, all of them compared at
        ``compared_ms``; empty without one. ``mark`` says from where the next run can follow the changes of a table.
        """
        if digest is None:
            return "", None
        rate = self.note.change_rate
        is_quiet = self.head.is_empty or not changed  # a first load says nothing about later runs
        if not is_quiet:
            rate = blend_change_rate(rate, changed=changed, rows=digest.row_count)
        buckets = kept_bucket_count(rows=digest.row_count, change_rate=rate)
        note = str(DigestNote(buckets, rate, is_quiet=is_quiet, source=source, compared_ms=compared_ms, mark=mark))
        folded = digest.fold(min(digest.bucket_count, buckets))
        kept = None if self.head.is_empty else self.digest
        if keeps_file and kept is not None and kept.bucket_count == folded.bucket_count:
            return note, None
        return note, digest_to_bytes(folded, self.shape.layout)

    def read(self, condition: Column | None = None) -> DataFrame:
        """Return the rows of the snapshot that meet ``condition``, numbered.

        Further columns: ``file``, ``pos``, and ``time``, at which the row appeared.
        """
        rows = pinned(self.spark, self.shard, self.head)
        chosen = rows if condition is None else rows.where(condition)
        places = [F.col(FILE).alias("file"), F.col(POSITION).alias("pos"), F.col(TIME).alias("time")]
        return self.shape.number(chosen, OLD, *places)

    @cached_property
    def data_files(self) -> dict[str, DataFile]:
        """The snapshot's data files by path."""
        return read_data_files(self.head.table.io, self.head.contents)

    def file_names(self) -> pa.Table:
        """Return the data files as ``file`` (the hash of the path) and ``_file`` (the path).

        Raises ``CorruptState`` if two paths have one hash; rewriting the files gives them other names.
        """
        paths = pa.table({FILE: pa.array(list(self.data_files), pa.string())})
        names = self.spark.createDataFrame(paths).select(F.xxhash64(FILE).alias("file"), FILE).toArrow()
        if len(names.column("file").unique()) < len(self.data_files):
            raise CorruptState("two data files cannot be told apart by the hash of their paths", hint="compact it")
        return names

    @property
    def note(self) -> DigestNote:
        """What the last run left."""
        return DigestNote.parse(self.head.state.digest) or DigestNote(0, 0.0, is_quiet=True)


def pin_snapshot(
    spark: SparkSession, shard: Shard, head: ShardHead, key: tuple[str, ...], *, trusts_digest: bool = True
) -> Pinned:
    """Pin the last snapshot that Tidemark committed, below any commits of other engines."""
    columns = from_iceberg(head.table.schema(), without=SYSTEM_COLUMNS[head.state.layout])
    shape = RowShape(spark_schema(columns), key)
    return Pinned(spark=spark, shard=shard, head=head, shape=shape, trusts_digest=trusts_digest)


def in_slice(name: str, bounds: Interval, schema: StructType) -> Column:
    """Return whether the column ``name`` of a row lies in the half-open interval ``bounds``.

    A row with NULL in the column lies in no slice; only a run over the whole collection corrects such a row.
    """
    column, data_type = F.col(quoted(name)), schema[name].dataType
    word = "TIMESTAMP_NTZ" if isinstance(data_type, TimestampNTZType | DateType) else "TIMESTAMP"
    start, end = (F.expr(f"{word} '{time_text(time)}'") for time in (bounds.start_ms, bounds.end_ms))
    if isinstance(data_type, DateType):  # a date belongs to every unit that touches the day: an hour covers the day
        midnight = end.cast("date")
        last = F.when(midnight.cast("timestamp_ntz") == end, F.date_sub(midnight, 1)).otherwise(midnight)
        return column.between(start.cast("date"), last)
    return (column >= start) & (column < end)
