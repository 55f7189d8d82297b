"""What only the file buffer has: files that vanish or rot, other processes, and disks that refuse."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.buffers import entry, take, take_entries
from tests.support.clock import SteppedClock
from tidemark.errors import ConfigurationInvalid
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.write_buffer.errors import AfterWatermark, BufferUnreachable, NoLongerExists
from tidemark.write_buffer.file import buffer as file
from tidemark.write_buffer.file import folder as file_folder
from tidemark.write_buffer.file import log as file_log
from tidemark.write_buffer.file.buffer import FileReader, FileWriter
from tidemark.write_buffer.file.folder import open_folder
from tidemark.write_buffer.file.log import decode_message, encode_message
from tidemark.write_buffer.formats.entry import BadMessage, BadReason, Message, Sequence, SequencedEntry
from tidemark.write_buffer.ranges import iterate_range
from tidemark.write_buffer.reader import Position, check_range_start

if TYPE_CHECKING:
    from pathlib import Path

AT = Sequence(0, 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    open_folder(tmp_path / "buffer", sequencers=1)
    return tmp_path / "buffer"


def store(root: Path, *texts: str) -> list[int]:
    writer = FileWriter(open_folder(root), clock=SteppedClock(7))
    return [writer.store_entry(entry(text), 0).sequence.number for text in texts]


def remove(root: Path, *numbers: int) -> None:
    for number in numbers:
        open_folder(root).logs[0].path(number).unlink()


def test_ignores_missing_files_multi(root: Path) -> None:
    store(root, *"1234")
    remove(root, 1, 2)
    with FileReader(open_folder(root)).streams() as streams:
        assert take_entries(streams[0], 2) == [entry("1"), entry("4")]
        assert streams[0].take(1) == []


def test_ignores_missing_files_single(root: Path) -> None:
    store(root, *"12")
    remove(root, 0)
    with FileReader(open_folder(root)).streams() as streams:
        assert take_entries(streams[0], 1) == [entry("2")]


def test_what_vanished_before_the_first_file_may_be_a_loss(root: Path) -> None:
    store(root, *"012")
    reader = FileReader(open_folder(root))
    with reader.streams() as streams:
        take(streams[0], 1)
        remove(root, 0, 1)
        with pytest.raises(NoLongerExists, match="the earliest is 2"):
            streams[0].take(1)
    reader.seek(0, 2)
    with reader.streams() as streams:
        assert take_entries(streams[0], 1) == [entry("2")]


def test_expired_numbers_are_not_given_again_and_readers_behind_are_told(root: Path) -> None:
    store(root, *"012")
    behind = FileReader(open_folder(root))
    with behind.streams() as streams:
        take(streams[0], 1)
    slow = FileWriter(open_folder(root), clock=SteppedClock())
    slow.store_entry(entry("3"), 0)  # this writer looks for a free number from 4 on
    store(root, "4", "5")
    assert open_folder(root).logs[0].expire(100) == 6
    reader = FileReader(open_folder(root))
    assert (reader.fetch_earliest(0), reader.fetch_high_watermark(0)) == (6, 6)
    assert slow.store_entry(entry("6"), 0).sequence.number == 6
    assert store(root, "7") == [7]
    with reader.streams() as streams:
        assert take_entries(streams[0], 2) == [entry("6"), entry("7")]
    with behind.streams() as streams, pytest.raises(NoLongerExists, match="up to 5 entries are lost"):
        streams[0].take(1)
    assert open_folder(root).logs[0].expire(3) == 0, "the floor never falls"
    assert reader.fetch_earliest(0) == 6


def test_a_buffer_that_was_made_anew_is_noticed(root: Path) -> None:
    store(root, *"012")
    reader = FileReader(open_folder(root))
    with reader.streams() as streams:
        take(streams[0], 3)
    identity = reader.identity
    shutil.rmtree(root)
    assert open_folder(root, sequencers=1).identity != identity
    with reader.streams() as streams, pytest.raises(AfterWatermark, match=r"number 3 .* lies after its watermark 0"):
        streams[0].take(1)


def test_positions_are_checked_against_what_the_log_holds() -> None:
    for start in (3, 4, 5):
        check_range_start(0, start, earliest=3, watermark=5, buffer="b")
    with pytest.raises(NoLongerExists, match="3 entries are lost"):
        check_range_start(0, 0, earliest=3, watermark=5, buffer="b")
    with pytest.raises(AfterWatermark):
        check_range_start(0, 6, earliest=3, watermark=5, buffer="b")
    sought = Position()
    sought.seek(6)
    sought.check(0, earliest=3, watermark=5, buffer="b")  # it was asked for


@pytest.mark.parametrize(
    "message",
    [
        Message(b"a\n\nb\0\xff", (("A", bytes(range(256))), ("é", b"")), 129),
        Message(b"", (("content-type", b"application/json"),), 0),
    ],
)
def test_a_message_file_holds_everything(message: Message) -> None:
    delivered = decode_message(AT, encode_message(message))
    assert isinstance(delivered, SequencedEntry)
    assert (delivered.entry.payload, delivered.time_ms) == (message.payload, message.time_ms)
    assert delivered.entry.headers == tuple(pair for pair in message.headers if pair[0] != "content-type")


def test_foreign_and_damaged_files_are_bad_messages() -> None:
    whole = encode_message(Message(b"payload", (), 7))
    cases = {
        encode_message(Message(None, (), 7)): BadReason.PAYLOAD_MISSING,
        encode_message(Message(b"{}", (), None)): BadReason.TIMESTAMP_MISSING,
        encode_message(Message(b"", (("content-type", b"x/y"),), 7)): BadReason.FORMAT_UNKNOWN,
        whole.replace(b'"version":1', b'"version":2'): BadReason.FORMAT_UNKNOWN,
        whole[:-1]: BadReason.DAMAGED,
        whole.replace(b"payload", b"paxload"): BadReason.DAMAGED,
        b"": BadReason.DAMAGED,
        b"[]\n": BadReason.DAMAGED,
        b'{"version":1}\n': BadReason.DAMAGED,
        b"\xff\xfe\n": BadReason.DAMAGED,
    }
    for content, reason in cases.items():
        delivered = decode_message(AT, content)
        assert isinstance(delivered, BadMessage), content
        assert delivered.reason is reason
        if reason is BadReason.DAMAGED:
            assert delivered.message.payload == content, "the quarantine gets every byte"


def test_many_large_entries_are_not_held_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "TAKE_BYTES", 500)
    numbers = store(root, *["x" * 200] * 6)
    with FileReader(open_folder(root)) as reader:
        taken = [[each.sequence.number for each in some] for some in iterate_range(reader, 0, 0, 6)]
    assert [number for some in taken for number in some] == numbers
    assert max(map(len, taken)) < len(numbers)


@pytest.mark.parametrize("name", ["2026", "9" * 26, "notes"])
def test_files_of_others_are_no_entries(root: Path, name: str) -> None:
    log = open_folder(root).logs[0]
    (log.folder / name).write_text("put here by hand")
    assert log.bounds() == (0, 0)


def test_a_damaged_file_does_not_stop_the_stream(root: Path) -> None:
    store(root, *"01")
    open_folder(root).logs[0].path(0).write_bytes(b"\0" * 10)
    with FileReader(open_folder(root)).streams() as streams:
        bad, good = take(streams[0], 2)
    assert isinstance(bad, BadMessage)
    assert isinstance(good, SequencedEntry)


def test_another_folder_is_not_taken_for_a_buffer(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious", encoding="utf-8")
    with pytest.raises(ConfigurationInvalid, match="is no file buffer and not empty"):
        open_folder(tmp_path, sequencers=1)
    (tmp_path / "buffer.json").write_text('{"version": 9, "identity": "x", "sequencers": 1}', encoding="utf-8")
    with pytest.raises(ConfigurationInvalid, match="has version 9, this process knows 1"):
        open_folder(tmp_path)
    (tmp_path / "buffer.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ConfigurationInvalid, match="is not that of a file buffer"):
        open_folder(tmp_path)


def test_a_disk_that_refuses_is_unreachable(root: Path) -> None:
    folder = open_folder(root)
    shutil.rmtree(root / "0")
    with pytest.raises(BufferUnreachable, match="does not answer"):
        FileWriter(folder, clock=SteppedClock()).store_entry(entry("1"), 0)
    with pytest.raises(BufferUnreachable, match="does not answer"):
        FileReader(folder).fetch_high_watermark(0)


PROGRAM = """
import sys
from pathlib import Path
from tidemark.clock import SystemClock
from tidemark.write_buffer.file.buffer import FileWriter
from tidemark.write_buffer.file.folder import open_folder
from tests.support.buffers import entry
writer = FileWriter(open_folder(Path(sys.argv[1]), sequencers=1), clock=SystemClock())
for number in range(int(sys.argv[3])):
    print(writer.store_entry(entry(f"{sys.argv[2]}/{number}"), 0).sequence.number, flush=True)
"""


def run(root: Path, name: str, count: int, **environ: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(root), name, str(count)]
    return subprocess.Popen(command, env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True)


@pytest.mark.crash
def test_processes_never_share_a_number_and_each_keeps_its_order(tmp_path: Path) -> None:
    root = tmp_path / "buffer"
    processes = [run(root, name, 60) for name in "abc"]
    with FileReader(open_folder(root, sequencers=1)).streams() as streams:  # which they also make at the same time
        delivered = take(streams[0], 180)  # while they write
        told = [[int(line) for line in process.communicate()[0].split()] for process in processes]
        assert streams[0].take(1) == []
    assert [process.returncode for process in processes] == [0, 0, 0]
    stored = {each.sequence.number: each.entry for each in delivered if isinstance(each, SequencedEntry)}
    assert sorted(stored) == list(range(180))
    for name, numbers in zip("abc", told, strict=True):
        assert numbers == sorted(numbers)
        assert [stored[number] for number in numbers] == [entry(f"{name}/{place}") for place in range(60)]


@pytest.mark.crash
@pytest.mark.parametrize("point", [f"{point}:2" for point in file_log.FAIL_POINTS[:2]])
def test_a_killed_writer_leaves_whole_entries_only(point: str, tmp_path: Path) -> None:
    root = tmp_path / "buffer"
    killed = run(root, "a", 3, TIDEMARK_FAIL_POINT=point)
    acknowledged = len(killed.communicate()[0].split())
    assert (killed.returncode, acknowledged) == (FAIL_POINT_EXIT, 1)
    again = run(root, "b", 2)
    again.communicate()
    committed = 2 if "after" in point else 1
    expected = Counter([*[entry("a/0"), entry("a/1")][:committed], entry("b/0"), entry("b/1")])
    with FileReader(open_folder(root)).streams() as streams:
        assert Counter(take_entries(streams[0], sum(expected.values()))) == expected
        assert streams[0].take(1) == []


@pytest.mark.crash
def test_a_killed_creation_leaves_nothing_half_made(tmp_path: Path) -> None:
    (point,) = file_folder.FAIL_POINTS
    killed = run(tmp_path / "buffer", "a", 1, TIDEMARK_FAIL_POINT=point)
    killed.communicate()
    assert killed.returncode == FAIL_POINT_EXIT
    assert not (tmp_path / "buffer").exists()
    assert run(tmp_path / "buffer", "a", 1).communicate()[0] == "0\n"


@pytest.mark.crash
def test_a_killed_retention_has_raised_the_floor_first(root: Path) -> None:
    store(root, *"012")
    program = f"from pathlib import Path; from tidemark.write_buffer.file.folder import open_folder; \
open_folder(Path({str(root)!r})).logs[0].expire(2)"
    environ = {**os.environ, "TIDEMARK_FAIL_POINT": file_log.FAIL_POINTS[-1]}
    killed = subprocess.run([sys.executable, "-c", program], env=environ, check=False)
    assert killed.returncode == FAIL_POINT_EXIT
    reader = FileReader(open_folder(root))
    assert (reader.fetch_earliest(0), reader.fetch_high_watermark(0)) == (2, 3)
    with reader.streams() as streams:
        assert take_entries(streams[0], 1) == [entry("2")], "what is below the floor is gone, removed or not"
    assert open_folder(root).logs[0].expire(2) == 2
