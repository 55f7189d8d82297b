from __future__ import annotations

from tests.support.storage import ingestion, sink
from tidemark.frontier import EMPTY
from tidemark.storage.commands import (
    AllowCompaction,
    AllowWrites,
    Command,
    CreateIngestionDataflow,
    DropDataflow,
    InitializationComplete,
    RunIngestion,
    RunSink,
    SuspendAndRestart,
    UpdateConfiguration,
)
from tidemark.storage.history import CommandHistory, reduce, retain
from tidemark.storage.order import Row, Sender

RUN = RunIngestion("a", ingestion(1, "a", "b"))
SINK = RunSink("s", sink(), 5)


def test_reduce_drops_dropped_ingestion() -> None:
    drops = [AllowCompaction("b", EMPTY), AllowCompaction("a", EMPTY)]
    assert reduce([RUN, InitializationComplete(), *drops]) == [InitializationComplete()]


def test_reduce_keeps_compacted_ingestion() -> None:
    assert reduce([RUN, AllowCompaction("b", 4), AllowCompaction("a", 9)]) == [
        RUN,
        AllowCompaction("b", 4),
        AllowCompaction("a", 9),
    ]


def test_reduce_keeps_partially_dropped_ingestion() -> None:
    assert reduce([RUN, AllowCompaction("b", EMPTY)]) == [RUN, AllowCompaction("b", EMPTY)]


def test_ingestion_replay_preserves_latest_permission() -> None:
    altered = RunIngestion("a", ingestion(2, "a", "b"))
    commands = [RUN, AllowCompaction("a", 4), altered, AllowWrites(), AllowCompaction("a", 7), InitializationComplete()]
    assert reduce(commands) == [altered, AllowCompaction("a", 7), InitializationComplete(), AllowWrites()]


def test_reduce_drops_dropped_sink() -> None:
    assert not reduce([SINK, AllowCompaction("s", 8), AllowCompaction("s", EMPTY)])


def test_reduce_keeps_compacted_sink() -> None:
    """The compaction itself goes; else the sink of a worker that connects would begin at a time that is gone."""
    assert reduce([SINK, AllowCompaction("s", 8)]) == [RunSink("s", sink(), 8)]
    assert reduce([SINK, AllowCompaction("s", 2)]) == [SINK]


def test_reduce_drops_stray_compactions() -> None:
    assert reduce([AllowCompaction("x", 3), RUN, AllowCompaction("y", EMPTY)]) == [RUN]


def test_reduce_keeps_what_was_dropped_and_runs_again() -> None:
    drops = [AllowCompaction("b", EMPTY), AllowCompaction("a", EMPTY)]
    assert reduce([RUN, *drops, RUN, SINK, AllowCompaction("s", EMPTY), SINK]) == [RUN, SINK]


def test_reduce_merges_settings_and_puts_them_first() -> None:
    commands = [RUN, UpdateConfiguration({"x": "1", "y": "1"}), UpdateConfiguration({"x": "2"})]
    assert reduce(commands) == [UpdateConfiguration({"x": "2", "y": "1"}), RUN]


def test_a_history_stays_short_and_means_the_same() -> None:
    history, told = CommandHistory(), []
    for number in range(50):
        told += [RUN, SINK, AllowCompaction("s", number), UpdateConfiguration({"n": str(number)})]
        for command in told[-4:]:
            history.push(command)
            assert len(history.commands) <= 7
    assert reduce(history.commands) == reduce(told)


def test_the_log_retains_what_a_worker_needs_that_starts_anew() -> None:
    def create(version: int) -> CreateIngestionDataflow:
        return CreateIngestionDataflow("a", ingestion(version), 0, {})

    commands: list[Command] = [
        create(1),
        UpdateConfiguration({"x": "1", "y": "1"}),
        create(2),
        SuspendAndRestart("a", "late: the dataflow was started anew since", 0),
        UpdateConfiguration({"x": "2"}),
    ]
    rows = [Row(index, Sender("worker-0", 1), index, command) for index, command in enumerate(commands)]
    assert [row.index for row in retain(rows)] == [1, 2, 4]
    for end in (DropDataflow(("a",)), SuspendAndRestart("a", "", 2)):
        assert [row.index for row in retain([*rows, Row(5, Sender("worker-1", 1), 0, end)])] == [1, 4]
