"""What a message says became of a row, where the message is not the row itself: Debezium's envelope, and tombstones.

Source: https://debezium.io/documentation/reference/stable/connectors/postgresql.html, "Data change events".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tidemark.write_buffer.formats.json_rows import decode_json_rows, parse_json

_WRAPPED = {"schema", "payload"}  # what Kafka Connect writes if its converters are told to write schemas
UNAVAILABLE = "__debezium_unavailable_value"  # in the place of a large value that an update left as it was
_UPSERTS, _DELETE = ("c", "r", "u"), "d"


class UnknownChange(ValueError):
    """A message that does not say what became of which row; the text is one sentence for a person."""


class MessageChange(NamedTuple):
    """A row as it is now, or the key columns of a row that is gone."""

    values: Mapping[str, Any]
    deletes: bool
    table: str | None = None  # that the envelope names


def read_envelopes(
    payload: bytes, message_key: bytes | None, key: Sequence[str], texts: Collection[str], columns: Iterable[str]
) -> Sequence[tuple[bytes | None, MessageChange | UnknownChange]]:
    """Return the changes in envelopes, in order, each with its bytes; what is no JSON stands last.

    An envelope may stand beside its schema. ``columns`` are those that the rows are wanted for. Other arguments as of
    ``read_key``, which finds the key of a deletion that does not tell the row before; a message of several envelopes
    has no key that is that of one of them.
    """
    decoded = decode_json_rows(payload, default_table="*")
    unread = [(row.raw, UnknownChange(row.detail)) for row in decoded.bad]
    if len(decoded.good) + len(unread) > 1:
        return [*((row.raw, _read_envelope(row.values, None, key, texts, columns)) for row in decoded.good), *unread]
    if decoded.good:
        return [(payload, _read_envelope(decoded.good[0].values, message_key, key, texts, columns))]
    return [(payload, unread[0][1] if unread else UnknownChange("no row in place of an envelope"))]


def _read_envelope(
    values: Mapping[str, Any],
    message_key: bytes | None,
    key: Sequence[str],
    texts: Collection[str],
    columns: Iterable[str],
) -> MessageChange | UnknownChange:
    try:
        return _parse_envelope(_unwrapped(values), message_key, key, texts, columns)
    except UnknownChange as error:
        return error


def _parse_envelope(
    envelope: Any, message_key: bytes | None, key: Sequence[str], texts: Collection[str], columns: Iterable[str]
) -> MessageChange:
    if envelope is None:
        return MessageChange(read_key(message_key, key, texts), deletes=True)
    if not isinstance(envelope, dict) or "op" not in envelope:
        raise UnknownChange("no envelope of Debezium: it has no member 'op'")
    source = envelope.get("source")
    table = source.get("table") if isinstance(source, dict) else None
    table = table if isinstance(table, str) else None
    if envelope["op"] in _UPSERTS:
        after = envelope.get("after")
        if not isinstance(after, dict):
            raise UnknownChange(f"the operation {envelope['op']!r} needs the row in 'after'")
        if unsent := [name for name in columns if after.get(name) == UNAVAILABLE]:
            raise UnknownChange(
                f"the values of {', '.join(unsent)} were not sent, since they did not change: have PostgreSQL send "
                "whole rows with ALTER TABLE … REPLICA IDENTITY FULL"
            )
        return MessageChange(after, deletes=False, table=table)
    if envelope["op"] != _DELETE:
        raise UnknownChange(f"the operation {envelope['op']!r} does not name a row: c, r, u and d do")
    before = envelope.get("before")
    if isinstance(before, dict) and all(name in before for name in key):
        return MessageChange({name: before[name] for name in key}, deletes=True, table=table)
    return MessageChange(read_key(message_key, key, texts), deletes=True, table=table)


def read_key(message_key: bytes | None, key: Sequence[str], texts: Collection[str]) -> dict[str, Any]:
    """Return the key columns ``key`` that a message's own key names: an object in JSON, or the value of one column.

    The object may stand beside its schema. ``texts`` are the columns of strings: what is no text in JSON is the text of
    such a column as it stands.

    Raises ``UnknownChange`` if a column is not named.
    """
    if message_key is None:
        raise UnknownChange("the message has no key, and so does not say which row is gone")
    value: Any = None
    is_json = True
    try:
        value = parse_json(message_key)
    except ValueError:
        is_json = False
    if isinstance(value, dict):
        if all(name in value for name in key):
            return {name: value[name] for name in key}
        value = _unwrapped(value)
        if isinstance(value, dict) and all(name in value for name in key):
            return {name: value[name] for name in key}
    elif len(key) == 1 and key[0] in texts and not isinstance(value, str):
        return {key[0]: message_key.decode("utf-8", errors="replace")}
    if len(key) > 1 or isinstance(value, dict) or not is_json:
        raise UnknownChange(f"the key of the message does not name the column{'s' * (len(key) > 1)} {', '.join(key)}")
    return {key[0]: value}


def as_payload(change: MessageChange) -> bytes:
    """Return the values of a change as one JSON row."""
    return json.dumps(change.values, ensure_ascii=False, separators=(",", ":")).encode()


def _unwrapped(values: Mapping[str, Any]) -> Any:
    return values["payload"] if values.keys() == _WRAPPED else values
