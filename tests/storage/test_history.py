from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.storage.search import play_randomly, random_script
from tests.support.exploration import is_soak
from tests.support.storage import Cluster, ingestion, sink
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
from tidemark.storage.effects import Configure
from tidemark.storage.history import CommandHistory, reduce, retain
from tidemark.storage.order import CONTROLLER, Row, Sender
from tidemark.storage.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def test_the_log_retains_of_the_controller_what_counts() -> None:
    altered, last = RunIngestion("a", ingestion(2, "a", "b")), UpdateConfiguration({"x": "2"})
    lives: list[tuple[int, Command]] = [
        (1, RUN),
        (1, InitializationComplete()),
        (2, SINK),  # and that life ended
        (3, RUN),
        (3, SINK),
        (3, UpdateConfiguration({"x": "1"})),
        (3, InitializationComplete()),
        (3, AllowWrites()),
        (3, AllowCompaction("s", 9)),
        (3, AllowCompaction("b", 4)),
        (3, altered),
        (3, last),
        (3, RunSink("t", sink(), 0)),
        (3, AllowCompaction("t", 2)),
        (3, AllowCompaction("t", EMPTY)),
        (3, AllowCompaction("b", EMPTY)),
        (4, SINK),
        (5, RUN),
    ]
    rows = [Row(index, Sender(CONTROLLER, life), index, command) for index, (life, command) in enumerate(lives)]
    assert [row.index for row in retain(rows)] == [4, 6, 7, 8, 10, 11, 15, 17]
    assert reduce([lives[index][1] for index in (4, 6, 7, 8, 10, 11, 15)]) == reduce(
        [command for life, command in lives if life == 3]
    )


@pytest.mark.parametrize("seed", range(1000 if is_soak() else 60))
def test_a_trimmed_log_means_the_same_to_a_new_life(seed: int) -> None:
    cluster, draw = Cluster(random_script(seed)), random.Random(seed)  # noqa: S311 -- not a secret
    play_randomly(cluster, seed)
    rows = list(with_more(cluster.log.rows, draw))
    cut = draw.randint(0, len(rows))
    trimmed = [*retain(rows[:cut]), *rows[cut:]]
    assert retain(trimmed) == retain(rows)
    for index in range(2):
        whole, short = Worker(index), Worker(index)
        effects = [each for each in whole.replay(rows) if not isinstance(each, Configure)]
        assert [each for each in short.replay(trimmed) if not isinstance(each, Configure)] == effects
        for worker in (whole, short):
            worker.uppers.clear()  # in a new life they are those of dataflows that never ran
            worker._statuses.clear()  # those of dataflows that were suspended are trimmed
            worker._new_statuses.clear()
        assert short == whole


def with_more(rows: list[Row], draw: random.Random) -> Iterator[Row]:
    """Add, to what a ``Cluster`` does, settings and compactions; there are ten times as many indexes."""
    running: dict[tuple[int, str], None] = {}  # by life and id; no controller compacts anything else
    for row in rows:
        command = row.command
        if isinstance(command, RunIngestion | RunSink):
            running[row.sender.life, command.id] = None
        if isinstance(command, AllowCompaction):
            running.pop((row.sender.life, command.id), None)
        if isinstance(command, SuspendAndRestart):
            command = replace(command, started_at=10 * command.started_at)
        index = 10 * row.index
        yield replace(row, index=index, command=command)
        if draw.random() < 0.3:
            yield replace(row, index=index + 1, command=UpdateConfiguration({draw.choice("xy"): draw.choice("12")}))
        if row.external is not None and draw.random() < 0.3:
            ids = [id_ for life, id_ in running if life == row.sender.life]
            more = [AllowCompaction(id_, draw.randint(0, 9)) for id_ in ids]
            yield replace(row, index=index + 2, command=draw.choice([*more, AllowWrites()]))
