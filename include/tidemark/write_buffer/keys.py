"""The key columns of each table, kept with the buffer: in a log beside it, whose first word about a table counts.

Whoever names a key later has to name the same one: with another the rows of one key would go to two sequencers, and
nobody could tell any more which of them is the newer one. Points in line protocol have a key of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidemark.clock import Clock
from tidemark.errors import UsageError
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.errors import BufferMissing
from tidemark.write_buffer.formats.decode import decode_entry
from tidemark.write_buffer.formats.entry import Row, SequencedEntry
from tidemark.write_buffer.formats.json_rows import TABLE_MEMBER, encode_json_rows
from tidemark.write_buffer.formats.line_protocol import key_of_point
from tidemark.write_buffer.partitioner import choose_sequencer, hash_key
from tidemark.write_buffer.ranges import read_range
from tidemark.write_buffer.registry import find_back_end, open_reader, open_writer

Key = tuple[str, ...]
POINTS: Key = ()  # the key of a table of points: tags and time


def read_keys(connection: Connection) -> dict[str, Key]:
    """Return the key columns of each table that the buffer keeps; none if nobody ever named a key.

    Raises as ``open_reader``.
    """
    try:
        with open_reader(_place_of(connection)) as reader:
            entries = read_range(reader, 0, 0)
    except BufferMissing:
        return {}
    kept: dict[str, Key] = {}
    for entry in entries:
        for row in decode_entry(entry).good if isinstance(entry, SequencedEntry) else ():
            kept.setdefault(row.table, tuple(map(str, row.values.get("key") or ())))
    return kept


def keep_keys(connection: Connection, keys: Mapping[str, Key], *, clock: Clock) -> None:
    """Keep the keys of tables from now on.

    Raises:
        UsageError: If another key of one of the tables is kept.
        Others as ``open_writer``, where the log of keys is made.
    """
    kept = read_keys(connection)
    check_keys(kept, keys)
    if new := [{TABLE_MEMBER: table, "key": list(key)} for table, key in keys.items() if table not in kept]:
        with open_writer(_place_of(connection), clock=clock, create=True) as writer:
            writer.store_entry(encode_json_rows(new), 0)
        check_keys(read_keys(connection), keys)  # somebody else may have been faster


def check_keys(kept: Mapping[str, Key], keys: Mapping[str, Key]) -> None:
    """Check that ``keys`` are those that are ``kept``. Raises ``UsageError`` if one is not."""
    for table, key in keys.items():
        if (known := kept.get(table, key)) != key:
            raise UsageError(
                f"the buffer keeps {_text(known)} for the table {table!r}, not {_text(key)}: rows of one key would go "
                "to two sequencers",
                hint="write lines of points" if known == POINTS else f"write with --key {','.join(known)}, or without",
            )


def sequencer_of(row: Row, keys: Mapping[str, Key], sequencer_ids: Iterable[int]) -> int | None:
    """Return the sequencer that a row belongs to; None if no key is known for it.

    Raises ``UsageError`` if a value cannot be a key.
    """
    key = keys.get(row.table)
    if key is None:
        return None
    if key == POINTS:
        try:
            point = key_of_point(row.raw.decode("utf-8"))
        except ValueError:  # a row of JSON
            return None
        return None if point is None else choose_sequencer(hash_key(*point), sequencer_ids)
    return choose_sequencer(hash_key(row.table, [row.values.get(column) for column in key]), sequencer_ids)


@dataclass(frozen=True, slots=True)
class Spread:
    """How many rows were looked at, how many of them lie in another sequencer than theirs, and one of these."""

    checked: int = 0
    rows: int = 0
    example: str = ""

    def add(self, other: Spread) -> Spread:
        return Spread(self.checked + other.checked, self.rows + other.rows, self.example or other.example)


def find_spread(
    rows: Iterable[Row], keys: Mapping[str, Key], sequencer_ids: Iterable[int], *, sequencer_id: int
) -> Spread:
    """Compare the sequencer ``sequencer_id``, in which ``rows`` lie, with those that they belong to."""
    ids, found = sorted(sequencer_ids), Spread()
    for row in rows:
        try:
            right = sequencer_of(row, keys, ids)
        except UsageError:  # its key is a list, say: no writer of ours chose a sequencer for it
            right = -1
        if right is not None:
            is_wrong = right != sequencer_id
            example = f"a row of {row.table!r} in sequencer {sequencer_id} belongs to {right}" if is_wrong else ""
            found = found.add(Spread(1, int(is_wrong), example))
    return found


def _place_of(connection: Connection) -> Connection:
    return find_back_end(connection.type).beside(connection, "keys")


def _text(key: Key) -> str:
    return f"the key {','.join(key)}" if key else "the key of points"
