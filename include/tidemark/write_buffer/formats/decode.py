"""From an entry to its rows; only what cannot be a row is put aside, with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.write_buffer.formats.entry import EntryFormat
from tidemark.write_buffer.formats.json_rows import decode_json_rows
from tidemark.write_buffer.formats.line_protocol import decode_line_protocol

if TYPE_CHECKING:
    from tidemark.write_buffer.formats.entry import Rows, SequencedEntry


def decode_entry(sequenced: SequencedEntry, *, default_table: str | None = None) -> Rows:
    """Return the rows of ``sequenced``.

    Args:
        sequenced: What a stream delivered. Its producer time is the time of points that bring none.
        default_table: The table of JSON rows that name none, in an entry that names none either.
    """
    entry = sequenced.entry
    if entry.format is EntryFormat.JSON_ROWS:
        return decode_json_rows(entry.payload, default_table=entry.table or default_table)
    return decode_line_protocol(entry.payload, default_time_ns=sequenced.time_ms * 1_000_000)
