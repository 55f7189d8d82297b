"""Messages become changes in the order of the log; what is no change is told with the bytes of its producer."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.sources.formats.buffer import BufferSource
from tidemark.iceberg.files.key_index import KeyIndex
from tidemark.iceberg.shard.column_names import DIFF
from tidemark.ingest.latest.decoding import COLUMNS, ChangeDecoder, ForeignKeys
from tidemark.write_buffer.formats.arrow_messages import MessageColumns
from tidemark.write_buffer.formats.entry import Message, Sequence, read_message

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("gone", pa.bool_())])
BATCH = (("content-type", b"application/vnd.tidemark.batch-rows; version=1"),)
OF_TABLE = (("tidemark-table", b"t"),)


def decoder(source: dict[str, Any] | None = None, **more: Any) -> ChangeDecoder:
    read = BufferSource.model_validate({"buffer": "b", **(source or {})})
    fields = {"name": "it", "kind": "latest", "schema": "id bigint, name string, gone boolean", "key": ["id"], **more}
    return ChangeDecoder.of(Declaration.model_validate({**fields, "source": read}), read, SCHEMA)


def messages(*written: Message) -> pa.RecordBatch:
    delivered = [read_message(Sequence(0, number), message) for number, message in enumerate(written)]
    return MessageColumns(0, COLUMNS).batch_of(delivered)


def row(key: bytes | None = None, headers: Any = (), **values: object) -> Message:
    return Message(json.dumps(values).encode(), headers, 5, key)


def tombstone(key: bytes | None, headers: Any = ()) -> Message:
    return Message(None, headers, 5, key)


def changes(decoded: Any) -> list[tuple[Any, ...]]:
    return [(each["id"], each["name"], each[DIFF]) for each in decoded.good.to_pylist()]


def bad(decoded: Any) -> list[tuple[int, int, str, bytes | None]]:
    return [(each.number, each.place, str(each.row.reason), each.row.raw) for each in decoded.bad]


def test_rows_that_say_so_delete_their_key() -> None:
    found = decoder(delete_when={"op": ["d", "x"], "gone": True}).decode(
        messages(
            row(id=1, name="a", op="c"),
            row(id=1, op="d"),
            row(id=2, gone=True),
            row(id=3, gone=False, op="x"),
            row(id=4, name="b"),
        )
    )
    assert changes(found) == [(1, "a", 1), (1, None, -1), (2, None, -1), (3, None, -1), (4, "b", 1)]
    assert found.good.column_names == [*SCHEMA.names, DIFF], "the member is no column"


def test_tombstones_delete_in_the_order_of_the_log() -> None:
    found = decoder().decode(
        messages(
            row(id=1, name="a"), tombstone(b'{"id":1}'), row(id=1, name="b"), tombstone(b"2"), tombstone(None),
            tombstone(b"no"), row(id=3, name="c"),
        )
    )  # fmt: skip
    assert changes(found) == [(1, "a", 1), (1, None, -1), (1, "b", 1), (2, None, -1), (3, "c", 1)]
    assert bad(found) == [(4, -1, "payload-missing", None), (5, -1, "change-unknown", None)]


def test_a_tombstone_is_of_the_table_that_its_header_names() -> None:
    found = decoder({"table": "t"}).decode(
        messages(row(id=1, _table="t"), tombstone(b"1", OF_TABLE), tombstone(b"1", (("tidemark-table", b"u"),)))
    )
    assert (changes(found), found.other_tables) == ([(1, None, 1), (1, None, -1)], 1)


def test_a_row_without_a_key_is_bad() -> None:
    found = decoder().decode(messages(row(id=None, name="a"), row(name="b"), row(id=1), tombstone(b'{"id":null}')))
    assert changes(found) == [(1, None, 1)]
    assert bad(found) == [
        (0, 0, "key-missing", b'{"id": null, "name": "a"}'),
        (1, 0, "key-missing", b'{"name": "b"}'),
        (3, 0, "key-missing", None),
    ]


def test_envelopes_are_changes() -> None:
    source = {"table": "t"}
    found = decoder({"envelope": "debezium", "table": "t"}).decode(
        messages(
            row(op="c", after={"id": 1, "name": "a"}, source=source),
            row(schema={}, payload={"op": "u", "after": {"id": 1, "name": "b"}, "source": source}),
            row(op="r", after={"id": 2, "name": "é"}, source=source),
            row(b'{"id":1}', op="d", before=None, source=source),
            tombstone(b'{"schema":{},"payload":{"id":1}}', OF_TABLE),
            row(op="c", after={"id": "x"}, source=source),
            row(op="t", source=source),
            row(op="c", after={"id": 3}, source={"table": "u"}),
        )
    )
    assert changes(found) == [(1, "a", 1), (1, "b", 1), (2, "é", 1), (1, None, -1), (1, None, -1)]
    assert found.other_tables == 1
    assert [each[:3] for each in bad(found)] == [(6, -1, "change-unknown"), (5, 0, "row-unreadable")]
    assert all(json.loads(raw or b"")["op"] in {"c", "t"} for *_, raw in bad(found)), "the bytes of the producer"


def test_a_message_of_its_own_that_is_no_change_says_why() -> None:
    unavailable = "__debezium_unavailable_value"
    for message in (row(op="t"), row(op="u", after={"id": 1, "name": unavailable}), row(id=1, name="a")):
        found = decoder({"envelope": "debezium"}).decode(messages(message))
        assert (changes(found), bad(found)) == ([], [(0, -1, "change-unknown", message.payload)])


def test_each_line_of_an_entry_may_be_an_envelope() -> None:
    lines = [
        row(op="c", after={"id": 1, "name": "a"}),
        row(op="u", after={"id": 1, "name": "b"}, source={"table": "u"}),
        row(op="t"),
        row(op="d", before={"id": 1}),
        row(op="c", after={"id": "x"}),
        row(op="c", after={"id": 2, "name": "c"}),
    ]
    entry = Message(b"\n".join(line.payload or b"" for line in lines), OF_TABLE, 5)
    found = decoder({"envelope": "debezium", "table": "t"}).decode(
        messages(row(id=5, headers=OF_TABLE), entry, Message(None, OF_TABLE, 5, None))
    )
    assert changes(found) == [(1, "a", 1), (1, "b", 1), (1, None, -1), (2, "c", 1)], "the header names the table"
    assert [each[:3] for each in bad(found)] == [
        (0, -1, "change-unknown"),
        (1, 2, "change-unknown"),
        (2, -1, "payload-missing"),
        (1, 4, "row-unreadable"),
    ]
    assert [json.loads(each[3] or b"null") for each in bad(found)[1::2]] == [
        {"op": "t"},
        {"op": "c", "after": {"id": "x"}},
    ]


def test_rows_of_appended_batches_have_no_order() -> None:
    found = decoder().decode(messages(Message(b'{"id":1}', BATCH, 5), row(id=2)))
    assert (changes(found), bad(found)) == ([(2, None, 1)], [(0, -1, "batch-unordered", b'{"id":1}')])
    assert "no place in the order" in found.bad[0].row.detail


def test_appended_batches_of_other_tables_are_no_matter_of_this_one() -> None:
    of_other = (*BATCH, ("tidemark-table", b"u"))
    found = decoder({"table": "t"}).decode(messages(Message(b'{"id":1}\n{"id":2}', of_other, 5)))
    assert (changes(found), bad(found), found.other_tables) == ([], [], 2)


def test_the_keys_of_another_sequencer_are_put_aside_row_by_row() -> None:
    index, numbers = KeyIndex.of(pa.table({"id": [7, 8]}, schema=pa.schema([("id", pa.int64())])), ["id"])
    owners = [0, 0]
    owners[numbers[1]] = 3
    written = Message(b'{"id":7,"name":"a"}\n{"id":1}\n{"id":8}\n{"name":"b"}', (), 5)
    found = decoder().decode(messages(written), ForeignKeys(index, owners))
    assert changes(found) == [(1, None, 1)]
    assert [(each.place, str(each.row.reason), each.row.raw) for each in found.bad] == [
        (0, "key-spread", b'{"id":7,"name":"a"}'),
        (2, "key-spread", b'{"id":8}'),
        (3, "key-missing", b'{"name":"b"}'),
    ]
    assert "the key id=8 is that of sequencer 3" in found.bad[1].row.detail
