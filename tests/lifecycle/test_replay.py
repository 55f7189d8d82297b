"""The table of the reference, 5.5, by its names, over a log in memory: what is there after a crash and a replay.

``1a`` is partition a of table 1 there, and one partition here. What is about files, ``replay_compacts`` and the tests
of deletes, is in ``tests/ingest/replay/test_replay_files.py``. Left out is ``test_framework_fail_*``, which tests the
reference's own step language.
"""

from __future__ import annotations

import pytest

from tests.lifecycle.memory_collection import EntryLost, MemoryCollection
from tidemark.write_buffer.errors import UnknownSequencer


def row(partition: str, time_ms: int, key: str = "k") -> tuple[str, int, str, int]:
    return (partition, time_ms, key, time_ms)


@pytest.mark.parametrize(
    ("name", "persisted"), [("two_partitions_persist_second", "2a"), ("two_partitions_persist_first", "1a")]
)
def test_replay_ok(name: str, persisted: str) -> None:
    collection = MemoryCollection()
    collection.ingest(0, row("1a", 10))
    collection.ingest(0, row("2a", 20))
    collection.make_writes_persistable()
    collection.persist(persisted)
    collection.restart()
    assert collection.partitions == [persisted], name
    collection.log.write(0, row("1b", 11))
    collection.log.write(0, row("2b", 21))
    collection.replay()
    assert collection.partitions == ["1a", "2a"], "what was never ingested is no part of the replay"
    collection.play()
    assert collection.times() == [10, 11, 20, 21]


def test_replay_ok_nothing_to_replay() -> None:
    collection = MemoryCollection()
    collection.restart()
    collection.log.write(0, row("1a", 10))
    collection.replay()
    assert collection.partitions == []
    collection.play()
    assert collection.partitions == ["1a"]


def test_replay_ok_different_sequencer_situations() -> None:
    collection = MemoryCollection(0, 1, 2)
    collection.ingest(1, row("1a", 10))
    collection.ingest(2, row("1a", 11))
    collection.ingest(2, row("2a", 20))
    collection.make_writes_persistable()
    collection.persist("1a")
    collection.restart()
    collection.log.write(0, row("1b", 12))
    collection.replay()
    assert collection.times("1a") == [10, 11]
    assert collection.times("2a") == [20]
    assert collection.partitions == ["1a", "2a"]
    collection.play()
    assert collection.times("1b") == [12]


def test_replay_ok_interleaved_writes() -> None:
    collection = MemoryCollection()
    written = 0
    for round_, persisted in enumerate([["a"], ["a"], ["b"], ["a", "b"]]):
        before = collection.times()
        collection.play()
        collection.ingest(0, row("a", 10 * round_))
        collection.ingest(0, row("b", 10 * round_ + 1))
        written += 2
        collection.make_writes_persistable()
        collection.persist(*persisted)
        collection.restart()
        assert len(collection.rows) < written or persisted == ["a", "b"]
        collection.log.write(0)  # an entry without rows, which nobody has ingested
        collection.replay()
        assert collection.times() == sorted([*before, 10 * round_, 10 * round_ + 1])
    collection.restart()
    assert len(collection.rows) == 8, "all is persisted: nothing needs a replay"


def test_replay_prune_full_partition() -> None:
    collection = MemoryCollection()
    collection.ingest(0, row("2a", 20))
    collection.ingest(0, row("1a", 10))
    collection.make_writes_persistable()
    collection.persist("1a")
    collection.restart()
    collection.replay()
    assert [each.partition for each in collection.open] == ["2a"], "nothing of 1a comes twice"


def test_replay_prune_some_sequences_partition() -> None:
    collection = MemoryCollection()
    collection.ingest(0, row("2a", 0))
    collection.ingest(0, row("1a", 0))
    collection.make_writes_persistable()
    collection.persist("1a")
    collection.ingest(0, row("1a", 10))
    collection.ingest(0, row("3a", 10))
    collection.make_writes_persistable()
    collection.persist("3a")
    collection.restart()
    collection.replay()
    assert [(each.partition, each.time_ms) for each in collection.open] == [("2a", 0), ("1a", 10)]


def test_replay_prune_rows() -> None:
    collection = MemoryCollection()
    collection.ingest(0, row("1a", 10, "one"))
    collection.make_writes_persistable()
    collection.ingest(0, row("1a", 10, "two"), row("1a", 30, "three"))
    collection.persist("1a")
    assert [each.key for each in collection.open] == ["three"]
    collection.restart()
    assert collection.times() == [10, 10]
    collection.replay()
    assert [each.key for each in collection.open] == ["three"], "row by row"


@pytest.mark.parametrize("is_in_order", [True, False])
def test_replay_works_with_checkpoints_all_full_persisted_1(*, is_in_order: bool) -> None:
    collection = MemoryCollection()
    collection.ingest(0, row("b", 10))
    collection.ingest(0, row("a", 20))
    collection.make_writes_persistable()
    collection.persist("a", "b")
    collection.files = collection.files if is_in_order else collection.files[::-1]
    collection.restart()
    collection.replay()
    assert (collection.partitions, collection.open) == (["a", "b"], [])


def test_replay_works_with_checkpoints_all_full_persisted_2() -> None:
    collection = MemoryCollection()
    collection.log.write(0, number=0)
    collection.ingest(0, row("b", 10))
    collection.ingest(0, row("a", 20))
    collection.make_writes_persistable()
    collection.persist("b")
    collection.ingest(0, row("b", 30))
    collection.make_writes_persistable()
    collection.persist("a")
    collection.files.reverse()
    collection.restart()
    collection.replay()
    assert (collection.times("a"), collection.times("b")) == ([20], [10, 30])


@pytest.mark.parametrize("with_late_row", [False, True])
def test_replay_works_partially_persisted(*, with_late_row: bool) -> None:
    collection = MemoryCollection()
    collection.log.write(0, number=0)
    collection.ingest(0, row("a", 10, "one"))
    collection.make_writes_persistable()
    collection.ingest(0, row("a", 10, "two"))
    collection.persist("a")
    collection.ingest(0, row("b", 30))
    collection.make_writes_persistable()
    if with_late_row:
        collection.ingest(0, row("b", 40))
    collection.persist("b")
    collection.restart()
    collection.replay()
    assert collection.times() == ([10, 10, 30, 40] if with_late_row else [10, 10, 30])
    assert collection.plan is not None
    assert not collection.plan.warnings


def test_replay_works_after_skip() -> None:
    collection = MemoryCollection()
    collection.log.write(0, number=0)
    collection.ingest(0, row("a", 10))
    collection.make_writes_persistable()
    collection.ingest(0, row("a", 20))
    collection.persist("a")
    collection.restart()
    collection.skip_replay()
    collection.ingest(0, row("b", 30))
    collection.make_writes_persistable()
    collection.persist("b")
    collection.restart()
    collection.replay()
    assert collection.times() == [10, 30], "20 is lost by choice"
    assert collection.plan is not None
    assert "was a replay skipped?" in collection.plan.warnings[0]


@pytest.mark.parametrize(("name", "is_skipped", "rows"), [("replay", False, 4), ("skip_replay", True, 3)])
def test_initializes_max_seen_sequence_numbers(*, name: str, is_skipped: bool, rows: int) -> None:
    collection = MemoryCollection(0, 1)
    go_on = collection.skip_replay if is_skipped else collection.replay
    collection.ingest(0, row("b", 10))
    collection.ingest(0, row("a", 20))
    collection.make_writes_persistable()
    collection.persist("a")
    collection.restart()
    go_on()
    collection.ingest(1, row("a", 30))
    collection.ingest(0, row("b", 40))
    collection.make_writes_persistable()
    collection.persist("a")
    collection.restart()
    collection.replay()
    assert len(collection.rows) == rows, name
    assert [file.rows[0].partition for file in collection.files] == ["a", "a"]
    assert {each.partition for each in collection.open} == {"b"}, "no ghost of a comes back"


def test_replay_after_drop() -> None:
    collection = MemoryCollection()
    collection.ingest(0, row("a", 10))
    collection.ingest(0, row("b", 20))
    collection.make_writes_persistable()
    collection.persist("b")
    collection.drop("b")
    collection.restart()
    collection.replay()
    assert collection.partitions == ["a"], "what was dropped stays dropped"
    collection.ingest(0, row("b", 30))
    assert collection.times("b") == [30]


def persisted_after_two() -> MemoryCollection:
    """Return a collection that lacks entry 0 and entry 1, which the database checkpoint knows."""
    collection = MemoryCollection(0)
    collection.ingest(0, row("b", 10))
    collection.ingest(0, row("a", 20))
    collection.make_writes_persistable()
    collection.persist("a")
    collection.restart()
    return collection


def test_replay_fail_sequencers_change() -> None:
    collection = persisted_after_two()
    collection.log.entries = {1: collection.log.entries[0]}
    collection.log.earliest = {1: 0}
    with pytest.raises(UnknownSequencer, match="has no sequencer 0"):
        collection.replay()


def test_replay_fail_lost_entry() -> None:
    collection = persisted_after_two()
    collection.log.write(0, row("a", 30))
    del collection.log.entries[0][1]
    with pytest.raises(EntryLost, match="for sequencer 0 expected to find sequence 1 but replay jumped to 2"):
        collection.replay()


def test_seek_to_end_works() -> None:
    collection = MemoryCollection(0, 1, 2)
    for sequencer, count in ((0, 4), (1, 2)):
        for number in range(count):
            collection.log.write(sequencer, row("a", number))
    collection.skip_replay()
    for sequencer, time_ms in ((0, 4), (1, 19), (2, 20)):
        collection.log.write(sequencer, row("a", time_ms))
    collection.play()
    assert collection.times() == [4, 19, 20]


def test_a_write_between_handle_and_commit_is_replayed() -> None:
    """Hazard 1 of the reference, §8: the two checkpoints of a persist must come from one snapshot."""
    collection = MemoryCollection()
    collection.ingest(0, row("P", 10))
    collection.make_writes_persistable()
    checkpoints = collection.start_persist("P")
    assert checkpoints is not None
    collection.ingest(0, row("P", 11))
    collection.ingest(0, row("Q", 12))
    collection.finish_persist(checkpoints)
    collection.restart()
    collection.replay()
    collection.play()
    assert collection.times() == [10, 11, 12]


def test_after_a_replay_that_brought_nothing_back_nobody_warns() -> None:
    """Found at random: windows know less than rows, so a checkpoint lacked entry 1, whose only row was persisted."""
    collection = MemoryCollection(0, 1)
    collection.ingest(0, row("a", 0))
    collection.make_writes_persistable()
    collection.ingest(1, row("a", 1))
    collection.ingest(0, row("a", 0, "late"))
    collection.persist("a")
    collection.restart()
    collection.replay()
    collection.ingest(0, row("b", 0))
    collection.make_writes_persistable()
    collection.persist("b")
    collection.restart()
    collection.replay()
    assert collection.times() == [0, 0, 0, 1]
    assert collection.plan is not None
    assert not collection.plan.warnings
