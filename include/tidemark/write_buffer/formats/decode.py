"""Decodes an entry into good rows and bad rows."""

from __future__ import annotations

from tidemark.write_buffer.formats.entry import EntryFormat, Rows, SequencedEntry
from tidemark.write_buffer.formats.json_rows import decode_json_rows
from tidemark.write_buffer.formats.line_protocol import decode_line_protocol


def decode_entry(sequenced: SequencedEntry, *, default_table: str | None = None) -> Rows:
    """Return the rows of an entry from a stream; points without a time get the producer's time.

    ``default_table`` is the table of JSON rows if neither they nor the entry name one.
    """
    entry = sequenced.entry
    if entry.format is not EntryFormat.LINE_PROTOCOL:
        return decode_json_rows(entry.payload, default_table=entry.table or default_table)
    return decode_line_protocol(entry.payload, default_time_ns=sequenced.time_ms * 1_000_000)
