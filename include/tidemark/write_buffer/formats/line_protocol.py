"""InfluxDB line protocol: a line is a point of the table that its measurement names, with tags, fields and ``time``.

`line-protocol-parser` parses a line; this module splits a payload into lines and separates the bad ones.
Source: https://docs.influxdata.com/influxdb/v2/reference/syntax/line-protocol/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from line_protocol_parser import LineFormatError, parse_line

from tidemark.write_buffer.formats.entry import BadReason, BadRow, Entry, EntryFormat, Row, Rows

TIME_COLUMN = "time"  # ns since the Unix epoch, a whole number: a Spark timestamp ends with microseconds
# Quotes count only in field values, after the first space that is not escaped; a quoted value may hold line ends.
_LINE = re.compile(
    r"""
    (?: [^\\ \n] | \\[^\n] )*                       # measurement and tags: a quote is a character like any other
    (?: [ ] (?: [^"\\\n] | \\[^\n] | "(?:[^"\\]|\\.)*" )* )?
    """,
    re.VERBOSE | re.DOTALL,
)


def encode_line_protocol(lines: Iterable[str]) -> Entry:
    """Return ``lines``, each a point, as one entry."""
    return Entry("\n".join(lines).encode(), EntryFormat.LINE_PROTOCOL)


def decode_line_protocol(payload: bytes, *, default_time_ns: int) -> Rows:
    """Return the points of ``payload``; ``default_time_ns`` is the time of those without one. Comments are skipped.

    A tag and a field of one name are refused: they would be one column.
    """
    good: list[Row] = []
    bad: list[BadRow] = []
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError:  # only the lines that are not UTF-8 are bad
        for raw in payload.split(b"\n"):
            try:
                rows = decode_line_protocol(raw.decode("utf-8").encode(), default_time_ns=default_time_ns)
            except UnicodeDecodeError as error:
                rows = Rows((), (BadRow(raw, BadReason.ROW_UNREADABLE, str(error)),))
            good.extend(rows.good)
            bad.extend(rows.bad)
        return Rows(tuple(good), tuple(bad))
    for line in split_lines(text):
        try:
            row = _decode_point(line, default_time_ns)
        except (LineFormatError, ValueError) as error:
            bad.append(BadRow(line.encode(), BadReason.ROW_UNREADABLE, f"not line protocol: {error}"))
        else:
            if row is not None:
                good.append(row)
    return Rows(tuple(good), tuple(bad))


def split_lines(text: str) -> Iterator[str]:
    """Yield the lines that are not blank; a quoted field value may hold line ends.

    A quote that is never closed ends with its line: it makes one point bad, and not all points that follow.
    """
    place = 0
    while place < len(text):
        start = place
        comment = text[start : start + 1] == "#"
        match = None if comment else _LINE.match(text, start)
        end = match.end() if match else start
        if end < len(text) and text[end] != "\n":  # a comment, or a quote without its partner
            end = text.find("\n", start)
            end = len(text) if end < 0 else end
        line = text[start:end].removesuffix("\r")
        if line.strip():
            yield line
        place = end + 1


def key_of_point(line: str) -> tuple[str, list[str | int | None]] | None:
    """Return the table of a good point, and its tags and time as key values; ``None`` for a comment.

    The tags are in the order of their names, each name before its value, since points of one table differ in tags.
    """
    point = parse_line(line)
    if point is None:
        return None
    tags = [text for pair in sorted(point["tags"].items()) for text in pair]
    return point["measurement"], [*tags, point["time"]]


def _decode_point(line: str, default_time_ns: int) -> Row | None:
    point = parse_line(line)
    if point is None:  # a comment
        return None
    tags, fields = point["tags"], point["fields"]
    twice = (tags.keys() & fields.keys()) | ({TIME_COLUMN} & (tags.keys() | fields.keys()))
    if twice:
        raise ValueError(f"{', '.join(sorted(twice))} stands there twice, as tag, field or time")
    time_ns = default_time_ns if point["time"] is None else point["time"]
    values: dict[str, Any] = {**tags, **fields, TIME_COLUMN: time_ns}
    return Row(point["measurement"], values, line.encode())
