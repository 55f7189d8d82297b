"""What a flush publishes: everything that this deployment staged, once, in one commit per collection."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.damage import damage_metadata
from tests.support.events import CLOCK, append_numbers, create_events, numbers, switch, visible
from tests.support.rows import SCHEMA, local_path
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.deployment import Mode
from tidemark.collections.staged.batches import list_batches
from tidemark.collections.staged.flush import flush, flush_all
from tidemark.errors import FencedByEpoch, FencedByGeneration, ReadOnly, UnknownCollection
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.shards import Shards
from tidemark.report import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.report import Report
    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, again and again


@pytest.fixture
def events(home: Settings) -> Shard:
    return create_events(home)


def flush_now(settings: Settings, *names: str) -> Report:
    return flush_all(Shards.connect(settings), deployment_of(settings), names, clock=CLOCK)


def stage_numbers(shard: Shard, settings: Settings, *ranges: tuple[int, int], producer: str = "p") -> None:
    switch(settings, Mode.READ_ONLY)
    for start, end in ranges:
        assert append_numbers(shard, settings, start, end, producer=producer).outcome is Outcome.STAGED
    switch(settings, Mode.READ_WRITE)


def data_files(settings: Settings, shard: Shard) -> set[Path]:
    return set((settings.home / "warehouse" / "collections" / shard.name / "data").rglob("*.parquet"))


def test_all_batches_become_visible_in_one_commit(events: Shard, home: Settings) -> None:
    stage_numbers(events, home, (4, 6), (0, 2), (2, 4))
    stage_numbers(events, home, (0, 1), producer="b")
    before = events.load()
    report = flush_now(home)
    head = events.load()
    assert head.main.parent_snapshot_id == before.main.snapshot_id
    assert len(head.table.metadata.snapshots) == len(before.table.metadata.snapshots) + 1
    assert visible(events) == Counter([*numbers(0, 6), *numbers(0, 1, "b")])
    assert head.state.ledgers == {"p": Ledger((Range(0, 6),)), "b": Ledger((Range(0, 1),))}
    assert (head.staged_branches, head.state.token.epoch) == ({}, before.state.token.epoch + 1)
    shown = report.to_json()["collections"]["events"]
    assert (report.exit_code, shown["outcome"], shown["batches"], shown["inserted"]) == (ExitCode.OK, "flushed", 4, 7)
    assert shown["details"]["ranges"] == {"b": [[0, 1]], "p": [[0, 6]]}


def test_rerun_finds_nothing_to_do(events: Shard, home: Settings) -> None:
    stage_numbers(events, home, (0, 2))
    flush_now(home)
    before = events.load()
    assert flush_now(home).collections == {}
    assert flush_now(home, "events").collections["events"].outcome is Outcome.UNCHANGED
    assert events.load().table.metadata_location == before.table.metadata_location


def test_writer_that_joined_before_the_flush_is_fenced(events: Shard, home: Settings) -> None:
    stage_numbers(events, home, (0, 2))
    writer = Writer.join(events, 1)
    flush_now(home)
    upper = events.load().state.upper
    assert isinstance(upper, int)
    with pytest.raises(FencedByEpoch):
        writer.advance(lower=upper, new_upper=upper + 1)


def test_read_only_deployment_flushes_nothing(events: Shard, home: Settings) -> None:
    stage_numbers(events, home, (0, 2))
    switch(home, Mode.READ_ONLY)
    before = events.load()
    with pytest.raises(ReadOnly) as caught:
        flush_now(home)
    assert caught.value.exit_code == ExitCode.FENCED
    with pytest.raises(ReadOnly):
        flush(Shards.connect(home), events, deployment_of(home), clock=CLOCK)
    assert events.load().table.metadata_location == before.table.metadata_location


def test_deployment_that_a_newer_one_replaced_flushes_nothing(events: Shard, home: Settings) -> None:
    stage_numbers(events, home, (0, 2))
    switch(replace(home, generation=2), Mode.READ_WRITE)
    before = events.load()
    with pytest.raises(FencedByGeneration):
        flush_now(home)
    assert events.load().table.metadata_location == before.table.metadata_location
    assert [each.generation for each in list_batches(Shards.connect(home), [])] == [1]


def test_range_that_was_published_meanwhile_loses_its_branch_alone(events: Shard, home: Settings) -> None:
    newer = replace(home, generation=2)
    switch(home, Mode.READ_WRITE)
    append_numbers(events, newer, 0, 3)
    append_numbers(events, home, 0, 3)
    switch(newer, Mode.READ_WRITE)
    report = flush_now(newer).collections["events"]
    assert (report.outcome, report.details) == (Outcome.UNCHANGED, {"already_published": ["p 0:3"]})
    assert visible(events) == Counter(numbers(0, 3))
    assert events.load().staged_branches == {}


def test_range_that_was_published_in_part_stays_staged_and_is_reported(events: Shard, home: Settings) -> None:
    newer = replace(home, generation=2)
    switch(home, Mode.READ_WRITE)
    append_numbers(events, newer, 0, 3)
    append_numbers(events, newer, 7, 9)
    append_numbers(events, home, 2, 5)
    switch(newer, Mode.READ_WRITE)
    report = flush_now(newer).collections["events"]
    assert (report.outcome, report.exit_code) == (Outcome.FLUSHED, ExitCode.REFUSED)
    assert "[0, 3)" in report.error.message
    assert "[2, 5)" in report.error.message
    assert visible(events) == Counter([*numbers(2, 5), *numbers(7, 9)])
    assert [each.name.range for each in list_batches(Shards.connect(home), [])] == [Range(0, 3)]


@pytest.mark.parametrize("damage", ["second snapshot", "missing file", "cut file", "other file"])
def test_damaged_batch_is_reported_and_comes_with_the_next_flush(events: Shard, home: Settings, damage: str) -> None:
    before = data_files(home, events)
    stage_numbers(events, home, (0, 3))
    [path] = data_files(home, events) - before
    stage_numbers(events, home, (3, 4))
    head = events.load()
    branch = "staged/1/p/0:3"
    if damage == "second snapshot":
        head.table.append(head.table.scan(snapshot_id=head.staged_branches[branch]).to_arrow(), branch=branch)
    elif damage == "missing file":
        path.unlink()
    elif damage == "cut file":
        path.write_bytes(path.read_bytes()[:-10])
    else:
        [other] = data_files(home, events) - before - {path}
        path.write_bytes(other.read_bytes())
    report = flush_now(home).collections["events"]
    assert (report.outcome, report.batches, report.exit_code) == (Outcome.FLUSHED, 1, ExitCode.REFUSED)
    assert report.error.kind == "DamagedBatch"
    assert visible(events) == Counter(numbers(3, 4))
    assert list(events.load().staged_branches) == [branch]


def test_trouble_in_one_collection_leaves_the_others_flushed(events: Shard, home: Settings) -> None:
    other, sealed = create_events(home, "other"), create_events(home, "closed")
    for shard in (events, other, sealed):
        stage_numbers(shard, home, (0, 2))
    Writer.join(sealed, 1).seal(now_ms=0)
    report = flush_now(home)
    assert {name: each.outcome for name, each in report.collections.items()} == {
        "closed": Outcome.FAILED,
        "events": Outcome.FLUSHED,
        "other": Outcome.FLUSHED,
    }
    assert (report.outcome, report.exit_code) == ("partial", ExitCode.NOT_POSSIBLE)
    assert visible(events) == visible(other) == Counter(numbers(0, 2))


@pytest.mark.parametrize("damage", ["cut", "binary", "gone", "without refs"])
def test_damaged_collection_is_its_own_failure(events: Shard, home: Settings, damage: str) -> None:
    other, ailing = create_events(home, "other"), create_events(home, "ailing")
    for shard in (events, other, ailing):
        stage_numbers(shard, home, (0, 2))
    damage_metadata(ailing, damage)
    assert {each.collection for each in list_batches(Shards.connect(home), [])} == {"events", "other"}
    report = flush_now(home)
    assert {name: each.outcome for name, each in report.collections.items()} == {
        "ailing": Outcome.FAILED,
        "events": Outcome.FLUSHED,
        "other": Outcome.FLUSHED,
    }
    failure = report.collections["ailing"]
    assert (failure.error.kind, failure.exit_code) == ("CorruptState", ExitCode.NOT_POSSIBLE)
    assert "'ailing'" in failure.error.message
    assert report.exit_code == ExitCode.NOT_POSSIBLE
    assert visible(events) == visible(other) == Counter(numbers(0, 2))


def test_two_flushes_at_once_publish_once(events: Shard, home: Settings) -> None:
    stage_numbers(events, home, *((n, n + 1) for n in range(6)))
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda _: flush_now(home, "events"), range(2)))
    assert [report.exit_code for report in reports] == [ExitCode.OK, ExitCode.OK]
    assert sum(report.collections["events"].inserted for report in reports) == 6
    assert visible(events) == Counter(numbers(0, 6))


def test_batch_staged_before_a_column_was_added_is_published(events: Shard, home: Settings) -> None:
    from pyiceberg.types import LongType

    stage_numbers(events, home, (0, 2))
    with events.load().table.update_schema() as update:
        update.add_column("more", LongType())
    assert flush_now(home).collections["events"].outcome is Outcome.FLUSHED
    assert [row["more"] for row in events.load().table.scan().to_arrow().to_pylist()] == [None, None]


def test_collection_without_anything_staged_is_left_alone(events: Shard, home: Settings) -> None:
    planes = Shards.connect(home).create("planes", schema=SCHEMA)
    switch(home, Mode.READ_WRITE)
    Writer.raise_token(planes, 1)
    before = planes.load()
    assert flush_now(home, "planes").collections["planes"].outcome is Outcome.UNCHANGED
    assert planes.load().main == before.main
    with pytest.raises(UnknownCollection):
        flush_now(home, "evens")


def test_many_small_files_are_merged_and_the_rows_stay(events: Shard, home: Settings) -> None:
    from pyiceberg.types import LongType

    stage_numbers(events, home, *((n, n + 2) for n in range(0, 16, 2)))
    with events.load().table.update_schema() as update:
        update.add_column("more", LongType())
    report = flush_now(home).collections["events"]
    head = events.load()
    assert (report.batches, report.inserted) == (8, 16)
    assert len(head.table.inspect.files()) == 1
    assert visible(events) == Counter(numbers(0, 16))
    rows = head.table.scan().to_arrow().to_pylist()
    assert {row["id"]: row["_batch"] for row in rows} == {n: n // 2 * 2 for n in range(16)}
    assert head.state.ledgers == {"p": Ledger((Range(0, 16),))}


def test_staged_rows_survive_as_files_until_they_are_published(events: Shard, home: Settings) -> None:
    stage_numbers(events, home, (0, 2))
    [file] = data_files(home, events)
    flush_now(home)
    assert local_path(events.load().table.inspect.files()["file_path"].to_pylist()[0]) == str(file)


@pytest.mark.postgres
def test_staged_batches_are_flushed_on_postgres(postgres_home: Settings) -> None:
    events = create_events(postgres_home)
    stage_numbers(events, postgres_home, (0, 2), (2, 4))
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda _: flush_now(postgres_home, "events"), range(2)))
    assert [report.exit_code for report in reports] == [ExitCode.OK, ExitCode.OK]
    assert sum(report.collections["events"].inserted for report in reports) == 4
    assert visible(events) == Counter(numbers(0, 4))
    switch(replace(postgres_home, generation=2), Mode.READ_WRITE)
    with pytest.raises(FencedByGeneration):
        append_numbers(events, postgres_home, 4, 5)
