"""A Spark source that returns the rows of a collection: the task that reads messages also decodes them.

Errors of Spark's tasks arrive as text in an error of Spark's; ``translating_tasks`` turns them into our errors again.
The last row of each part holds only the counts of the part, in the column ``_tally``; ``read_rows`` filters it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has no annotations
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.observation import Observation
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidemark.errors import InputsGone
from tidemark.ingest.messages import QUARANTINE_SCHEMA
from tidemark.ingest.range_rows import STAMPS, RowReading, StampedPart, Tally
from tidemark.write_buffer.errors import AfterWatermark, BufferMissing, BufferUnreachable, NoLongerExists
from tidemark.write_buffer.reader import Reader
from tidemark.write_buffer.registry import open_reader

TALLY = "_tally"
PLACES = 100  # of batches, that one task reads
_RAISED = re.compile(rf"\b{re.escape(BufferUnreachable.__module__)}\.(\w+): (.+)")  # the last line of a traceback
_PLAN_AGAIN = {error.__name__ for error in (AfterWatermark, BufferMissing, NoLongerExists)}


@dataclass
class _Parts(InputPartition):
    parts: tuple[StampedPart, ...]  # one, or the places of batches, which are many and small


class _RowDataSource(DataSource):
    """The rows of planned numbers."""

    rows: _RowReader  # every frame gets a subclass of its own
    title = ""

    @classmethod
    def name(cls) -> str:
        return cls.title

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 -- of the interface
        return self.rows


@dataclass
class _RowReader(DataSourceReader):
    """Reads one frame. Takes no options of the source: Spark shows options, and the connection has a login."""

    reading: RowReading
    parts: tuple[StampedPart, ...]
    with_bad: bool
    schema: pa.Schema

    def partitions(self) -> list[InputPartition]:
        of_batches = [part for part in self.parts if part.is_of_batch]
        single: list[InputPartition] = [_Parts((part,)) for part in self.parts if not part.is_of_batch]
        groups = (of_batches[start : start + PLACES] for start in range(0, len(of_batches), PLACES))
        return [*single, *(_Parts(tuple(group)) for group in groups)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Parts):  # Spark asks for one partition without numbers where there is none
            return
        with open_reader(self.reading.connection) as reader:
            for part in partition.parts:
                yield from self._read_part(part, reader)

    def _read_part(self, part: StampedPart, reader: Reader) -> Iterator[pa.RecordBatch]:
        total = part.tally
        for good, bad, tally in self.reading.read(part, with_bad=self.with_bad, reader=reader):
            total = total.add(tally)
            rows = bad if self.with_bad else good
            if rows is not None and rows.num_rows:
                no_tally = pa.nulls(rows.num_rows, pa.string())
                yield from rows.append_column(TALLY, no_tally).cast(self.schema).to_batches()
        no_values = [pa.nulls(1, field.type) for field in self.schema][:-1]
        yield pa.RecordBatch.from_arrays([*no_values, pa.array([str(total)])], schema=self.schema)


def read_rows(
    spark: SparkSession, reading: RowReading, parts: Sequence[StampedPart], *, bad: bool = False
) -> tuple[DataFrame, Observation]:
    """Return the rows of ``parts``, good or bad, with their stamps, and an observation of the counts.

    ``observed_tallies`` reads the counts once an action on the frame has ended.
    """
    schema = _schema(pa.schema([*QUARANTINE_SCHEMA, *STAMPS]) if bad else reading.good_schema)
    title = f"tidemark_rows_{uuid4().hex}"  # a session knows sources by their names
    rows = _RowReader(reading, tuple(parts), bad, schema)
    source = type("RowDataSource", (_RowDataSource,), {"rows": rows, "title": title})
    spark.dataSource.register(source)
    loaded = spark.read.format(title).schema(from_arrow_schema(schema, prefer_timestamp_ntz=True)).load()
    counts = Observation()
    observed = loaded.observe(counts, F.collect_list(TALLY).alias(TALLY))
    return observed.where(F.col(TALLY).isNull()).drop(TALLY), counts


def observed_tallies(counts: Observation) -> list[Tally]:
    """Return the counts of each part."""
    return [Tally.parse(text) for text in counts.get[TALLY]]


def _schema(columns: pa.Schema) -> pa.Schema:
    return pa.schema([*(field.with_nullable(nullable=True) for field in columns), (TALLY, pa.string())])


@contextmanager
def translating_tasks() -> Iterator[None]:
    """Turn the errors of Spark in the block into those that its tasks raised; others pass unchanged.

    Raises:
        BufferUnreachable: If the log could not be read.
        InputsGone: If the log has lost planned entries: plan again, and the plan names what is lost.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        for class_name, message in _RAISED.findall(str(error)):
            if class_name == BufferUnreachable.__name__:
                raise BufferUnreachable(message.strip(), hint="is the broker well? then run it again") from error
            if class_name in _PLAN_AGAIN:
                raise InputsGone(message.strip(), hint="run it again") from error
        raise
