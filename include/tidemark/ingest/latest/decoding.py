"""Decodes messages into changes of rows: the user's columns, and `_diff`, 1 for a row as it is now, -1 for one gone.

What makes a change is either the row itself, or a tombstone, or an envelope; the latter two are written anew as JSON
rows first, so that one decoder says what fits the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.quality.row_parsing import parse_rows
from tidemark.collections.sources.formats.buffer import BufferSource, Envelope
from tidemark.iceberg.files.arrow_values import to_rows
from tidemark.iceberg.files.key_index import KeyIndex
from tidemark.iceberg.shard.column_names import DIFF
from tidemark.ingest.latest.message_changes import MessageChange, UnknownChange, as_payload, read_envelopes, read_key
from tidemark.ingest.messages import COLUMNS as ROW_COLUMNS
from tidemark.ingest.messages import WHOLE_MESSAGE, DecodedRows, PlacedBadRow, RowDecoder
from tidemark.ingest.partitions.arrivals import NO_ARRIVALS
from tidemark.ingest.partitions.event_times import Judged, Unfit
from tidemark.write_buffer.formats.arrow_messages import TYPES
from tidemark.write_buffer.formats.entry import BadReason, EntryFormat

COLUMNS = (*ROW_COLUMNS, "key")
UPSERT, DELETE = 1, -1
_MEMBER_TYPES = {str: pa.string(), bool: pa.bool_(), int: pa.int64()}
_NO_NUMBERS = pa.array([], pa.int64())


@dataclass(frozen=True, slots=True)
class ForeignKeys:
    """Keys whose changes are not taken from one sequencer: by number in ``index``, the sequencer that each is of."""

    index: KeyIndex
    owners: Sequence[int]

    def find(self, rows: pa.Table, key: Sequence[str]) -> list[Unfit]:
        places, numbers = self.index.find(rows)
        texts = to_rows(rows.select(list(key)).take(pa.array(places)))
        return [
            Unfit(
                int(place),
                BadReason.KEY_SPREAD,
                f"the key {key_text(values)} is that of sequencer {self.owners[number]}: the order of its changes is "
                "not defined",
            )
            for place, number, values in zip(places, numbers, texts, strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeJudge:
    """Makes changes of parsed rows; a row without a key is not one."""

    columns: Sequence[str]  # the user's
    key: Sequence[str]
    deleting: Mapping[str, pa.ChunkedArray] = field(default_factory=dict)  # by member, the values that delete the key
    deleted: pa.Array = field(default_factory=lambda: _NO_NUMBERS)  # the numbers of messages that delete theirs
    foreign: ForeignKeys | None = None

    @property
    def refuses_late(self) -> bool:
        return False

    def judge(self, rows: pa.Table, numbers: pa.Array, arrived_ms: pa.Array) -> Judged:  # noqa: ARG002
        """Return the changes; ``numbers`` are those of the rows' messages."""
        unfit = self._find_missing(rows)
        if self.foreign is not None:
            known = {row.place for row in unfit}
            unfit += [row for row in self.foreign.find(rows, self.key) if row.place not in known]
        deletes = pc.is_in(numbers, value_set=self.deleted)
        for member, values in self.deleting.items():
            deletes = pc.or_(deletes, pc.is_in(rows.column(member).combine_chunks(), value_set=values))
        diffs = pc.if_else(deletes, pa.scalar(DELETE, pa.int64()), pa.scalar(UPSERT, pa.int64()))
        changes = rows.select(list(self.columns)).append_column(DIFF, diffs)
        if unfit:
            is_fit = np.ones(rows.num_rows, dtype=np.bool_)
            is_fit[[row.place for row in unfit]] = False
            changes, numbers = changes.filter(pa.array(is_fit)), numbers.filter(pa.array(is_fit))
        return Judged(changes, sorted(unfit), NO_ARRIVALS, numbers)

    def _find_missing(self, rows: pa.Table) -> list[Unfit]:
        missing: dict[int, str] = {}
        for name in self.key:
            if rows.column(name).null_count:
                for place in pc.indices_nonzero(pc.is_null(rows.column(name))).to_pylist():
                    missing.setdefault(place, name)
        return [
            Unfit(place, BadReason.KEY_MISSING, f"column {name!r}: the key is missing")
            for place, name in missing.items()
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeDecoder:
    """Decodes for one collection."""

    rows: RowDecoder
    judge: ChangeJudge
    envelope: Envelope | None = None
    texts: frozenset[str] = frozenset()  # the key columns of strings

    @classmethod
    def of(cls, declaration: Declaration, source: BufferSource, columns: pa.Schema) -> ChangeDecoder:
        """Return the decoder for ``columns``, those of the user, all nullable."""
        delete_when = declaration.delete_when or {}
        members = [name for name in delete_when if name not in columns.names]
        wanted = pa.schema([*columns, *(pa.field(name, _MEMBER_TYPES[type(delete_when[name][0])]) for name in members)])
        deleting = {name: _parsed(wanted.field(name), values) for name, values in delete_when.items()}
        texts = frozenset(name for name in declaration.key if _is_text(columns.field(name).type))
        judge = ChangeJudge(columns=columns.names, key=declaration.key, deleting=deleting)
        return cls(rows=RowDecoder(wanted, source.table), judge=judge, envelope=source.envelope, texts=texts)

    def decode(self, messages: pa.RecordBatch, foreign: ForeignKeys | None = None) -> DecodedRows:
        """Return the changes in ``messages``, which has ``COLUMNS``, in order; those of ``foreign`` keys are bad."""
        rewritten = self._rewrite(messages)
        judge = replace(self.judge, deleted=pa.array(rewritten.deleted, pa.int64()), foreign=foreign)
        decoded = replace(self.rows, judge=judge).decode(rewritten.messages)
        return replace(decoded, bad=[rewritten.restore(placed) for placed in decoded.bad])

    def _rewrite(self, messages: pa.RecordBatch) -> _Rewritten:
        """Write tombstones and envelopes as rows, each in a message of its own; mark as bad what is no change."""
        formats, payloads = messages.column("format"), messages.column("payload")
        is_of_batch = pc.fill_null(pc.equal(formats, EntryFormat.BATCH_ROWS.value), fill_value=False)
        is_tombstone = pc.and_(pc.is_null(payloads), pc.is_valid(messages.column("key")))
        touched = pc.or_(is_tombstone, is_of_batch)
        if self.envelope is not None:
            touched = pc.or_(touched, pc.is_valid(formats))
        if not pc.any(touched).as_py():
            return _Rewritten(messages)
        rewritten = _Rewritten(messages)
        columns = [messages.column(name).to_pylist() for name in ("format", "table", "reason", "payload", "key")]
        for at, (is_touched, *message, key) in enumerate(zip(touched.to_pylist(), *columns, strict=True)):
            whole = _Part(at, *message)
            rewritten.parts += self._split(whole, key) if is_touched else [whole]
        rewritten.write()
        return rewritten

    def _split(self, whole: _Part, message_key: bytes | None) -> list[_Part]:
        """Return the changes in a message as rows of their own, in order."""
        if whole.format == EntryFormat.BATCH_ROWS.value:
            if self.rows.table is not None and whole.table not in {None, self.rows.table}:
                return [whole._replace(format=EntryFormat.JSON_ROWS.value)]  # as rows, which are of another table
            detail = "rows that were appended as a batch have no place in the order of changes"
            return [whole.as_bad(BadReason.BATCH_UNORDERED, detail, whole.payload, WHOLE_MESSAGE)]
        found = self._read(whole.payload, message_key)
        parts = []
        for place, (raw, change) in enumerate(found):
            if isinstance(change, UnknownChange):
                at = place if len(found) > 1 else WHOLE_MESSAGE
                parts.append(whole.as_bad(BadReason.CHANGE_UNKNOWN, str(change), raw, at))
            else:
                parts.append(whole.as_row(change, raw, place))
        return parts

    def _read(
        self, payload: bytes | None, message_key: bytes | None
    ) -> Sequence[tuple[bytes | None, MessageChange | UnknownChange]]:
        """Return each change in a message, or why there is none, with the bytes that its producer wrote."""
        if payload is not None:
            return read_envelopes(payload, message_key, self.judge.key, self.texts, self.judge.columns)
        try:
            return [(None, MessageChange(read_key(message_key, self.judge.key, self.texts), deletes=True))]
        except UnknownChange as error:
            return [(None, error)]


class _Part(NamedTuple):
    """A message as it came, or one change in it as a message of its own."""

    at: int  # the place of the message in its batch
    format: str | None
    table: str | None
    reason: str | None
    payload: bytes | None
    deletes: bool = False
    place: int | None = None  # of the change in its entry; None: the message is as it came
    raw: bytes | None = None  # the bytes of the change that the producer wrote
    detail: str = ""  # why there is no change

    def as_row(self, change: MessageChange, raw: bytes | None, place: int) -> _Part:
        return self._replace(
            format=EntryFormat.JSON_ROWS.value,
            table=self.table or change.table,
            reason=None,
            payload=as_payload(change),
            deletes=change.deletes,
            place=place,
            raw=raw,
        )

    def as_bad(self, reason: BadReason, detail: str, raw: bytes | None, place: int) -> _Part:
        return self._replace(format=None, reason=reason.value, payload=raw, raw=raw, detail=detail, place=place)


@dataclass(slots=True)
class _Rewritten:
    """Messages of which some are written anew; if there are parts, their places are the numbers of the messages."""

    messages: pa.RecordBatch
    parts: list[_Part] = field(default_factory=list)
    _numbers: list[int] = field(default_factory=list)  # of the messages as they came

    @property
    def deleted(self) -> list[int]:
        return [number for number, part in enumerate(self.parts) if part.deletes]

    def write(self) -> None:
        """Put the parts in the place of the messages."""
        came, at = self.messages, pa.array([part.at for part in self.parts], pa.int64())
        self._numbers = came.column("number").to_pylist()
        written = {"number": pa.array(range(len(at)), TYPES["number"])}
        for name in ("format", "table", "reason", "payload"):
            written[name] = pa.array([getattr(part, name) for part in self.parts], TYPES[name])
        arrays = [written[name] if name in written else came.column(name).take(at) for name in ROW_COLUMNS]
        self.messages = pa.RecordBatch.from_arrays(arrays, names=list(ROW_COLUMNS))

    def restore(self, placed: PlacedBadRow) -> PlacedBadRow:
        """Return a bad row with its number, its place, and the bytes that its producer wrote."""
        if not self.parts:
            return placed
        part = self.parts[placed.number]
        placed = placed._replace(number=self._numbers[part.at])
        if part.place is None:
            return placed
        return placed._replace(
            place=part.place, row=replace(placed.row, raw=part.raw, detail=part.detail or placed.row.detail)
        )


def key_text(values: Mapping[str, object]) -> str:
    """Return a key as people read it."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _parsed(field_: pa.Field, values: Sequence[object]) -> pa.ChunkedArray:
    """Return declared values as a column of rows would have them."""
    parsed = parse_rows({field_.name: values}, pa.schema([field_]), numbers=range(len(values)), text_of=lambda _at: "")
    return parsed.rows.column(field_.name)


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))
