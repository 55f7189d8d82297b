"""Writes the rows of planned ranges onto staging branches: in this process if there are few, else in Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.table import Table

from tidemark.collections.apply.execute import read_stored
from tidemark.collections.schema.convert import to_spark
from tidemark.errors import InputsGone
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.staging.branches import StagedBatch
from tidemark.iceberg.staging.files import stage_files
from tidemark.ingest.range_rows import RowReading, StampedPart, Tally
from tidemark.write_buffer.reader import Reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_ENTRIES, SMALL_BYTES = 10_000, 32 * 1024 * 1024  # less work than the start of a JVM, and little memory


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The batch on a staging branch, the schema that it was written for, and the counts of its entries."""

    batch: StagedBatch
    schema_id: int
    tallies: Sequence[Tally]

    @property
    def with_bad(self) -> list[Tally]:
        """The counts of what has bad rows that the quarantine may lack: rows become late while they wait."""
        return [
            tally for tally in self.tallies if tally.arrivals.refused or (tally.bad_rows and not tally.has_quarantined)
        ]


@dataclass(frozen=True, slots=True)
class RowsInMemory:
    """Rows that this process has read and decoded, with producer and batch number."""

    reading: RowReading
    good: pa.Table
    bad: pa.Table
    tallies: list[Tally]

    def stage(self, shard: Shard, branch: str) -> StagedRows:
        """Write the good rows onto ``branch``.

        Raises ``InputsGone`` if another process changed the columns since the rows were decoded.
        """
        return self._stage(shard, check_schema(shard, self.reading), branch, self.good)

    def stage_bad(self, quarantine: Shard, branch: str, _good: StagedRows) -> StagedBatch:
        """Write the bad rows onto ``branch`` of the quarantine."""
        return self._stage(quarantine, quarantine.load().table, branch, self.bad).batch

    def _stage(self, shard: Shard, table: Table, branch: str, rows: pa.Table) -> StagedRows:
        schema_id = table.metadata.current_schema_id
        for name in (name for name in table.schema().column_names if "." not in name):
            if name not in rows.column_names:  # a quarantine made by appends of files has further columns
                rows = rows.append_column(name, pa.nulls(rows.num_rows))
        files = write_rows(table, rows)
        batch = stage_files(shard, files, branch=branch, fingerprint=branch, schema_id=schema_id)
        return StagedRows(batch, schema_id, self.tallies)


@dataclass(frozen=True, slots=True)
class RowsForSpark:
    """Rows that Spark's tasks read, decode and write, sequencers in parallel; a second pass writes the bad rows."""

    spark: SparkSession
    reading: RowReading
    parts: Sequence[StampedPart]

    def stage(self, shard: Shard, branch: str) -> StagedRows:
        """Write the good rows onto ``branch``.

        Raises:
            InputsGone: If the columns changed since the decoder was made, or retention removed planned entries.
            BufferUnreachable: If a task could not read the log.
        """
        from tidemark.iceberg.staging.frames import stage  # noqa: PLC0415 -- imports Spark
        from tidemark.ingest import spark_source  # noqa: PLC0415

        rows, counts = spark_source.read_rows(self.spark, self.reading, self.parts)
        check_schema(shard, self.reading)
        with spark_source.translating_tasks():
            batch = stage(shard, rows, branch=branch, fingerprint=branch)
        return StagedRows(batch, self.reading.schema_id, spark_source.observed_tallies(counts))

    def stage_bad(self, quarantine: Shard, branch: str, good: StagedRows) -> StagedBatch:
        """Write the bad rows onto ``branch`` of the quarantine; ``good`` says which parts have bad rows."""
        from pyspark.sql import functions as F  # noqa: PLC0415

        from tidemark.iceberg.staging.frames import stage  # noqa: PLC0415
        from tidemark.ingest import spark_source  # noqa: PLC0415

        bad = {(tally.sequencer_id, tally.start, tally.end, tally.is_of_batch) for tally in good.with_bad}
        parts = [part for part in self.parts if (*astuple(part.numbers), part.is_of_batch) in bad]
        rows, _ = spark_source.read_rows(self.spark, self.reading, parts, bad=True)
        # A quarantine made by appends of files has further columns.
        stored = read_stored(quarantine.load().table).columns
        others = [column for column in stored if column.name not in rows.columns]
        rows = rows.withColumns({column.name: F.lit(None).cast(to_spark(column.type)) for column in others})
        with spark_source.translating_tasks():
            return stage(quarantine, rows, branch=branch, fingerprint=branch)


Rows = RowsInMemory | RowsForSpark


def read_into_memory(reading: RowReading, parts: Sequence[StampedPart], reader: Reader) -> RowsInMemory | None:
    """Read and decode ``parts`` in this process; None if the entries have more bytes than a process should hold.

    ``reader`` is an open one of the buffer. Raises as ``RowReading.read``.
    """
    good, bad = ([none] for none in reading.no_rows)
    tallies: list[Tally] = []
    read_bytes = 0
    for part in parts:
        with_bad = reading.judges_late or not part.has_quarantined
        for good_rows, bad_rows, tally in reading.read(part, with_bad=with_bad, reader=reader):
            good.append(good_rows.cast(good[0].schema))
            if bad_rows is not None:
                bad.append(bad_rows)
            tallies.append(tally)
            read_bytes += tally.read_bytes
            if read_bytes > SMALL_BYTES:
                return None
    return RowsInMemory(reading, pa.concat_tables(good), pa.concat_tables(bad), tallies)


def check_schema(shard: Shard, reading: RowReading) -> Table:
    """Return the table of ``shard``.

    Raises ``InputsGone`` if the rows were decoded for other columns than the present ones: decode them again.
    """
    table = shard.load().table
    if table.metadata.current_schema_id != reading.schema_id:
        raise InputsGone(f"the columns of {shard.name!r} were changed by another process", hint="run it again")
    return table
