"""Histories of statuses: compared with what is stored, across restarts, refusals, staged batches and retentions."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.discarding import discard
from tests.support.events import switch
from tests.support.statuses import NOW_MS, Status, Statuses, status_table
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.append.append import Append
from tidemark.collections.append.file import FileBatch, append_file
from tidemark.collections.append.row_writers import Appenders
from tidemark.collections.append.statuses import refuse_if_moved
from tidemark.collections.append.ways_in import Rules
from tidemark.collections.declarations.append_only import Retention, StatusHistory
from tidemark.collections.declarations.collection import OnReadOnly
from tidemark.collections.deployment import Mode
from tidemark.collections.maintenance.retain import retain
from tidemark.collections.staged.batches import BatchName
from tidemark.collections.staged.discard import Selection
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import InputsGone, ReadOnly
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.compaction import CompactionPolicy, compact
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.shards import Shards
from tidemark.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.report import CollectionReport
    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, again and again

HISTORY = StatusHistory(key=("id", "replica"), column="status", time="at")


def at(time_ms: int | None, status: str | None, id_: int | None = 1) -> Status:
    return Status(id_, None, status, time_ms)


@pytest.fixture
def statuses(home: Settings) -> Statuses:
    return Statuses(home)


class Process:
    """One process that appends statuses; another one knows nothing of what this one has seen."""

    def __init__(self, statuses: Statuses, on_read_only: OnReadOnly = OnReadOnly.STAGE) -> None:
        shards = Shards.connect(statuses.settings)
        self.appenders = Appenders(shards, deployment_of(statuses.settings), statuses.clock, producer="status")
        self.appenders.register("statuses", on_read_only=on_read_only, status=HISTORY)

    def send(self, *rows: Status) -> Outcome:
        return self.appenders.monotonic_appender("statuses").append(status_table(rows)).outcome


@pytest.fixture
def process(statuses: Statuses) -> Iterator[Process]:
    made = Process(statuses)
    yield made
    made.appenders.close()


def test_only_news_are_appended_and_every_caller_is_answered(statuses: Statuses, process: Process) -> None:
    assert process.send(at(1, "paused"), at(2, "paused"), at(3, "paused", 2)) is Outcome.APPENDED
    location = statuses.shard.load().table.metadata_location
    assert process.send(at(4, "paused")) is Outcome.APPENDED
    assert statuses.shard.load().table.metadata_location == location, "nothing was news, so nothing was written"
    assert process.send(at(5, "running"), at(6, "paused")) is Outcome.APPENDED
    assert statuses.rows() == Counter([at(1, "paused"), at(3, "paused", 2), at(5, "running"), at(6, "paused")])


def test_a_new_process_knows_the_last_status_from_the_history(statuses: Statuses, process: Process) -> None:
    statuses.append(at(9, "dropped"), at(5, "running"), at(7, "paused", None), at(7, "running", None))
    restarted = Process(statuses)
    for each in (process, restarted):
        each.send(at(10, "running"), at(10, "paused", None), at(11, "dropped", 3))
        each.send(at(12, "paused", None), at(12, "paused", 3))
    restarted.appenders.close()
    found = statuses.rows()
    assert found[at(10, "running")] == 0, "dropped at 9 is the last one, whatever stands behind it in the file"
    assert found[at(10, "paused", None)] == 1, "of equal times the second one counts"
    assert (found[at(12, "paused", None)], found[at(12, "paused", 3)]) == (0, 0)
    assert found[at(11, "dropped", 3)] == 2, "dropped after dropped is news"


def test_what_others_write_is_seen(statuses: Statuses, process: Process) -> None:
    process.send(at(1, "running"))
    statuses.append(at(2, "paused"))
    compact(Writer.join(statuses.shard, 1), policy=CompactionPolicy(min_small_files=2))
    process.send(at(3, "paused"))
    assert statuses.rows() == Counter([at(1, "running"), at(2, "paused")])
    retain(
        statuses.shard,
        Retention(last_n=1, key=("id",), order_by=("at",)),
        deployment=deployment_of(statuses.settings),
        now_ms=NOW_MS,
    )
    process.send(at(4, "paused"))
    assert statuses.rows() == Counter([at(2, "paused")])


def test_status_that_was_refused_is_news_the_next_time(statuses: Statuses) -> None:
    process = Process(statuses, OnReadOnly.REJECT)
    switch(statuses.settings, Mode.READ_ONLY)
    with pytest.raises(ReadOnly):
        process.send(at(1, "paused"))
    switch(statuses.settings, Mode.READ_WRITE)
    process.send(at(2, "paused"))
    process.appenders.close()
    assert statuses.rows() == Counter([at(2, "paused")])


def test_what_is_staged_counts_until_it_is_discarded(statuses: Statuses, process: Process) -> None:
    settings, shards = statuses.settings, Shards.connect(statuses.settings)
    switch(settings, Mode.READ_ONLY)
    assert process.send(at(1, "paused")) is Outcome.STAGED
    assert process.send(at(2, "paused")) is Outcome.APPENDED
    assert process.send(at(3, "dropped"), at(3, "running")) is Outcome.STAGED
    switch(settings, Mode.READ_WRITE)
    flush_all(shards, deployment_of(settings), [], clock=statuses.clock)
    process.send(at(4, "running"))
    assert statuses.rows() == Counter([at(1, "paused"), at(3, "dropped")])

    switch(settings, Mode.READ_ONLY)
    process.send(at(5, "paused", 2))
    discard(shards, deployment_of(settings), Selection(everything=True), who="w", why="y", clock=statuses.clock)
    switch(settings, Mode.READ_WRITE)
    process.send(at(6, "paused", 2))
    assert statuses.rows()[at(6, "paused", 2)] == 1


def append_csv(statuses: Statuses, folder: Path, number: int, *rows: str) -> CollectionReport:
    path = folder / f"{number}.csv"
    path.write_text("\n".join(["id,replica,status,at", *rows]) + "\n", encoding="utf-8")
    return append_file(
        Shards.connect(statuses.settings),
        statuses.shard,
        BatchName("p", Range(number, number + 1)),
        FileBatch(path=path, status=HISTORY),
        deployment=deployment_of(statuses.settings),
        clock=statuses.clock,
    )


def test_files_of_statuses_are_appended_once_whether_they_hold_news_or_not(statuses: Statuses, tmp_path: Path) -> None:
    first = ["1,,paused,2026-01-01 00:00:00", "1,,paused,2026-01-01 00:00:01", "2,,running,2026-01-01 00:00:00"]
    report = append_csv(statuses, tmp_path, 0, *first)
    assert (report.inserted, report.rows_source, report.details) == (2, 3, {"superseded": 1})
    report = append_csv(statuses, tmp_path, 1, "1,,paused,2026-01-02 00:00:00")
    assert (report.outcome, report.inserted, report.details) == (Outcome.APPENDED, 0, {"superseded": 1})
    assert append_csv(statuses, tmp_path, 1, "1,,paused,2026-01-02 00:00:00").outcome is Outcome.SKIPPED
    assert statuses.shard.load().state.ledgers == {"p": Ledger((Range(0, 2),))}
    switch(statuses.settings, Mode.READ_ONLY)
    assert append_csv(statuses, tmp_path, 2, "1,,paused,2026-01-03 00:00:00").outcome is Outcome.STAGED
    switch(statuses.settings, Mode.READ_WRITE)
    flush_all(Shards.connect(statuses.settings), deployment_of(statuses.settings), [], clock=statuses.clock)
    assert sum(statuses.rows().values()) == 2
    assert statuses.shard.load().state.ledgers == {"p": Ledger((Range(0, 3),))}


def test_batch_that_loses_to_another_is_compared_with_it(statuses: Statuses) -> None:
    batch = status_batch(statuses)

    def append_once() -> None:
        assert batch.look() is None
        if not statuses.rows():
            statuses.append(at(1, "paused"))  # somebody else, between the look at the history and the commit
        batch.write(status_table([at(2, "paused"), at(3, "running")]))
        batch.finish()

    batch.attempts()(append_once)
    assert statuses.rows() == Counter([at(1, "paused"), at(3, "running")])


def test_statuses_are_not_staged_beside_what_they_were_not_compared_with(
    statuses: Statuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch(statuses.settings, Mode.READ_ONLY)
    moves = iter([lambda: statuses.append(at(1, "paused"))])

    def move_then_check(*heads: ShardHead, collection: str) -> None:
        for move in moves:
            move()
        refuse_if_moved(*heads, collection=collection)

    monkeypatch.setattr("tidemark.collections.append.append.refuse_if_moved", move_then_check)
    batch = status_batch(statuses)
    assert batch.look() is None
    batch.write(status_table([at(2, "paused")]))
    with pytest.raises(InputsGone):
        batch.finish()
    assert list(statuses.shard.load().staged_branches) == [BatchName("p", Range(1, 2)).branch(1)]


def status_batch(statuses: Statuses) -> Append:
    return Append(
        shard=statuses.shard,
        name=BatchName("q", Range(0, 1)),
        deployment=deployment_of(statuses.settings),
        clock=statuses.clock,
        own=Rules.asked(status=HISTORY),
    )
