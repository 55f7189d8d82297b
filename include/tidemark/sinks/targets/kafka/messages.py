"""The messages of a sink: JSON rows that another collection can ingest, those of one key in one partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from tidemark.errors import Refused
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.write_buffer.errors import EntryTooLarge
from tidemark.write_buffer.formats.arrow_rows import encode_values, join_objects, json_columns
from tidemark.write_buffer.formats.json_rows import TABLE_MEMBER
from tidemark.write_buffer.kafka.topic import LIMIT_NAME
from tidemark.write_buffer.partitioner import hash_keys

_HEADER_BYTES = 256  # more than content type and table take


class SinkMessage(NamedTuple):
    """A message to a partition; without a value it deletes its key."""

    partition: int
    key: bytes | None
    value: bytes | None


class MessageMaker:
    """Makes the messages of one sink; ``table`` is the name that its rows have in the topic."""

    def __init__(
        self, table: str, key: Sequence[str], partitions: Iterable[int], *, title: str, limit_bytes: int
    ) -> None:
        self._table, self._key, self._title = table, tuple(key), title
        self._partitions = sorted(partitions)
        self._limit_bytes = limit_bytes - _HEADER_BYTES - len(table.encode())

    def of_rows(self, rows: pa.RecordBatch) -> Iterator[SinkMessage]:
        """Return a message per row, in their order; all columns are members of the value.

        Rows without a key go by their own values, so that what became of equal rows has an order, too.

        Raises:
            Refused: If JSON has no such value, or the topic takes no row that large.
            UsageError: If a value of the key cannot choose a partition.
        """
        if TABLE_MEMBER in rows.schema.names:
            raise Refused(f"a row in a topic has no column {TABLE_MEMBER!r}: it names the table", hint="rename it")
        values = self._values_of(rows)
        texts = {name: encode_values(column) for name, column in values.items()}
        bodies = join_objects(texts)
        keys: Sequence[str] | None = join_objects({name: texts[name] for name in self._key}) if self._key else None
        if len(self._partitions) == 1:
            places = [self._partitions[0]] * len(bodies)
        elif self._key:
            places = self._choose([values[name] for name in self._key])
        else:
            places = self._choose([join_objects({name: texts[name] for name in texts if name not in {TIME, DIFF}})])
        encoded = [body.encode() for body in bodies]
        encoded_keys = [None] * len(bodies) if keys is None else [key.encode() for key in keys]
        self._check_sizes(encoded, encoded_keys)
        return map(SinkMessage, places, encoded_keys, encoded)

    def of_deletes(self, keys: pa.RecordBatch) -> Iterator[SinkMessage]:
        """Return a message without a value per key. Raises as ``of_rows``."""
        values = {name: column for name, column in self._values_of(keys).items() if name in self._key}
        texts = join_objects({name: encode_values(values[name]) for name in self._key})
        places = self._choose([values[name] for name in self._key])
        return (SinkMessage(place, text.encode(), None) for place, text in zip(places, texts, strict=True))

    def _values_of(self, rows: pa.RecordBatch) -> dict[str, list[object]]:
        try:
            return json_columns(pa.Table.from_batches([rows]))
        except ValueError as error:
            raise Refused(f"{self._title}: {error}", hint="repair the value, or leave the column out") from error

    def _choose(self, columns: Sequence[Sequence[object]]) -> list[int]:
        count = len(self._partitions)
        return [self._partitions[hash_ % count] for hash_ in hash_keys(self._table, columns)]  # type: ignore[arg-type]  # refused there

    def _check_sizes(self, bodies: Sequence[bytes], keys: Sequence[bytes | None]) -> None:
        largest = max((len(body) + len(key or b"") for body, key in zip(bodies, keys, strict=True)), default=0)
        if largest > self._limit_bytes:
            raise EntryTooLarge(largest, self._limit_bytes, buffer=self._title, limit_name=LIMIT_NAME)
