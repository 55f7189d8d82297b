"""What tombstones and envelopes say became of a row."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidemark.ingest.latest.message_changes import (
    UNAVAILABLE,
    MessageChange,
    UnknownChange,
    as_payload,
    read_envelopes,
    read_key,
)

KEY, TEXTS = ("id",), frozenset({"name"})


def envelope(**members: object) -> bytes:
    return json.dumps(members).encode()


def read_all(payload: bytes, message_key: bytes | None = None) -> list[MessageChange | UnknownChange]:
    return [change for _, change in read_envelopes(payload, message_key, KEY, TEXTS, ("id", "name"))]


def read(payload: bytes, message_key: bytes | None = None) -> MessageChange:
    (change,) = read_all(payload, message_key)
    if isinstance(change, UnknownChange):
        raise change
    return change


@pytest.mark.parametrize("op", ["c", "r", "u"])
def test_the_row_after_is_the_row(op: str) -> None:
    change = read(envelope(before=None, after={"id": 1, "name": "a"}, op=op, source={"table": "t"}))
    assert change == MessageChange({"id": 1, "name": "a"}, deletes=False, table="t")
    assert json.loads(as_payload(change)) == {"id": 1, "name": "a"}


def test_an_envelope_may_stand_beside_its_schema() -> None:
    inner = {"before": None, "after": {"id": 1}, "op": "c"}
    assert read(envelope(schema={"type": "struct"}, payload=inner)).values == {"id": 1}
    assert read(envelope(schema=None, payload=None), b'{"id": 3}') == MessageChange({"id": 3}, deletes=True)


def test_values_that_nobody_wants_may_be_missing() -> None:
    assert read(envelope(op="u", after={"id": 1, "big": UNAVAILABLE})).values["id"] == 1


def test_a_deletion_is_by_the_row_before_or_the_key_of_the_message() -> None:
    assert read(envelope(before={"id": 1, "name": "a"}, after=None, op="d")) == MessageChange({"id": 1}, deletes=True)
    assert read(envelope(before=None, after=None, op="d"), b'{"id": 2}') == MessageChange({"id": 2}, deletes=True)


@pytest.mark.parametrize(
    ("payload", "detail"),
    [
        (envelope(op="t"), "the operation 't' does not name a row"),
        (envelope(op="c", after=None), "needs the row in 'after'"),
        (envelope(op=["u"], after={}), "does not name a row"),
        (envelope(id=1), "it has no member 'op'"),
        (envelope(op="u", after={"id": 1, "name": UNAVAILABLE}), "the values of name were not sent"),
        (envelope(op="d", before=None), "the message has no key"),
        (b"[1]", "not a JSON object"),
        (b"", "no row in place of an envelope"),
    ],
)
def test_what_is_no_change_says_why(payload: bytes, detail: str) -> None:
    with pytest.raises(UnknownChange, match=detail.replace("[", r"\[")):
        read(payload)


def test_a_message_may_have_several_envelopes_whose_key_is_none_of_theirs() -> None:
    lines = (envelope(op="c", after={"id": 1}), b"{", envelope(op="d", before=None), envelope(op="u", after={"id": 2}))
    first, second, third, unread = read_all(b"\n".join(lines), b'{"id": 1}')
    assert (first, third) == (MessageChange({"id": 1}, deletes=False), MessageChange({"id": 2}, deletes=False))
    assert "the message has no key" in str(second)
    assert "not a JSON object" in str(unread)


@pytest.mark.parametrize(
    ("raw", "key", "found"),
    [
        (b'{"id": 1}', ["id"], {"id": 1}),
        (b'{"id": 1, "at": "x", "more": 2}', ["id", "at"], {"id": 1, "at": "x"}),
        (b'{"schema": {"type": "struct"}, "payload": {"id": 1}}', ["id"], {"id": 1}),
        (b'{"schema": 1, "payload": 2}', ["schema", "payload"], {"schema": 1, "payload": 2}),
        (b'{"schema": {"type": "int64"}, "payload": 5}', ["id"], {"id": 5}),
        (b"7", ["id"], {"id": 7}),
        (b'"EWR"', ["name"], {"name": "EWR"}),
        (b"EWR", ["name"], {"name": "EWR"}),
        (b"7", ["name"], {"name": "7"}),
        (b"null", ["name"], {"name": "null"}),
    ],
)
def test_the_key_of_a_message_names_the_key_columns(raw: bytes, key: list[str], found: dict[str, Any]) -> None:
    assert read_key(raw, key, TEXTS) == found


@pytest.mark.parametrize(
    ("raw", "key"),
    [(None, ["id"]), (b"x", ["id"]), (b'{"ID": 1}', ["id"]), (b"7", ["id", "at"]), (b'{"id": 1}', ["id", "at"])],
)
def test_a_key_that_names_no_row_is_told(raw: bytes | None, key: list[str]) -> None:
    with pytest.raises(UnknownChange, match="key"):
        read_key(raw, key, TEXTS)
