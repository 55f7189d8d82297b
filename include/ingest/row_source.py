"""A Spark source whose rows are a collection's own: messages are decoded where they are read, in the same process.

A last row of each part holds its counts in the column ``_tally`` and nothing else; whoever reads filters it out.
"""

from __future__ import annotations

import base64
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.observation import Observation
from pyspark.sql.pandas.types import from_arrow_schema

from include.ingest.quarantine_rows import ARROW
from include.ingest.tally import Tally
from include.persist.layout import BATCH, PRODUCER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from include.ingest.range_rows import RowReading, StampedPart

FORMAT = "tidemark_buffer_rows"
TALLY = "_tally"
_STAMPS = [(PRODUCER, pa.string()), (BATCH, pa.string())]


@dataclass
class _Part(InputPartition):
    part: StampedPart


class RowDataSource(DataSource):
    """The rows of planned numbers; made by ``read_rows`` alone."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:
        return _RowReader(self.options, tuple(schema.names))


class _RowReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], columns: tuple[str, ...]) -> None:
        work: tuple[RowReading, Sequence[StampedPart]] = pickle.loads(  # noqa: S301 -- our own, of this process
            base64.b64decode(options["work"])
        )
        self._reading, self._parts = work
        self._columns, self._with_bad = columns, options["bad"] == "true"

    def partitions(self) -> list[InputPartition]:
        return [_Part(each) for each in self._parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Part):  # Spark asks for one partition without numbers where there is none
            return
        part = partition.part
        numbers = part.numbers
        total = Tally(sequencer_id=numbers.sequencer_id, start=numbers.start, end=numbers.end)
        schema = _schema(ARROW if self._with_bad else self._reading.decoder.kinds)
        for good, bad, tally in self._reading.read(part, with_bad=self._with_bad):
            total = total.add(tally)
            rows = bad if self._with_bad else good
            if rows is not None and rows.num_rows:
                untold = pa.nulls(rows.num_rows, pa.string())
                yield from rows.append_column(TALLY, untold).cast(schema).to_batches()
        told = [pa.nulls(1, field.type) for field in schema][:-1]
        yield pa.RecordBatch.from_arrays([*told, pa.array([str(total)])], schema=schema)


def read_rows(
    spark: SparkSession, reading: RowReading, parts: Sequence[StampedPart], *, bad: bool = False
) -> tuple[DataFrame, Observation]:
    """Return the rows of ``parts``, good or bad, with their stamps, and what observes the counts.

    The counts are there once an action on the frame has ended: ``observed_tallies``.
    """
    spark.dataSource.register(RowDataSource)
    schema = from_arrow_schema(_schema(ARROW if bad else reading.decoder.kinds))
    work = base64.b64encode(pickle.dumps((reading, tuple(parts)))).decode()
    options = {"work": work, "bad": str(bad).lower()}
    loaded = spark.read.format(FORMAT).schema(schema).options(**options).load()
    counts = Observation()
    observed = loaded.observe(counts, F.collect_list(TALLY).alias(TALLY))
    return observed.where(F.col(TALLY).isNull()).drop(TALLY), counts


def observed_tallies(counts: Observation) -> list[Tally]:
    """Return the counts of each part."""
    return [Tally.parse(text) for text in counts.get[TALLY]]


def _schema(kinds: pa.Schema) -> pa.Schema:
    fields = [field.with_nullable(nullable=True) for field in kinds]
    return pa.schema([*fields, *_STAMPS, (TALLY, pa.string())])
