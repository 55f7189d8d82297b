r"""Assigns rows to sequencers: all rows of one primary key go to one sequencer, since order exists only inside one.

The rule, for other producers: write the table's name and the values of its key columns, in the declared order of the
columns, as a JSON array without spaces, with everything but ASCII escaped (``\uXXXX``, lower case). Whole numbers are
written as integers whatever their type is, so that 7 and 7.0 are one key; other floats in their shortest form; missing
values as ``null``. Hash these bytes with BLAKE2b (8 bytes of output, an unsigned big-endian number). This number modulo
the count of sequencers is the position of the sequencer in the ascending order of ids.

The rule never changes for a given set of sequencers. With another set keys move: rows of one key from before and after
are then in different sequencers, and the rows themselves must say which is newer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

from tidemark.errors import UsageError
from tidemark.write_buffer.formats.entry import Row

KeyValue = str | int | float | bool | None
_PLAIN_TYPES = {str, int, bool, type(None)}


class Partitioner:
    """Assigns keys to the sequencers that it was made with; ``keys`` are the key columns of each table."""

    def __init__(self, sequencer_ids: Iterable[int], keys: Mapping[str, Sequence[str]]) -> None:
        self._ids = frozenset(sequencer_ids)
        self._keys = keys

    def sequencer_of(self, row: Row) -> int:
        """Return the sequencer of ``row``.

        Raises ``UsageError`` if no key is known for its table, or a key value has a type that cannot be a key.
        """
        columns = self._keys.get(row.table)
        if not columns:
            raise UsageError(
                f"no key is known for the table {row.table!r}", hint="rows without a key may go to any one sequencer"
            )
        return choose_sequencer(hash_key(row.table, [row.values.get(column) for column in columns]), self._ids)

    def split(self, rows: Iterable[Row]) -> dict[int, list[Row]]:
        """Return ``rows`` by sequencer, in their order; sequencers without a row are left out."""
        parts: dict[int, list[Row]] = {}
        for row in rows:
            parts.setdefault(self.sequencer_of(row), []).append(row)
        return parts


def choose_sequencer(key_hash: int, sequencer_ids: Iterable[int]) -> int:
    """Return the sequencer of a key's hash; ``sequencer_ids`` are all of the buffer, in any order."""
    ids = sorted(sequencer_ids)
    return ids[key_hash % len(ids)]


def hash_key(table: str, values: Iterable[KeyValue]) -> int:
    """Return the unsigned 64-bit hash of a key.

    Raises ``UsageError`` if a value is a list, an object, or no finite number.
    """
    return _hash(json.dumps([table, *map(_plain, values)], ensure_ascii=True, separators=(",", ":")))


def hash_keys(table: str, columns: Sequence[Sequence[KeyValue]]) -> list[int]:
    """Return the hash of each key, as ``hash_key`` does, from the values of the key columns.

    Raises as ``hash_key``.
    """
    start = json.dumps([table], ensure_ascii=True)[:-1]
    texts = [_texts_of(values) for values in columns]
    return [_hash(f"{start},{','.join(key)}]") for key in zip(*texts, strict=True)]


def _texts_of(values: Sequence[KeyValue]) -> list[str]:
    """Return the JSON of each value, all at once, which is many times faster: no such text has a line end."""
    if not set(map(type, values)) <= _PLAIN_TYPES:
        values = [*map(_plain, values)]
    text = json.dumps(values, ensure_ascii=True, separators=("\n", ":"))[1:-1]
    return text.split("\n") if text else []


def _hash(array: str) -> int:
    return int.from_bytes(blake2b(array.encode("ascii"), digest_size=8).digest(), "big")


def _plain(value: KeyValue) -> KeyValue:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UsageError(f"{value} cannot be a key", hint="a key value equals itself")
        return int(value) if value.is_integer() else value
    if value is None or isinstance(value, str | int):
        return value
    raise UsageError(f"a {type(value).__name__} cannot be a key", hint="key values are text, numbers, booleans or null")
