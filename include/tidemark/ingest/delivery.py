"""How rows get from the buffer onto staging branches: by Spark, or in this process where there are few."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from tidemark.collections.apply.execute import read_stored
from tidemark.collections.schema.convert import to_spark
from tidemark.errors import InputsGone
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.shard.layout import BATCH, PRODUCER
from tidemark.iceberg.staging.files import stage_files
from tidemark.ingest.decoding.bad_rows import ARROW
from tidemark.ingest.range_rows import cut_parts
from tidemark.write_buffer.ranges import DEFAULT_PART_NUMBERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.iceberg.staging.branches import StagedBatch
    from tidemark.ingest.buffer_log import BufferLog
    from tidemark.ingest.decoding.tally import Tally
    from tidemark.ingest.plan import PlannedRange
    from tidemark.ingest.range_rows import RowReading

SMALL_ENTRIES, SMALL_BYTES = 10_000, 32 * 1024 * 1024  # what takes less time than a JVM to start, and fits anywhere


class TooMuchForOneProcess(Exception):
    """There are more bytes than this process should hold."""


@dataclass(frozen=True, slots=True)
class StagedRows:
    """What lies on a branch, the schema that it was written for, and what was counted on the way."""

    batch: StagedBatch
    schema_id: int
    tallies: list[Tally]


class Delivery(Protocol):
    """Writes the rows of planned ranges; reads the same numbers again as often as it is asked."""

    def count(self, planned: Sequence[PlannedRange]) -> list[Tally]:
        """Read and decode without writing anything."""

    def stage(self, shard: Shard, branch: str, planned: Sequence[PlannedRange], *, fingerprint: str) -> StagedRows:
        """Write the good rows onto ``branch``."""

    def stage_bad(
        self, shard: Shard, branch: str, planned: Sequence[PlannedRange], tallies: Sequence[Tally], *, fingerprint: str
    ) -> StagedRows:
        """Write the bad rows onto ``branch`` of the quarantine; ``tallies`` say where they are."""


@dataclass(slots=True)
class SmallDelivery:
    """Reads into the memory of this process, once."""

    reading: RowReading
    log: BufferLog
    _read: dict[tuple[PlannedRange, ...], tuple[pa.Table, pa.Table, list[Tally]]] = field(default_factory=dict)

    def count(self, planned: Sequence[PlannedRange]) -> list[Tally]:
        return self._rows(planned)[2]

    def stage(self, shard: Shard, branch: str, planned: Sequence[PlannedRange], *, fingerprint: str) -> StagedRows:
        rows, _, tallies = self._rows(planned)
        table = _check_schema(shard, self.reading)
        return StagedRows(*_stage(shard, table, branch, rows, fingerprint), tallies)

    def stage_bad(
        self,
        shard: Shard,
        branch: str,
        planned: Sequence[PlannedRange],
        tallies: Sequence[Tally],  # noqa: ARG002 -- of the protocol
        *,
        fingerprint: str,
    ) -> StagedRows:
        _, rows, counted = self._rows(planned)
        return StagedRows(*_stage(shard, shard.load().table, branch, rows, fingerprint), counted)

    def _rows(self, planned: Sequence[PlannedRange]) -> tuple[pa.Table, pa.Table, list[Tally]]:
        """Return good and bad rows, and their counts.

        Raises:
            TooMuchForOneProcess: If their entries are too large.
        """
        key = tuple(planned)
        if key not in self._read:
            stamps = [(PRODUCER, pa.string()), (BATCH, pa.int64())]
            good = [pa.schema([*self.reading.decoder.kinds, *stamps]).empty_table()]
            bad = [pa.schema([*ARROW, *stamps]).empty_table()]
            tallies: list[Tally] = []
            read_bytes = 0
            for part in cut_parts(self.log, planned, DEFAULT_PART_NUMBERS):
                for rows, put_aside, tally in self.reading.read(part, with_bad=True):
                    good.append(rows.cast(good[0].schema))
                    if put_aside is not None:
                        bad.append(put_aside)
                    tallies.append(tally)
                    read_bytes += tally.read_bytes
                    if read_bytes > SMALL_BYTES:
                        raise TooMuchForOneProcess
            self._read[key] = pa.concat_tables(good), pa.concat_tables(bad), tallies
        return self._read[key]


@dataclass(frozen=True, slots=True)
class SparkDelivery:
    """Reads the sequencers in parallel, in Spark's tasks; bad rows in a second pass over the parts that have any."""

    spark: SparkSession
    reading: RowReading
    log: BufferLog
    part_numbers: int = DEFAULT_PART_NUMBERS

    def count(self, planned: Sequence[PlannedRange]) -> list[Tally]:
        from tidemark.ingest.spark_source import (  # noqa: PLC0415 -- imports Spark
            observed_tallies,
            read_rows,
            translating_tasks,
        )

        rows, counts = read_rows(self.spark, self.reading, cut_parts(self.log, planned, self.part_numbers))
        with translating_tasks():
            rows.write.format("noop").mode("overwrite").save()
        return observed_tallies(counts)

    def stage(self, shard: Shard, branch: str, planned: Sequence[PlannedRange], *, fingerprint: str) -> StagedRows:
        from tidemark.iceberg.staging.frames import stage  # noqa: PLC0415
        from tidemark.ingest.spark_source import (  # noqa: PLC0415
            observed_tallies,
            read_rows,
            translating_tasks,
        )

        rows, counts = read_rows(self.spark, self.reading, cut_parts(self.log, planned, self.part_numbers))
        _check_schema(shard, self.reading)
        with translating_tasks():
            batch = stage(shard, rows, branch=branch, fingerprint=fingerprint)
        return StagedRows(batch, self.reading.schema_id, observed_tallies(counts))

    def stage_bad(
        self, shard: Shard, branch: str, planned: Sequence[PlannedRange], tallies: Sequence[Tally], *, fingerprint: str
    ) -> StagedRows:
        from pyspark.sql import functions as F  # noqa: PLC0415

        from tidemark.iceberg.staging.frames import stage  # noqa: PLC0415
        from tidemark.ingest.spark_source import (  # noqa: PLC0415
            observed_tallies,
            read_rows,
            translating_tasks,
        )

        parts = cut_parts(self.log, planned, self.part_numbers, only=tallies)
        rows, counts = read_rows(self.spark, self.reading, parts, bad=True)
        head = shard.load()
        # A quarantine that files left has columns of its own.
        others = [column for column in read_stored(head.table).columns if column.name not in rows.columns]
        rows = rows.withColumns({column.name: F.lit(None).cast(to_spark(column.type)) for column in others})
        with translating_tasks():
            batch = stage(shard, rows, branch=branch, fingerprint=fingerprint)
        return StagedRows(batch, head.table.metadata.current_schema_id, observed_tallies(counts))


def _check_schema(shard: Shard, reading: RowReading) -> Table:
    """Return the table.

    Raises:
        InputsGone: If its columns are not those that rows are decoded for: decode them again.
    """
    table = shard.load().table
    if table.metadata.current_schema_id != reading.schema_id:
        raise InputsGone(f"the columns of {shard.name!r} were changed by another process", hint="run it again")
    return table


def _stage(shard: Shard, table: Table, branch: str, rows: pa.Table, fingerprint: str) -> tuple[StagedBatch, int]:
    schema_id = table.metadata.current_schema_id
    for name in (each for each in table.schema().column_names if "." not in each):
        if name not in rows.column_names:  # of a quarantine that files left
            rows = rows.append_column(name, pa.nulls(rows.num_rows))
    files = write_rows(table, rows)
    return stage_files(shard, files, branch=branch, fingerprint=fingerprint, schema_id=schema_id), schema_id
