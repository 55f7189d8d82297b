"""The key of a table is kept with its buffer, and no write goes past it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.clock import SteppedClock
from tidemark.errors import UsageError
from tidemark.write_buffer import keys as module
from tidemark.write_buffer.address import parse_connection
from tidemark.write_buffer.formats.decode import decode_entry
from tidemark.write_buffer.formats.entry import Row, Sequence, SequencedEntry
from tidemark.write_buffer.keys import POINTS, find_spread, keep_keys, read_keys, sequencer_of
from tidemark.write_buffer.memory import MemoryState, registered
from tidemark.write_buffer.registry import open_reader
from tidemark.write_buffer.split_files import SplitFile, split_json_rows, split_points

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tidemark.write_buffer.back_end import Connection

CLOCK = SteppedClock(1_000)
IDS = range(4)
ROWS = [{"a": number, "b": str(number % 3), "c": 1} for number in range(12)]
POINT_LINES = "w,o=EWR t=1 1\nw,o=JFK t=1 1\nw,o=LGA t=1 1\nw,o=EWR t=2 2\n"


@pytest.fixture(params=["memory", "file"])
def connection(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connection]:
    if request.param == "file":
        made = parse_connection(f"{(tmp_path / 'buffer').as_uri()}?sequencers=4")
        open_reader(made, create=True).close()
        yield made
        return
    with registered("kept", MemoryState(4)):
        yield parse_connection("memory:kept")


def test_first_word_about_a_table_counts(connection: Connection) -> None:
    assert read_keys(connection) == {}
    keep_keys(connection, {"t": ("a", "b"), "w": POINTS}, clock=CLOCK)
    keep_keys(connection, {"t": ("a", "b"), "u": ("c",)}, clock=CLOCK)
    kept = {"t": ("a", "b"), "w": POINTS, "u": ("c",)}
    assert read_keys(connection) == kept
    for other in ({"t": ("b", "a")}, {"t": POINTS}, {"w": ("a",)}):
        with pytest.raises(UsageError, match="rows of one key would go to two sequencers"):
            keep_keys(connection, other, clock=CLOCK)
    assert read_keys(connection) == kept
    with open_reader(connection) as reader:
        assert sorted(reader.sequencer_ids()) == list(IDS), "the buffer itself is what it was"


def test_writer_who_comes_second_learns_of_it(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    open_writer, others = module.open_writer, iter([{"t": ("b",)}])

    def come_second(*arguments: Any, **more: Any) -> Any:
        for other in others:
            keep_keys(connection, other, clock=CLOCK)
        return open_writer(*arguments, **more)

    monkeypatch.setattr(module, "open_writer", come_second)
    with pytest.raises(UsageError, match="keeps the key b"):
        keep_keys(connection, {"t": ("a",)}, clock=CLOCK)
    assert read_keys(connection) == {"t": ("b",)}


def split(*, key: tuple[str, ...] = (), sequencer: int | None = None, **kept: tuple[str, ...]) -> SplitFile:
    payload = "\n".join(map(json.dumps, ROWS)).encode()
    return split_json_rows(payload, IDS, table="t", key=key, sequencer_id=sequencer, kept=kept)


def placed(found: SplitFile) -> dict[int, list[Any]]:
    """The values of column ``a`` by sequencer."""
    return {
        id_: [
            row.values["a"]
            for entry in entries
            for row in decode_entry(SequencedEntry(Sequence(id_, 0), 0, entry)).good
        ]
        for id_, entries in found.entries.items()
    }


def test_kept_key_need_not_be_named() -> None:
    by_name = split(key=("a", "b"))
    assert by_name.keys == {"t": ("a", "b")}
    assert placed(split(t=("a", "b"))) == placed(by_name)
    assert placed(split(key=("a", "b"), t=("a", "b"))) == placed(by_name)


@pytest.mark.parametrize("key", [("b",), ("b", "a"), ("a",)])
def test_another_key_is_refused(key: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"keeps the key a,b for the table 't'") as caught:
        split(key=key, t=("a", "b"))
    assert "--key a,b" in caught.value.hint


def test_sequencer_does_not_go_past_a_key() -> None:
    with pytest.raises(UsageError, match="one of its rows belongs to the sequencer") as caught:
        split(sequencer=1, t=("a", "b"))
    assert "leave --sequencer out" in caught.value.hint
    assert placed(split(sequencer=1, u=("a",))) == {1: list(range(12))}, "nothing is kept for this table"
    own = sequencer_of(Row("t", {"c": 1}), {"t": ("c",)}, IDS)
    assert placed(split(sequencer=own, t=("c",))) == {own: list(range(12))}, "where they belong anyway"


def test_points_have_a_key_of_their_own() -> None:
    found = split_points(POINT_LINES.encode(), IDS, kept={})
    assert found.keys == {"w": POINTS}
    assert split_points(POINT_LINES.encode(), IDS, kept={"w": POINTS}) == found
    with pytest.raises(UsageError, match="keeps the key o for the table 'w', not the key of points"):
        split_points(POINT_LINES.encode(), IDS, kept={"w": ("o",)})
    assert split_points(POINT_LINES.encode(), IDS, sequencer_id=1, kept={}).keys == {}, "no key chose the sequencer"
    with pytest.raises(UsageError, match="belongs to the sequencer"):
        split_points(POINT_LINES.encode(), IDS, sequencer_id=1, kept={"w": POINTS})
    with pytest.raises(UsageError, match="is one of points"):
        split(t=POINTS)


def test_rows_in_the_wrong_sequencer_are_counted() -> None:
    rows = [Row("t", row) for row in ROWS]
    keys = {"t": ("a", "b")}
    right = [row for row in rows if sequencer_of(row, keys, IDS) == 2]
    assert find_spread(right, keys, IDS, sequencer_id=2).rows == 0
    found = find_spread(rows, keys, IDS, sequencer_id=2)
    assert (found.checked, found.rows) == (len(rows), len(rows) - len(right))
    assert "in sequencer 2 belongs to" in found.example
    assert find_spread(rows, {"u": ("a",)}, IDS, sequencer_id=2).checked == 0
    assert find_spread([Row("t", {"a": [1]})], {"t": ("a",)}, IDS, sequencer_id=2).rows == 1
