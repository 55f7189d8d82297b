"""Processes that die at every point of an append or a flush, race, or are left over from an older deployment."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.crash import real_first, run_command, start_command
from tests.support.events import append_numbers, create_events, numbers, switch, visible
from tests.support.leases import forget_leases
from tests.support.leftovers import leftovers
from tidemark.collections.append import append
from tidemark.collections.deployment import Mode
from tidemark.collections.staged import flush
from tidemark.collections.staged.batches import list_batches
from tidemark.collections.staged.flush import MIN_FILES
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit import publisher as shard_commit
from tidemark.iceberg.commit.holds import downgrade_since
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.expiry import expire
from tidemark.iceberg.maintenance.orphans import remove_orphans
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging import files as file_staging

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

pytestmark = pytest.mark.crash

LATER_MS = 10**15
STAGED = (("p", 0, 2), ("p", 2, 4), ("q", 0, 1))


@pytest.fixture
def events(home: Settings) -> Shard:
    return create_events(home)


def append_arguments(folder: Path, start: int, end: int) -> list[str]:
    path = folder / f"{start}.csv"
    lines = [f"{number},{name}" for number, name in numbers(start, end)]
    path.write_text("\n".join(["id,name", *lines]) + "\n", encoding="utf-8")
    return ["append", "events", str(path), "--producer", "p", "--range", f"{start}:{end}"]


def stage_all(shard: Shard, settings: Settings) -> Counter[tuple[int | None, str | None]]:
    switch(settings, Mode.READ_ONLY)
    for producer, start, end in STAGED:
        append_numbers(shard, settings, start, end, producer=producer)
    switch(settings, Mode.READ_WRITE)
    return Counter(row for producer, start, end in STAGED for row in numbers(start, end, producer))


@pytest.mark.parametrize(("point", "run"), real_first([*append.FAIL_POINTS, *shard_commit.FAIL_POINTS]))
def test_killed_append_is_done_once(
    events: Shard, home: Settings, tmp_path: Path, point: str, run: Callable[..., int]
) -> None:
    switch(home, Mode.READ_WRITE)
    Writer.raise_token(events, 1)
    arguments = append_arguments(tmp_path, 0, 3)
    assert run(home, *arguments, point=point) == FAIL_POINT_EXIT
    assert visible(events) in (Counter(), Counter(numbers(0, 3)))
    assert run_command(home, *arguments) == ExitCode.OK
    assert visible(events) == Counter(numbers(0, 3))


@pytest.mark.parametrize("point", file_staging.FAIL_POINTS)
def test_killed_staging_is_done_once(events: Shard, home: Settings, tmp_path: Path, point: str) -> None:
    switch(home, Mode.READ_ONLY)
    arguments = append_arguments(tmp_path, 0, 3)
    assert run_command(home, *arguments, point=point) == FAIL_POINT_EXIT
    assert run_command(home, *arguments) == ExitCode.OK
    assert visible(events) == Counter()
    assert [each.rows for each in list_batches(Shards.connect(home), [])] == [3]
    switch(home, Mode.READ_WRITE)
    assert run_command(home, "flush") == ExitCode.OK
    assert visible(events) == Counter(numbers(0, 3))


@pytest.mark.parametrize(("point", "run"), real_first([*flush.FAIL_POINTS, *shard_commit.FAIL_POINTS]))
def test_killed_flush_leaves_all_or_nothing(events: Shard, home: Settings, point: str, run: Callable[..., int]) -> None:
    rows = stage_all(events, home)
    assert run(home, "flush", point=point) == FAIL_POINT_EXIT
    published = visible(events)
    assert published in (Counter(), rows)
    assert len(events.load().staged_branches) == (0 if published else len(STAGED))
    assert run_command(home, "flush") == ExitCode.OK
    assert visible(events) == rows
    assert events.load().state.ledgers == {"p": Ledger((Range(0, 4),)), "q": Ledger((Range(0, 1),))}


@pytest.mark.parametrize("point", ["flush.after-merge", "publish.before-commit"])
def test_killed_flush_that_merges_small_files_leaves_none_of_them_behind(
    events: Shard, home: Settings, point: str
) -> None:
    switch(home, Mode.READ_ONLY)
    for number in range(MIN_FILES):
        append_numbers(events, home, number, number + 1)
    switch(home, Mode.READ_WRITE)
    assert run_command(home, "flush", point=point) == FAIL_POINT_EXIT
    rows = Counter(numbers(0, MIN_FILES))
    assert visible(events) == Counter()
    assert run_command(home, "flush") == ExitCode.OK
    assert visible(events) == rows
    assert len(events.load().table.inspect.data_files()) == 1, "the files were merged"
    writer = Writer.lead(events, 1)
    upper = events.load().state.upper
    assert isinstance(upper, int)
    downgrade_since(events, upper, now_ms=LATER_MS)
    expire(writer, older_than_ms=LATER_MS)
    forget_leases(home)
    remove_orphans(events, older_than_ms=LATER_MS)
    assert visible(events) == rows
    assert leftovers(home, events) == set()


def test_two_flushes_at_once_publish_once(events: Shard, home: Settings) -> None:
    rows = stage_all(events, home)
    both = [start_command(home, "flush") for _ in range(2)]
    assert [process.exit_code() for process in both] == [ExitCode.OK, ExitCode.OK]
    assert visible(events) == rows


def test_old_leader_appends_until_the_new_one_flushes(events: Shard, home: Settings, tmp_path: Path) -> None:
    switch(home, Mode.READ_WRITE)
    newer = replace(home, generation=2)
    staged = append_numbers(events, newer, 100, 103)
    assert staged.rows == 3
    assert run_command(home, *append_arguments(tmp_path, 0, 2)) == ExitCode.OK
    writer = Writer.join(events, home.generation)
    switch(newer, Mode.READ_WRITE)
    racing = [start_command(newer, "flush"), start_command(home, *append_arguments(tmp_path, 2, 4))]
    assert [process.exit_code() for process in racing] == [ExitCode.OK, ExitCode.FENCED]
    assert visible(events) == Counter([*numbers(0, 2), *numbers(100, 103)])
    assert writer.token < events.load().state.token
