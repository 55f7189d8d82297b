"""`spark.read.format("tidemark_buffer")`: the messages of a write buffer as rows, up to watermarks that are read once.

    spark.dataSource.register(BufferDataSource)
    spark.read.format("tidemark_buffer").option("buffer", "kafka://broker:9092/weather").load()

Options: ``buffer``, an address or a name as on the command line; ``ranges``, half-open, as JSON like
``{"0": [100, 200], "1": [5, null]}``, where ``null`` is the watermark: without this option the whole log is read;
``part_numbers``, the most numbers of one partition. With ``schema("number long, payload binary")`` only these columns
are made, which is faster.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tidemark.errors import UsageError
from tidemark.write_buffer.address import find_connection
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.ranges import DEFAULT_PART_NUMBERS, NumberRange, plan_ranges, split_ranges
from tidemark.write_buffer.registry import check_shared, open_reader, read_batches

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "tidemark_buffer"
SCHEMA = (
    "sequencer int, number bigint, time_ms bigint, format string, table string, reason string, payload binary, "
    "headers array<struct<name: string, value: binary>>, key binary"
)


@dataclass
class _Part(InputPartition):
    connection: Connection
    numbers: NumberRange


class BufferDataSource(DataSource):
    """The messages of a file or Kafka buffer; bad ones are rows, too, with the ``reason``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BufferReader(self.options, tuple(schema.names))


class _BufferReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], columns: tuple[str, ...]) -> None:
        known = [column.split()[0] for column in SCHEMA.split(", ")]
        if unknown := sorted(set(columns) - set(known)):
            raise UsageError(
                f"a buffer has no column {', '.join(unknown)}", hint=f"its columns are: {', '.join(known)}"
            )
        if not options.get("buffer"):
            raise UsageError("the option `buffer` is missing", hint="give an address, or the name of one")
        self._connection = find_connection(options["buffer"], os.environ)
        self._ranges = parse_ranges(options["ranges"]) if options.get("ranges") else None
        self._part_numbers = int(options.get("part_numbers") or DEFAULT_PART_NUMBERS)
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        with open_reader(self._connection) as reader:
            check_shared(self._connection)
            ranges = plan_ranges(reader, self._ranges)
        return [_Part(self._connection, part) for part in split_ranges(ranges, self._part_numbers)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, _Part):  # Spark asks for one partition without numbers where there is none
            yield from read_batches(partition.connection, partition.numbers, self._columns)


def parse_ranges(text: str) -> dict[int, tuple[int, int | None]]:
    """Parse the option ``ranges``.

    Raises ``UsageError`` if ``text`` does not have that form.
    """
    try:
        ranges = {int(sequencer_id): (int(start), end) for sequencer_id, (start, end) in json.loads(text).items()}
        if all(end is None or isinstance(end, int) for _, end in ranges.values()):
            return ranges
    except (ValueError, TypeError, AttributeError):
        pass
    raise UsageError(f"{text!r} are no ranges", hint='for example {"0": [100, 200], "1": [5, null]}')
