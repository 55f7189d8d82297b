"""The messages of a sink: JSON rows that another collection can ingest, those of one key in one partition."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.errors import Refused
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.write_buffer.errors import EntryTooLarge
from tidemark.write_buffer.formats.arrow_rows import join_objects, json_columns, json_texts
from tidemark.write_buffer.formats.json_rows import TABLE_MEMBER
from tidemark.write_buffer.kafka.topic import LIMIT_NAME
from tidemark.write_buffer.partitioner import hash_keys

_Made = TypeVar("_Made")
_HEADER_BYTES = 256  # more than content type and table take


class SinkMessages(NamedTuple):
    """Messages in their order, as columns; one without a value deletes its key."""

    partitions: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]

    @classmethod
    def of_deletes(cls, places: Collection[tuple[int, bytes]]) -> Self:
        """Return a message without a value per partition and key."""
        return cls([partition for partition, _ in places], [key for _, key in places], [None] * len(places))


class MessageMaker:
    """Makes the messages of one sink; ``table`` is the name that its rows have in the topic."""

    def __init__(
        self, table: str, key: Sequence[str], partitions: Iterable[int], *, title: str, limit_bytes: int
    ) -> None:
        self._table, self._key, self._title = table, list(key), title
        self._partitions = sorted(partitions)
        self._limit_bytes = limit_bytes - _HEADER_BYTES - len(table.encode())

    def of_rows(self, rows: pa.RecordBatch) -> SinkMessages:
        """Return a message per row, in their order; all columns are members of the value.

        Rows without a key go by their own values, so that what became of equal rows has an order, too.

        Raises:
            Refused: If JSON has no such value, or the topic takes no row that large.
            UsageError: If a value of the key cannot choose a partition.
        """
        if TABLE_MEMBER in rows.schema.names:
            raise Refused(f"a row in a topic has no column {TABLE_MEMBER!r}: it names the table", hint="rename it")
        texts = self._ask(json_texts, rows)
        keys = self._join_keys(rows) if self._key else None
        bodies = join_objects(texts)
        self._check_sizes(bodies, keys)
        if len(self._partitions) == 1:
            places = self._partitions * rows.num_rows
        elif self._key:
            places = self._choose(self._ask(json_columns, rows.select(self._key)).values())
        else:
            values = join_objects({name: texts[name] for name in texts if name not in {TIME, DIFF}})
            places = self._choose([values.to_pylist()])
        return SinkMessages(places, [None] * rows.num_rows if keys is None else _encoded(keys), _encoded(bodies))

    def of_deletes(self, keys: pa.RecordBatch) -> SinkMessages:
        """Return a message without a value per key. Raises as ``of_rows``."""
        texts = _encoded(self._join_keys(keys))
        places = self._choose(self._ask(json_columns, keys.select(self._key)).values())
        return SinkMessages(places, texts, [None] * len(texts))

    def _join_keys(self, rows: pa.RecordBatch) -> pa.ChunkedArray:
        """Return the key of each row as a text, the same one for keys that a collection takes for equal."""
        columns = [_without_negative_zero(rows.column(name)) for name in self._key]
        return join_objects(self._ask(json_texts, pa.RecordBatch.from_arrays(columns, names=self._key)))

    def _ask(self, make: Callable[[pa.Table], _Made], rows: pa.RecordBatch) -> _Made:
        try:
            return make(pa.Table.from_batches([rows]))
        except ValueError as error:
            raise Refused(f"{self._title}: {error}", hint="repair the value, or leave the column out") from error

    def _choose(self, columns: Iterable[Sequence[Any]]) -> list[int]:
        count = len(self._partitions)
        return [self._partitions[hash_ % count] for hash_ in hash_keys(self._table, [*columns])]

    def _check_sizes(self, bodies: pa.ChunkedArray, keys: pa.ChunkedArray | None) -> None:
        sizes = pc.binary_length(bodies) if keys is None else pc.add(pc.binary_length(bodies), pc.binary_length(keys))
        largest = pc.max(sizes).as_py() or 0
        if largest > self._limit_bytes:
            raise EntryTooLarge(largest, self._limit_bytes, buffer=self._title, limit_name=LIMIT_NAME)


def _without_negative_zero(column: pa.Array) -> pa.Array:
    return pc.add(column, pa.scalar(0.0, column.type)) if pa.types.is_floating(column.type) else column


def _encoded(texts: pa.ChunkedArray) -> list[bytes]:
    values: list[bytes] = texts.cast(pa.large_binary()).to_pylist()
    return values
