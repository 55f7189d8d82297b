"""Decodes messages into changes of rows: the user's columns, and `_diff`, 1 for a row as it is now, -1 for one gone.

What makes a change is either the row itself, or a tombstone, or an envelope; the latter two are written anew as JSON
rows first, so that one decoder says what fits the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.quality.row_parsing import parse_rows
from tidemark.collections.sources.formats.buffer import BufferSource, Envelope
from tidemark.iceberg.files.arrow_values import to_rows
from tidemark.iceberg.files.key_index import KeyIndex
from tidemark.iceberg.shard.column_names import DIFF
from tidemark.ingest.latest.message_changes import MessageChange, UnknownChange, as_payload, read_debezium, read_key
from tidemark.ingest.messages import COLUMNS as ROW_COLUMNS
from tidemark.ingest.messages import DecodedRows, PlacedBadRow, RowDecoder
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
        """Write tombstones and envelopes as rows; mark as bad what is neither a change nor can be ordered as one."""
        formats, payloads = messages.column("format"), messages.column("payload")
        keys = messages.column("key")
        is_entry = pc.is_valid(formats)
        is_of_batch = pc.fill_null(pc.equal(formats, EntryFormat.BATCH_ROWS.value), fill_value=False)
        is_tombstone = pc.and_(pc.is_null(payloads), pc.is_valid(keys))
        touched = pc.or_(is_tombstone, is_of_batch)
        if self.envelope is not None:
            touched = pc.or_(touched, is_entry)
        places = pc.indices_nonzero(touched).to_pylist()
        if not places:
            return _Rewritten(messages)
        values = {name: messages.column(name).to_pylist() for name in COLUMNS}
        rewritten = _Rewritten(messages)
        for place in places:
            number = values["number"][place]
            rewritten.originals[number] = values["payload"][place]
            if is_of_batch[place].as_py():
                values["reason"][place] = BadReason.BATCH_UNORDERED.value
                rewritten.details[number] = "rows that were appended as a batch have no place in the order of changes"
                continue
            try:
                change = self._read(values["payload"][place], values["key"][place])
            except UnknownChange as error:
                values["reason"][place] = BadReason.CHANGE_UNKNOWN.value
                rewritten.details[number] = str(error)
                continue
            values["payload"][place] = as_payload(change)
            values["format"][place], values["reason"][place] = EntryFormat.JSON_ROWS.value, None
            values["table"][place] = values["table"][place] or change.table
            if change.deletes:
                rewritten.deleted.append(number)
        arrays = [pa.array(values[name], TYPES[name]) for name in ROW_COLUMNS]
        rewritten.messages = pa.RecordBatch.from_arrays(arrays, names=list(ROW_COLUMNS))
        return rewritten

    def _read(self, payload: bytes | None, message_key: bytes | None) -> MessageChange:
        if payload is None:
            return MessageChange(read_key(message_key, self.judge.key, self.texts), deletes=True)
        return read_debezium(payload, message_key, self.judge.key, self.texts, self.judge.columns)


@dataclass(slots=True)
class _Rewritten:
    """Messages of which some are written anew, and what the originals of these were."""

    messages: pa.RecordBatch
    deleted: list[int] = field(default_factory=list)
    originals: dict[int, bytes | None] = field(default_factory=dict)
    details: dict[int, str] = field(default_factory=dict)  # of messages that are bad as a whole

    def restore(self, placed: PlacedBadRow) -> PlacedBadRow:
        """Return a bad row with the bytes that its producer wrote."""
        if placed.number not in self.originals:
            return placed
        detail = self.details.get(placed.number, placed.row.detail)
        return placed._replace(row=replace(placed.row, raw=self.originals[placed.number], detail=detail))


def key_text(values: Mapping[str, object]) -> str:
    """Return a key as people read it."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _parsed(field_: pa.Field, values: Sequence[object]) -> pa.ChunkedArray:
    """Return declared values as a column of rows would have them."""
    parsed = parse_rows({field_.name: values}, pa.schema([field_]), numbers=range(len(values)), text_of=lambda _at: "")
    return parsed.rows.column(field_.name)


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))
