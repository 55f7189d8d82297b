"""An append reads the newest names of batches alone, and its answers are those of all names."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa
import pytest

from tests.support.clock import SteppedClock
from tests.support.dying import Crash, dying_at
from tidemark.errors import CorruptState, RangeOverlap, UsageError
from tidemark.iceberg.shard.ledger import Range
from tidemark.write_buffer.address import parse_connection
from tidemark.write_buffer.batches import checkpoints
from tidemark.write_buffer.batches.batch_log import open_batch_log
from tidemark.write_buffer.batches.names import LoggedBatch
from tidemark.write_buffer.errors import BufferMissing, BufferUnreachable
from tidemark.write_buffer.file.log import FileLog, encode_message
from tidemark.write_buffer.formats.entry import Message
from tidemark.write_buffer.formats.json_rows import encode_json_rows
from tidemark.write_buffer.memory import MemoryState, registered
from tidemark.write_buffer.registry import find_back_end, open_reader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidemark.write_buffer.back_end import Connection

CLOCK = SteppedClock(1_000)
INTERVAL = 4


@pytest.fixture(autouse=True)
def short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "INTERVAL", INTERVAL)


@pytest.fixture
def on_disk(tmp_path: Path) -> Connection:
    made = parse_connection((tmp_path / "buffer").as_uri())
    open_reader(made, create=True).close()
    return made


@pytest.fixture(params=["memory", "file"])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    if request.param == "file":
        yield request.getfixturevalue("on_disk")
        return
    with registered("checkpoints", MemoryState(1)):
        yield parse_connection("memory:checkpoints")


def add(connection: Connection, start: int, end: int, producer: str = "p", *, collection: str = "c") -> int:
    rows = pa.table({"id": pa.array(range(start, end), pa.int64())})
    with open_batch_log(connection, collection=collection, table="t") as log:
        return log.add([rows], (producer, Range(start, end)), clock=CLOCK)


def answers(connection: Connection, end: int) -> dict[tuple[str, int, int], int | str | None]:
    """What the buffer says of ranges below ``end`` of two producers."""
    said: dict[tuple[str, int, int], int | str | None] = {}
    with open_batch_log(connection, collection="c", table="t") as log:
        for producer, start, length in product("pq", range(end), (1, 2, 4)):
            try:
                said[producer, start, start + length] = log.find(producer, Range(start, start + length))
            except RangeOverlap as error:
                said[producer, start, start + length] = str(error)
    return said


def answers_without_checkpoints(
    connection: Connection, end: int, monkeypatch: pytest.MonkeyPatch
) -> dict[tuple[str, int, int], int | str | None]:
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "INTERVAL", 1_000_000)
        return answers(connection, end)


def count_checkpoints(connection: Connection) -> int:
    try:
        with open_reader(find_back_end(connection.type).beside(connection, "batches.checkpoints")) as reader:
            return reader.fetch_high_watermark(0)
    except BufferMissing:
        return 0


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the names that were read."""
    numbers: list[int] = []
    parse = LoggedBatch.parse

    def count(number: int, fields: dict[str, object]) -> LoggedBatch:
        numbers.append(number)
        return parse(number, fields)

    monkeypatch.setattr(LoggedBatch, "parse", count)
    return numbers


def test_append_reads_no_more_names_the_more_there_are(connection: Connection, parsed: list[int]) -> None:
    for start in range(60):
        parsed.clear()
        assert add(connection, start, start + 1) == 1
        assert len(parsed) <= INTERVAL + 4, f"at {start}: its own name, and those since the checkpoint"
    assert count_checkpoints(connection) == 60 // (INTERVAL + 1)
    parsed.clear()
    assert add(connection, 17, 18) == 1, "a batch that is much older"
    assert len(parsed) <= 4 * INTERVAL
    assert count_checkpoints(connection) == 60 // (INTERVAL + 1)


def test_few_batches_need_no_checkpoint(connection: Connection) -> None:
    for start in range(INTERVAL):
        add(connection, start, start + 1)
    assert count_checkpoints(connection) == 0


def test_answers_are_those_of_all_names(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    for start, end in ((0, 2), (2, 3), (5, 9), (3, 5), (9, 10), (12, 13), (11, 12), (14, 17), (10, 11), (17, 18)):
        add(connection, start, end)
        add(connection, start, end, collection="d")
        add(connection, start // 2 * 3, start // 2 * 3 + 1, "q")
    assert count_checkpoints(connection) > 3
    said = answers(connection, 19)
    assert said == answers_without_checkpoints(connection, 19, monkeypatch)
    assert (said["p", 5, 9], said["p", 4, 6], said["p", 13, 14]) == (4, 0, None)


def test_batch_that_lost_a_race_counts_nowhere(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a batch is in the log, and its parts were faster."""
    with open_batch_log(connection, collection="c", table="t") as late:
        add(connection, 0, 2)
        add(connection, 2, 4)
        with monkeypatch.context() as patch:
            patch.setattr(type(late), "find", lambda *_: None)
            assert late.add([], ("p", Range(0, 4)), clock=CLOCK) == 0
    for start in range(4, 24):
        add(connection, start, start + 1)
    assert count_checkpoints(connection) > 1
    with open_batch_log(connection, collection="c", table="t") as log:
        assert [log.find("p", Range(*numbers)) for numbers in ((0, 4), (0, 2), (2, 4))] == [0, 2, 2]


def test_producers_of_other_collections_are_known_from_the_checkpoint(connection: Connection) -> None:
    add(connection, 0, 1, "c.p", collection="other")
    for start in range(10):
        add(connection, start, start + 1, "q")
    with pytest.raises(UsageError, match=r"'p' of 'c'"):
        add(connection, 0, 1, "p")
    with pytest.raises(UsageError, match=r"'c\.q' of 'd'"):
        add(connection, 0, 1, "c.q", collection="d")


def test_batches_of_one_long_run_get_a_checkpoint_now_and_then(connection: Connection) -> None:
    with open_batch_log(connection, collection="c", table="t") as log:
        for start in range(20):
            log.add([], ("p", Range(start, start + 1)), clock=CLOCK)
    assert count_checkpoints(connection) == 20 // (INTERVAL + 1)


def test_append_that_dies_before_its_checkpoint_leaves_it_to_the_next_one(connection: Connection) -> None:
    for start in range(INTERVAL):
        add(connection, start, start + 1)
    with dying_at("buffer-batch.after-name"), pytest.raises(Crash):
        add(connection, INTERVAL, INTERVAL + 1)
    assert count_checkpoints(connection) == 0
    assert add(connection, INTERVAL, INTERVAL + 1) == 1
    assert add(connection, INTERVAL + 1, INTERVAL + 2) == 1
    assert count_checkpoints(connection) == 1


def test_checkpoint_that_cannot_be_written_stops_no_append(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BufferUnreachable("the disk is full")

    monkeypatch.setattr(checkpoints, "open_writer", refuse)
    for start in range(INTERVAL + 1):
        assert add(connection, start, start + 1) == 1
    assert "no checkpoint was written: the disk is full" in caplog.text


def lose(folder: Path, how: str) -> None:
    beside = FileLog(folder / "batches.checkpoints" / "0")
    newest = beside.path(beside.bounds()[1] - 1)
    if how == "gone":
        shutil.rmtree(folder / "batches.checkpoints")
    elif how == "damaged":
        newest.write_bytes(newest.read_bytes()[:-1])
    elif how == "hole":
        beside.path(1).unlink()
    elif how == "of a newer program":
        beside.append(encode_message(Message.of(encode_json_rows([{"version": 2}]), 0)))
    else:
        names = FileLog(folder / "batches" / "0")
        for number in range(7, names.bounds()[1]):
            names.path(number).unlink()


@pytest.mark.parametrize("how", ["gone", "damaged", "hole", "of a newer program", "names cut"])
@pytest.mark.parametrize("and_then", [0, 12])
def test_checkpoint_that_is_lost_or_tells_of_other_names_changes_no_answer(
    on_disk: Connection, how: str, and_then: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in range(22):
        add(on_disk, start, start + 1)
    lose(Path(on_disk.place), how)
    for start in range(and_then):
        add(on_disk, 40 - start, 41 - start, "q")
        add(on_disk, 40 - start, 41 - start)
    said = answers(on_disk, 24)
    assert said == answers_without_checkpoints(on_disk, 24, monkeypatch)


def test_checkpoints_that_do_not_answer_change_no_answer(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in range(3 * INTERVAL):
        add(connection, start, start + 1)
    said = answers(connection, 3 * INTERVAL)

    def refuse(_connection: Connection) -> NoReturn:
        raise BufferUnreachable("nobody answers")

    monkeypatch.setattr(checkpoints, "open_reader", refuse)
    assert answers(connection, 3 * INTERVAL) == said
    assert add(connection, 3 * INTERVAL, 3 * INTERVAL + 1) == 1


def test_damaged_name_is_said_after_the_checkpoint_and_stops_no_append_before_it(on_disk: Connection) -> None:
    for start in range(7):
        add(on_disk, start, start + 1)
    names = FileLog(Path(on_disk.place) / "batches" / "0")
    whole = names.path(1).read_bytes()
    names.path(1).write_bytes(whole[:-1])
    assert add(on_disk, 7, 8) == 1
    names.path(6).write_bytes(names.path(6).read_bytes()[:-1])
    with pytest.raises(CorruptState, match="entry 6"):
        add(on_disk, 8, 9)


def test_checkpoint_of_a_buffer_that_was_there_before_is_not_believed(tmp_path: Path) -> None:
    folder = tmp_path / "buffer"
    made = parse_connection(folder.as_uri())
    open_reader(made, create=True).close()
    for start in range(7):
        add(made, start, start + 1)
    kept = tmp_path / "kept"
    kept.mkdir()
    for beside in ("batches", "batches.checkpoints"):
        (folder / beside).rename(kept / beside)
    shutil.rmtree(folder)
    open_reader(made, create=True).close()
    for beside in ("batches", "batches.checkpoints"):
        (kept / beside).rename(folder / beside)
    with open_batch_log(made, collection="c", table="t") as log:
        assert log.find("p", Range(0, 1)) is None
    for start in range(20):
        assert add(made, start, start + 1) == 1
    with open_batch_log(made, collection="c", table="t") as log:
        assert [log.find("p", Range(start, start + 1)) for start in range(20)] == [1] * 20
