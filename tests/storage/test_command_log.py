"""What every log of commands promises, of the one in memory and of the real one; and what only the real one does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars
import pytest
from sqlalchemy import event

from tests.support.clock import SteppedClock
from tests.support.dying import Crash, dying_at, interrupted_at
from tests.support.storage import MemoryCommandLog, ingestion
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.deployment import Mode
from tidemark.collections.mode import set_mode
from tidemark.errors import CorruptState, FencedByEpoch, FencedByGeneration, ReadOnly, ReplacedBySuccessor, StaleState
from tidemark.iceberg.files.manifests import read_data_files
from tidemark.iceberg.log import TimedUpdate, read_changes
from tidemark.iceberg.shard.column_names import TIME
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shards import SYSTEM, Shards
from tidemark.locations import to_path
from tidemark.storage import command_log
from tidemark.storage.command_log import FAIL_POINTS, ShardCommandLog
from tidemark.storage.commands import CreateIngestionDataflow, DropDataflow
from tidemark.storage.order import Cursor, Outbox, Sender

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.table.metadata import TableMetadata

    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.settings import Settings
    from tidemark.storage.order import CommandLog

ONE, TWO, THREE = DropDataflow(("1",)), DropDataflow(("2",)), DropDataflow(("3",))


def opened(home: Settings, generation: int = 1) -> ShardCommandLog:
    """Open the log as another process does."""
    settings = replace(home, generation=generation)
    clock = SteppedClock(0)
    return ShardCommandLog.open(Shards.connect(settings), deployment=deployment_of(settings), clock=clock)


def switch(home: Settings, mode: Mode, generation: int = 1) -> None:
    settings = replace(home, generation=generation)
    set_mode(Shards.connect(settings), deployment_of(settings), mode, who="tests", why="")


def metadata_of(home: Settings) -> TableMetadata:
    return Shards.connect(home).open("storage_commands", SYSTEM).load().table.metadata


@pytest.fixture(params=["memory", "shard", pytest.param("postgres", marks=pytest.mark.postgres)])
def open_log(request: pytest.FixtureRequest) -> Callable[[], CommandLog]:
    if request.param == "memory":
        memory = MemoryCommandLog()
        return lambda: memory
    home = request.getfixturevalue("postgres_home" if request.param == "postgres" else "home")
    return lambda: opened(home)


def test_all_see_one_order_in_which_each_command_is_once(open_log: Callable[[], CommandLog]) -> None:
    log, other = open_log(), open_log()
    outbox, others = Outbox(log.join("worker-0")), Outbox(other.join("worker-1"))
    outbox.put(ONE)
    log.append(outbox.sender, 0, [ONE])  # and its answer is lost
    others.put(TWO)
    others.flush(other)
    outbox.put(THREE)
    outbox.flush(log)
    outbox.flush(log)
    log.append(outbox.sender, 1, [THREE])
    cursor = Cursor()
    rows = cursor.read(log)
    worker, neighbour = Sender("worker-0", 1), Sender("worker-1", 1)
    assert [(row.index, row.sender, row.number, row.command) for row in rows] == [
        (0, worker, 0, ONE),
        (1, neighbour, 0, TWO),
        (2, worker, 1, THREE),
    ]
    assert Cursor().read(other) == rows
    assert cursor.read(log) == []
    others.put(ONE)
    others.flush(other)
    assert [row.index for row in cursor.read(log)] == [3]
    assert len(log.read(0)) == 4, "from any index, also one that was read"


def test_another_engine_reads_the_commands_in_their_order(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # its own planner is another package
    log = opened(home)
    for name, command in (("worker-0", ONE), ("worker-1", TWO), ("worker-2", THREE)):
        outbox = Outbox(log.join(name))
        outbox.put(command)
        outbox.flush(log)
    table = polars.scan_iceberg(Shards.connect(home).open("storage_commands", SYSTEM).load().table.metadata_location)
    rows = table.sort(TIME).collect().to_dicts()
    assert [(each["key"], each["kind"], each["value"]) for each in rows] == [
        ("worker-0.1/0", "drop-dataflow", '{"ids":["1"]}'),
        ("worker-1.1/0", "drop-dataflow", '{"ids":["2"]}'),
        ("worker-2.1/0", "drop-dataflow", '{"ids":["3"]}'),
    ]


def test_a_new_life_fences_the_earlier_one(open_log: Callable[[], CommandLog]) -> None:
    log, other = open_log(), open_log()
    first = log.join("worker-0")
    log.append(first, 0, [ONE])
    second = other.join("worker-0")
    assert second == Sender("worker-0", 2)
    with pytest.raises(ReplacedBySuccessor, match=r"worker-0\.1 was replaced"):
        log.append(first, 1, [TWO])
    other.append(second, 0, [THREE])
    assert log.life_of("worker-0") == 0, "nothing was read yet"
    assert [row.command for row in Cursor().read(log)] == [ONE, THREE]
    assert log.life_of("worker-0") == 2
    other.join("worker-0")
    assert log.life_of("worker-0") == 2, "nobody was asked"
    log.read(2)
    assert log.life_of("worker-0") == 3, "also if nothing was said"
    assert log.life_of("worker-1") == 0


def test_a_gap_in_the_numbers_of_a_sender_is_refused(open_log: Callable[[], CommandLog]) -> None:
    log = open_log()
    with pytest.raises(CorruptState, match="commands 0 to 1 of worker-0"):
        log.append(log.join("worker-0"), 2, [ONE])
    assert log.read(0) == []


def test_what_comes_between_the_look_and_the_commit_gets_its_own_index(home: Settings) -> None:
    log, other = opened(home), opened(home)
    first, second = log.join("worker-0"), other.join("worker-1")
    with interrupted_at("publish.before-commit", lambda: other.append(second, 0, [ONE, TWO])) as failures:
        log.append(first, 0, [THREE])
    assert not failures
    assert [(row.index, row.command) for row in Cursor().read(log)] == [(0, ONE), (1, TWO), (2, THREE)]
    assert stray_files(home) == set(), "an attempt that lost leaves nothing"


def stray_files(home: Settings) -> set[str]:
    """Return the data files that the log does not need."""
    table = Shards.connect(home).open("storage_commands", SYSTEM).load().table
    named = {file for snapshot in table.metadata.snapshots for file in read_data_files(table.io, snapshot)}
    folder = to_path(table.location())
    assert folder is not None
    return {path.name for path in folder.rglob("*.parquet")} - {path.rpartition("/")[2] for path in named}


def test_a_life_that_begins_in_the_middle_of_an_append_fences_it(home: Settings) -> None:
    log, other = opened(home), opened(home)
    sender = log.join("worker-0")
    with interrupted_at("publish.before-commit", lambda: other.join("worker-0")), pytest.raises(ReplacedBySuccessor):
        log.append(sender, 0, [ONE])
    assert other.read(0) == []
    assert stray_files(home) == set()


def test_a_newer_deployment_fences_the_older_one_when_it_leads_and_not_before(home: Settings) -> None:
    switch(home, Mode.READ_WRITE)
    old, new = opened(home), opened(home, generation=2)
    sender = old.join("worker-0")
    for refused in (lambda: new.join("worker-0"), lambda: new.append(Sender("worker-0", 1), 0, [ONE]), new.trim):
        with pytest.raises(ReadOnly, match="deployment 2 is read-only"):
            refused()
    old.append(sender, 0, [ONE])
    assert [row.command for row in new.read(0)] == [ONE]
    switch(home, Mode.READ_WRITE, generation=2)
    for refused in (lambda: old.append(sender, 1, [TWO]), lambda: opened(home).join("worker-1"), old.trim):
        with pytest.raises(FencedByGeneration):
            refused()
    with pytest.raises(FencedByEpoch, match="the catalog"):
        new.join("worker-0")  # the catalog has another leader, whom another process follows
    assert opened(home, generation=2).join("worker-0") == Sender("worker-0", 2)


def test_a_switch_to_read_only_and_back_leaves_the_lives_as_they_were(home: Settings) -> None:
    log, other = opened(home), opened(home)
    first, second = log.join("worker-0"), other.join("worker-1")
    log.append(first, 0, [ONE])
    for _ in range(2):
        switch(home, Mode.READ_ONLY)
        for refused in (lambda: log.append(first, 1, [TWO]), lambda: other.join("worker-2"), other.trim):
            with pytest.raises(ReadOnly):
                refused()
        assert [row.command for row in opened(home).read(0)] == [ONE]
        switch(home, Mode.READ_WRITE)
    log.append(first, 1, [TWO])
    other.append(second, 0, [THREE])
    assert log.trim()
    assert [row.command for row in Cursor().read(log)] == [ONE, TWO, THREE]
    switch(home, Mode.READ_ONLY)
    switch(home, Mode.READ_WRITE)
    log.append(first, 2, [ONE])
    with pytest.raises(ReplacedBySuccessor):
        other.append(Sender("worker-0", 0), 0, [ONE])
    switch(home, Mode.READ_ONLY)
    switch(home, Mode.READ_WRITE)
    assert log.trim(), "a trim joins anew as well"


def test_a_switch_in_the_middle_of_an_append_stops_it(home: Settings) -> None:
    log = opened(home)
    sender = log.join("worker-0")
    with (
        interrupted_at("publish.before-commit", lambda: switch(home, Mode.READ_ONLY)) as failures,
        pytest.raises(ReadOnly),
    ):
        log.append(sender, 0, [ONE])
    assert not failures
    assert log.read(0) == []
    assert stray_files(home) == set()


def start(version: int) -> CreateIngestionDataflow:
    return CreateIngestionDataflow("a", ingestion(version), 0, {})


def test_a_long_log_is_trimmed_to_what_counts(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_log, "TRIM_ABOVE", 4)
    monkeypatch.setattr(command_log, "KEPT_ROWS", 3)
    monkeypatch.setattr(command_log, "KEPT_COMMITS", 2)
    log, late = opened(home), opened(home)
    sender, cursor = log.join("worker-0"), Cursor()
    for number in range(4):
        log.append(sender, number, [start(number)])
        if number == 0:
            assert len(cursor.read(late)) == 1
    log.append(sender, 4, [ONE])
    head = Shards.connect(home).open("storage_commands", SYSTEM).load()
    assert len(read_data_files(head.table.io, head.contents)) == 1
    assert [(row.index, row.command) for row in Cursor().read(late)] == [
        (1, start(1)),
        (2, start(2)),
        (3, start(3)),
        (4, ONE),
    ]
    with pytest.raises(StaleState, match="start it anew"):
        cursor.read(late)
    log.append(sender, 4, [ONE, TWO])
    assert [row.index for row in log.read(5)] == [5]


def test_a_commit_with_many_commands_makes_no_reader_start_over(
    home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_log, "TRIM_ABOVE", 2)
    monkeypatch.setattr(command_log, "KEPT_ROWS", 3)
    log, late = opened(home), opened(home)
    sender, cursor = log.join("worker-0"), Cursor()
    log.append(sender, 0, [start(1)])
    assert len(cursor.read(late)) == 1
    for number in range(3):
        log.append(sender, 1 + 20 * number, [DropDataflow((str(each),)) for each in range(20)])
    assert len(cursor.read(late)) == 60


def test_a_reader_whose_files_a_trim_removes_reads_again(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SteppedClock(2**42)
    other = ShardCommandLog.open(Shards.connect(home), deployment=deployment_of(home), clock=clock)
    log, sender = opened(home), other.join("worker-0")
    other.append(sender, 0, [start(1)])
    other.append(sender, 1, [ONE, TWO])
    trims = [other.trim]

    def read_late(head: ShardHead, **options: Any) -> list[TimedUpdate]:
        while trims:
            trims.pop()()
        return read_changes(head, **options)

    monkeypatch.setattr(command_log, "read_changes", read_late)
    assert [row.command for row in log.read(0)] == [start(1), ONE, TWO]
    file = next(iter(read_data_files(log.shard.load_table().io, log.shard.load().contents)))
    log.shard.load_table().io.delete(file)
    with pytest.raises((CorruptState, OSError)):
        log.read(0)  # nobody trimmed: the file is lost


@pytest.mark.slow
def test_the_metadata_of_a_log_that_many_wrote_to_stay_small(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_log, "TRIM_ABOVE", 10)
    monkeypatch.setattr(command_log, "KEPT_ROWS", 20)
    monkeypatch.setattr(command_log, "KEPT_MS", 0)
    clock = SteppedClock(2**42)
    log = ShardCommandLog.open(Shards.connect(home), deployment=deployment_of(home), clock=clock)
    sender = log.join("worker-0")
    most = 0
    for number in range(100):
        log.append(sender, number, [ONE])
        most = max(most, len(metadata_of(home).snapshots))
    assert most <= 20 + 10 + 4
    assert [row.index for row in Cursor().read(log)][-20:] == [*range(80, 100)]
    assert stray_files(home) == set()


def test_a_look_without_news_asks_the_catalog_one_question(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    log, other = opened(home), opened(home)
    cursor, sender = Cursor(), other.join("worker-0")
    other.append(sender, 0, [ONE])
    assert len(cursor.read(log)) == 1
    statements: list[str] = []
    event.listen(log.shard.iceberg.engine, "before_cursor_execute", lambda *said: statements.append(said[2]))
    with monkeypatch.context() as patch:
        patch.setattr(Shard, "load_table", None)  # nothing is loaded
        assert cursor.read(log) == []
        assert log.read(0) != []
    assert len(statements) == 2
    other.append(sender, 1, [TWO])
    assert [row.command for row in cursor.read(log)] == [TWO]


def test_a_trim_that_dies_leaves_the_log_as_it_is(home: Settings) -> None:
    log = opened(home)
    sender = log.join("worker-0")
    log.append(sender, 0, [start(1)])
    log.append(sender, 1, [start(2)])
    before = log.read(0)
    for point in FAIL_POINTS:
        with pytest.raises(Crash), dying_at(point):
            log.trim()
    assert opened(home).read(0) == before
    assert opened(home).trim()
    assert opened(home).read(0) == before
