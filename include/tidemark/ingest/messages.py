"""Decodes batches of messages into the rows of one collection; bad rows are returned with the reason.

Most messages are lines of JSON: Arrow's parser decodes them a column at a time, thirty times as fast as one by one. It
is used only where it is as strict as our own decoder; all other messages are decoded one by one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from tidemark.collections.quality.row_parsing import ParsedRows, is_bytes, parse_rows
from tidemark.ingest.partitions.arrivals import NO_ARRIVALS, Arrivals
from tidemark.ingest.partitions.event_times import Judged
from tidemark.write_buffer.formats.arrow_messages import TYPES
from tidemark.write_buffer.formats.decode import decode_entry
from tidemark.write_buffer.formats.entry import (
    BadReason,
    BadRow,
    Entry,
    EntryFormat,
    Row,
    Rows,
    Sequence,
    SequencedEntry,
)
from tidemark.write_buffer.formats.json_rows import TABLE_MEMBER

if TYPE_CHECKING:
    from pyiceberg.table import Table


# The columns of `arrow_messages` that a decoder needs; format and table come from the headers.
COLUMNS = ("number", "time_ms", "format", "table", "reason", "payload")
WHOLE_MESSAGE = -1
_ONE_BY_ONE = 256  # at most so many messages are decoded one by one because of one among them
_MOST_OPENED = 200  # braces and brackets in a line for Arrow's parser
_OTHER_NUMBER = re.compile(rb"[\s:,\[-](?:NaN|Inf)")
_MEMBER = f'"{TABLE_MEMBER}"'.encode()
_NATIVE = (pa.string(), pa.int64(), pa.int32(), pa.float64(), pa.float32(), pa.bool_())
QUARANTINE_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("place", pa.int32()),
        ("time_ms", pa.int64()),
        ("headers", TYPES["headers"]),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("raw", pa.binary()),
    ]
)


class PlacedBadRow(NamedTuple):
    """A bad row, and where it stood: the row at ``place`` of the message ``number``, or the whole message."""

    number: int
    time_ms: int | None
    place: int  # from 0 in its entry; WHOLE_MESSAGE
    row: BadRow


@dataclass(slots=True)
class DecodedRows:
    """The rows of one batch of messages."""

    good: pa.Table
    bad: list[PlacedBadRow] = field(default_factory=list)
    other_tables: int = 0  # rows of tables that the collection does not take
    arrivals: Arrivals = NO_ARRIVALS  # of collections with event times
    numbers: pa.Array | None = None  # the numbers of the good rows' entries, of collections with event times


class RowJudge(Protocol):
    """Says which parsed rows cannot be kept after all."""

    @property
    def refuses_late(self) -> bool:
        """Whether a row can be bad because it is late."""

    def judge(self, rows: pa.Table, numbers: pa.Array, arrived_ms: pa.Array) -> Judged:
        """Judge ``rows``, of entries with these numbers, which producers wrote at ``arrived_ms``."""


@dataclass(frozen=True, slots=True)
class RowDecoder:
    """Decodes for one collection.

    ``columns`` are its user columns; members without a column are left out. ``table`` is the table whose rows it
    takes; None: every row, even one that names no table. ``judge`` looks at parsed rows once more, by event times or
    keys. ``without`` are rows that are left out, as if they were not there, by number and place.
    """

    columns: pa.Schema
    table: str | None = None
    judge: RowJudge | None = None
    without: frozenset[tuple[int, int]] = frozenset()

    def decode(self, messages: pa.RecordBatch) -> DecodedRows:
        """Return the rows of ``messages``, which has ``COLUMNS``."""
        decoded = self._decode_lines(messages)
        if decoded is not None:
            return decoded
        half = len(messages) // 2
        if half < _ONE_BY_ONE:
            return self._decode_one_by_one(messages)
        first, second = self.decode(messages.slice(0, half)), self.decode(messages.slice(half))
        return DecodedRows(
            pa.concat_tables([first.good, second.good]),
            first.bad + second.bad,
            first.other_tables + second.other_tables,
            first.arrivals.add(second.arrivals),
            None if first.numbers is None else pa.concat_arrays([first.numbers, second.numbers]),
        )

    # -- a column at a time ------------------------------------------------------------------------------------------

    def _decode_lines(self, messages: pa.RecordBatch) -> DecodedRows | None:
        """Return None if a message is not lines of JSON, or Arrow's parser may read a line otherwise than ours."""
        lines = _split_lines(messages)
        if lines is None or self._leaves_out_any(messages):
            return None
        text = b"\n".join(lines.texts.to_pylist())
        names_tables = _MEMBER in text
        if (names_tables and self.table is None) or _may_have_other_numbers(text) or _may_be_deep(lines.texts, text):
            return None
        rows = self._parse(text)
        if rows is None or rows.num_rows != len(lines.texts):
            return None
        if names_tables and rows.column(TABLE_MEMBER).null_count:
            return None  # a row whose table is NULL is bad, even if the entry names a table
        if any(_may_be_rounded(rows.column(column.name)) for column in self.columns):
            return None
        return self._take_lines(messages, lines, rows)

    def _leaves_out_any(self, messages: pa.RecordBatch) -> bool:
        numbers = messages.column("number")
        left_out = pa.array({number for number, _ in self.without}, numbers.type)
        return len(left_out) > 0 and bool(pc.any(pc.is_in(numbers, left_out)).as_py())

    def _parse(self, text: bytes) -> pa.Table | None:
        if any(pa.types.is_nested(each.type) or is_bytes(each.type) for each in self.columns):
            return None
        if TABLE_MEMBER in self.columns.names:
            return None
        try:
            return arrow_json.read_json(
                pa.BufferReader(text),
                read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
                # Members without a column are parsed, too: our own decoder refuses a member that stands there twice.
                parse_options=arrow_json.ParseOptions(
                    explicit_schema=self._json_types(), unexpected_field_behavior="infer"
                ),
            )
        except pa.ArrowException:
            return None

    def _json_types(self) -> pa.Schema:
        """Return the columns with types that JSON has; times, dates and decimals are text there."""
        fields = [(column.name, column.type if column.type in _NATIVE else pa.string()) for column in self.columns]
        return pa.schema([*fields, (TABLE_MEMBER, pa.string())])

    def _take_lines(self, messages: pa.RecordBatch, lines: _Lines, rows: pa.Table) -> DecodedRows | None:
        places = pa.array(range(len(lines.texts)), pa.int64())
        other_tables = 0
        if self.table is not None:
            of_rows = rows.column(TABLE_MEMBER).combine_chunks()
            tables = pc.coalesce(of_rows.cast(pa.string()), messages.column("table").take(lines.messages))
            if tables.null_count or pc.any(pc.equal(tables, "")).as_py():
                return None
            chosen = pc.equal(tables, self.table)
            places = places.filter(chosen)
            other_tables = len(lines.texts) - len(places)
            rows = rows.filter(chosen)
        parsed = parse_rows(
            {name: rows.column(name).combine_chunks() for name in self.columns.names},
            self.columns,
            numbers=places.to_pylist(),
            text_of=lambda _place: "",
        )
        judged, unfit = self._judge(parsed, messages, places, lines.messages)
        of_lines = lines.messages.to_pylist() if unfit else []  # they grow
        bad = []
        for line, reason, detail in unfit:
            row = BadRow(lines.texts[line].as_py(), reason, detail)
            bad.append(_place(messages, of_lines[line], line - bisect_left(of_lines, of_lines[line]), row))
        return DecodedRows(judged.rows, bad, other_tables, judged.arrivals, judged.numbers)

    # -- one by one --------------------------------------------------------------------------------------------------

    def _decode_one_by_one(self, messages: pa.RecordBatch) -> DecodedRows:
        bad: list[PlacedBadRow] = []
        rows: list[tuple[int, int, Row]] = []  # place of the message in the batch, place of the row in the message
        other_tables = 0
        for at, message in enumerate(messages.to_pylist()):
            number = message["number"]
            if (number, WHOLE_MESSAGE) in self.without:
                continue
            if message["reason"] is not None:
                reason = BadReason(message["reason"])
                whole = BadRow(message["payload"], reason, reason.replace("-", " "))
                bad.append(_place(messages, at, WHOLE_MESSAGE, whole))
                continue
            # A collection that takes every row takes rows without a table, too: any name does.
            decoded = decode_rows(message, "*" if self.table is None else None)
            found = enumerate(decoded.bad, start=len(decoded.good))
            bad += [_place(messages, at, place, row) for place, row in found if (number, place) not in self.without]
            for place, row in enumerate(decoded.good):
                if (number, place) in self.without:
                    continue
                if self.table is None or row.table == self.table:
                    rows.append((at, place, row))
                else:
                    other_tables += 1
        parsed = parse_rows(
            {name: [row.values.get(name) for _, _, row in rows] for name in self.columns.names},
            self.columns,
            numbers=range(len(rows)),
            text_of=lambda _place: "",
        )
        places, of_places = range(len(rows)), [at for at, _, _ in rows]
        judged, unfit = self._judge(parsed, messages, pa.array(places, pa.int64()), pa.array(of_places, pa.int64()))
        for index, reason, detail in unfit:
            at, place, row = rows[index]
            bad.append(_place(messages, at, place, BadRow(row.raw, reason, detail)))
        return DecodedRows(judged.rows, bad, other_tables, judged.arrivals, judged.numbers)

    def _judge(
        self, parsed: ParsedRows, messages: pa.RecordBatch, numbers: pa.Array, of_numbers: pa.Array
    ) -> tuple[Judged, list[tuple[int, BadReason, str]]]:
        """Judge the rows that were parsed; also return all bad ones, by their numbers.

        ``numbers`` are those of all rows in order, ``of_numbers`` the places of the rows' messages by number.
        """
        unfit = [(row.number, BadReason.ROW_UNREADABLE, row.reason) for row in parsed.rejected]
        if self.judge is None:
            return Judged(parsed.rows, [], NO_ARRIVALS, None), unfit
        rejected = pa.array([row.number for row in parsed.rejected], numbers.type)
        kept = numbers.filter(pc.invert(pc.is_in(numbers, rejected)))
        at = of_numbers.take(kept)
        judged = self.judge.judge(parsed.rows, *(messages.column(name).take(at) for name in ("number", "time_ms")))
        return judged, unfit + [(kept[row.place].as_py(), row.reason, row.detail) for row in judged.unfit]


def decode_rows(message: dict[str, Any], default_table: str | None) -> Rows:
    """Return the rows of one good message, which has the values of ``COLUMNS``."""
    entry = Entry(message["payload"], EntryFormat(message["format"]))
    sequenced = SequencedEntry(Sequence(0, 0), message["time_ms"], entry)
    return decode_entry(sequenced, default_table=message["table"] or default_table)


class _Lines(NamedTuple):
    """The lines of all messages that are not empty."""

    texts: pa.Array  # binary
    messages: pa.Array  # for each line the place of its message in the batch


def _split_lines(messages: pa.RecordBatch) -> _Lines | None:
    """Return None if the messages are not all JSON rows, or a line cannot be an object in UTF-8."""
    formats, payloads = messages.column("format"), messages.column("payload")
    if not len(messages) or formats.null_count or pc.unique(formats).to_pylist() != [EntryFormat.JSON_ROWS.value]:
        return None
    try:
        texts = payloads.cast(pa.string())
    except pa.ArrowInvalid:
        return None
    at = pa.array(range(len(messages)), pa.int64())
    if pc.any(pc.match_substring(texts, "\n")).as_py():
        split = pc.split_pattern(texts, "\n")
        texts, at = split.flatten(), pc.list_parent_indices(split).cast(pa.int64())
        filled = pc.not_equal(texts, "")
        texts, at = texts.filter(filled), at.filter(filled)
    is_object = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    return _Lines(texts.cast(pa.binary()), at) if len(texts) and pc.all(is_object).as_py() else None


def _may_have_other_numbers(text: bytes) -> bool:
    """Tell whether there may be numbers that Arrow's parser accepts although they are not JSON."""
    return (b"NaN" in text or b"Inf" in text) and _OTHER_NUMBER.search(text) is not None


def _may_be_deep(lines: pa.Array, text: bytes) -> bool:
    """Tell whether the nesting of a line may exhaust the stack of Arrow's parser, which recurses."""
    if text.count(b"{") + text.count(b"[") - len(lines) < _MOST_OPENED:
        return False  # nearly always: every line is one object
    return bool(pc.max(pc.add(pc.count_substring(lines, b"{"), pc.count_substring(lines, b"["))).as_py() > _MOST_OPENED)


def _may_be_rounded(column: pa.ChunkedArray) -> bool:
    """Tell whether a floating-point column may have rounded a whole number: such a row is bad."""
    if not pa.types.is_floating(column.type):
        return False
    largest = pc.max(pc.abs(column)).as_py()
    return largest is not None and largest >= (2**24 if column.type == pa.float32() else 2**53)


def _place(messages: pa.RecordBatch, at: int, place: int, row: BadRow) -> PlacedBadRow:
    number, time_ms = messages.column("number")[at].as_py(), messages.column("time_ms")[at].as_py()
    return PlacedBadRow(number, time_ms, place, row)


def quarantined_rows(bad: list[PlacedBadRow], messages: pa.RecordBatch, *, topic: str, sequencer_id: int) -> pa.Table:
    """Return ``bad`` as rows of the quarantine, with the headers that ``messages`` have."""
    headers = dict(zip(messages.column("number").to_pylist(), messages.column("headers").to_pylist(), strict=True))
    return pa.table(
        {
            "topic": [topic] * len(bad),
            "partition": [sequencer_id] * len(bad),
            "offset": [placed.number for placed in bad],
            "place": [placed.place for placed in bad],
            "time_ms": [placed.time_ms for placed in bad],
            "headers": [headers[placed.number] for placed in bad],
            "reason": [str(placed.row.reason) for placed in bad],
            "detail": [placed.row.detail for placed in bad],
            "raw": [placed.row.raw for placed in bad],
        },
        schema=QUARANTINE_SCHEMA,
    )


def decoded_columns(table: Table) -> pa.Schema:
    """Return the columns that messages are decoded for: the user's columns of the table, all nullable."""
    from tidemark.collections.append.forward import user_columns  # noqa: PLC0415 -- Spark's tasks do without pyiceberg

    return pa.schema([field.with_nullable(nullable=True) for field in user_columns(table)])
