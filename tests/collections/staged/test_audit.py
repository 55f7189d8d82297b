"""A batch counts as accepted while it is whole: what is damaged, or on its way, neither swallows nor blocks others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from sqlalchemy.exc import OperationalError

from tests.support.discarding import discard
from tests.support.events import CLOCK, append_numbers, create_events, numbers, rows_table, switch, visible
from tests.support.rows import local_path
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.append.append import append_rows, with_batch_columns
from tidemark.collections.append.interval import missing_ranges
from tidemark.collections.append.unnumbered import append_blindly
from tidemark.collections.declarations.append_only import Expectations
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Mode
from tidemark.collections.staged.audit import audit
from tidemark.collections.staged.batches import BatchName, list_batches, queued_batches
from tidemark.collections.staged.discard import Selection
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import ExpectationFailed, InputsGone, RangeOverlap
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.shard.branch_names import COMPACTION, pending_name
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.shard.state_reader import read_state
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging.branches import branch_name, drop_staged, find_abandoned, read_intact, settle
from tidemark.iceberg.staging.files import stage_files
from tidemark.iceberg.staging.frames import _create_branch
from tidemark.report import Outcome

if TYPE_CHECKING:
    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.report import Report
    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written
LATER_MS = 10**15


@pytest.fixture
def events(home: Settings) -> Shard:
    return create_events(home)


def flush_now(settings: Settings) -> Report:
    return flush_all(Shards.connect(settings), deployment_of(settings), [], clock=CLOCK)


def stage_numbers(shard: Shard, settings: Settings, start: int, end: int) -> str:
    switch(settings, Mode.READ_ONLY)
    assert append_numbers(shard, settings, start, end).outcome is Outcome.STAGED
    return BatchName("p", Range(start, end)).branch(settings.generation)


def file_of(shard: Shard, branch: str, *, what: str) -> Path:
    table = shard.load().table
    snapshot = table.metadata.snapshot_by_name(branch)
    assert snapshot is not None
    if what == "manifest list":
        return Path(local_path(snapshot.manifest_list))
    if what == "manifest":
        return Path(local_path(snapshot.manifests(table.io)[0].manifest_path))
    staged = read_intact(table, branch, None)
    assert staged is not None
    return Path(local_path(staged.files[0].file_path))


def damage(path: Path, what: str) -> None:
    if what != "footer":
        path.unlink()
        return
    found = path.read_bytes()
    length = int.from_bytes(found[-8:-4], "little")
    path.write_bytes(found[: -8 - length] + b"\xff" * length + found[-8:])


LOST = ["data file", "manifest", "manifest list", "footer"]


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("mode", Mode)
def test_damaged_batch_does_not_stand_for_a_part_of_it(events: Shard, home: Settings, lost: str, mode: Mode) -> None:
    branch = stage_numbers(events, home, 0, 10)
    damage(file_of(events, branch, what=lost), lost)
    switch(home, mode)
    done = append_numbers(events, home, 2, 4)
    assert (done.outcome, done.rows) == (Outcome.STAGED if mode is Mode.READ_ONLY else Outcome.APPENDED, 2)
    wanted = {"producer": "p", "deployment": deployment_of(home)}
    assert missing_ranges(events, events.load(), Range(0, 10), **wanted) == (Range(0, 2), Range(4, 10))


@pytest.mark.parametrize("lost", LOST)
def test_damaged_batch_holds_no_other_back_and_is_appended_again(events: Shard, home: Settings, lost: str) -> None:
    branch = stage_numbers(events, home, 0, 2)
    stage_numbers(events, home, 4, 6)
    damage(file_of(events, branch, what=lost), lost)
    switch(home, Mode.READ_WRITE)
    report = flush_now(home).collections["events"]
    assert report.error is not None
    assert (report.error.kind, report.error.exit_code) == ("DamagedBatch", ExitCode.REFUSED)
    assert "tidemark discard events --producer p --range 0:2 --generation 1" in report.error.hint
    assert visible(events) == Counter(numbers(4, 6))
    assert append_numbers(events, home, 0, 2).outcome is Outcome.APPENDED
    assert visible(events) == Counter([*numbers(0, 2), *numbers(4, 6)])
    assert events.load().staged_branches == {}


@pytest.mark.parametrize(("producer", "comes_again"), [("p", False), ("shop.0123abcd.0", True)])
def test_of_what_an_ingest_staged_only_entries_come_again(
    events: Shard, home: Settings, producer: str, *, comes_again: bool
) -> None:
    """A batch that was appended into the buffer is taken as a whole, or not at all: it waits for somebody."""
    stage_numbers(events, home, 0, 2)
    head = events.load()
    (staged,) = queued_batches(head, collection="events")
    batch = replace(staged, name=BatchName(producer, Range(0, 2)), is_ingested=True)
    published = replace(head.state, ledgers={producer: Ledger((Range(0, 1),))})
    source = {"buffer": "file:///nowhere", "table": "events"}
    reader = {"name": "events", "kind": "append-only", "schema": "k bigint", "source": source}
    found = audit(replace(head, state=published), [batch], Declaration.model_validate(reader))
    assert (found.to_ingest_again == [batch], bool(found.troubles)) == (comes_again, not comes_again)


@pytest.mark.parametrize("lost", LOST)
def test_damaged_batch_can_be_discarded(events: Shard, home: Settings, lost: str) -> None:
    branch = stage_numbers(events, home, 0, 2)
    damage(file_of(events, branch, what=lost), lost)
    switch(home, Mode.READ_WRITE)
    selection = Selection(names=("events",), range=Range(0, 2))
    gone = discard(Shards.connect(home), deployment_of(home), selection, who="tests", why="lost", clock=CLOCK)
    assert [each.name.range for each in gone] == [Range(0, 2)]
    assert events.load().staged_branches == {}


def test_what_is_on_its_way_neither_swallows_nor_blocks(events: Shard, home: Settings) -> None:
    switch(home, Mode.READ_ONLY)
    pending = pending_name(BatchName("p", Range(0, 10)).branch(home.generation))
    _create_branch(events, pending)  # as far as an append by Spark came, which goes on or died
    assert append_numbers(events, home, 2, 4).rows == 2
    assert [each.name.range for each in list_batches(Shards.connect(home), [])] == [Range(2, 4)]
    switch(home, Mode.READ_WRITE)
    assert flush_now(home).collections["events"].error is None
    assert visible(events) == Counter(numbers(2, 4))
    assert list(events.load().staged_branches) == [pending]


def test_maintenance_finds_what_died_on_its_way_and_no_batch(events: Shard, home: Settings) -> None:
    branch = stage_numbers(events, home, 0, 2)
    append_numbers(events, home, 0, 2, producer="compact")  # which may be anybody's name
    pending = pending_name(branch)
    compaction = branch_name(generation=1, writer=COMPACTION, batch="1")
    _create_branch(events, pending)
    _create_branch(events, compaction)
    head = events.load()
    assert find_abandoned(head, now_ms=0, max_age_ms=LATER_MS) == []
    assert find_abandoned(head, now_ms=LATER_MS, max_age_ms=0) == [compaction, pending]
    assert len(read_state(home, "events").staged) == 2


def test_a_batch_that_was_accepted_meanwhile_is_not_settled(events: Shard, home: Settings) -> None:
    branch = stage_numbers(events, home, 0, 2)
    pending = pending_name(BatchName("p", Range(0, 5)).branch(home.generation))
    _create_branch(events, pending)

    def refuse(_head: object) -> None:
        raise RangeOverlap("accepted meanwhile")

    before = events.load().staged_branches
    with pytest.raises(RangeOverlap):
        settle(events, pending, BatchName("p", Range(0, 5)).branch(home.generation), refuse)
    with pytest.raises(InputsGone, match="taken by another process"):
        settle(events, pending, branch, lambda _head: None)
    assert events.load().staged_branches == before


def test_a_batch_that_settles_while_another_is_decided_on_is_seen(
    events: Shard, home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch(home, Mode.READ_ONLY)
    other = BatchName("p", Range(0, 5)).branch(home.generation)
    pending = pending_name(other)
    _create_branch(events, pending)
    commit, seen = events.iceberg.commit_table, []

    def settle_first(*arguments: Any) -> Any:
        monkeypatch.setattr(events.iceberg, "commit_table", commit)
        settle(events, pending, other, lambda _head: None)  # a move of a ref: no snapshot tells of it
        return commit(*arguments)

    def check(head: ShardHead) -> None:
        seen.append(other in head.staged_branches)

    table = events.load().table
    files = write_rows(table, with_batch_columns(rows_table(numbers(2, 4)), BatchName("p", Range(2, 4))))
    branch = BatchName("p", Range(2, 4)).branch(home.generation)
    schema_id = table.metadata.current_schema_id
    monkeypatch.setattr(events.iceberg, "commit_table", settle_first)
    stage_files(events, files, branch=branch, fingerprint="1", schema_id=schema_id, check=check)
    assert seen == [False, True]


def test_another_processs_batch_is_not_dropped_for_one_that_was_seen(events: Shard, home: Settings) -> None:
    branch = stage_numbers(events, home, 0, 2)
    seen = events.load()
    drop_staged(events, [branch])
    stage_numbers(events, home, 0, 2)
    assert drop_staged(events, [branch], seen=seen) == []
    assert branch in events.load().staged_branches


@pytest.mark.parametrize("lost_answers", [1, 2])
def test_rows_that_nobody_numbered_are_staged_once_though_the_answer_was_lost(
    events: Shard, home: Settings, monkeypatch: pytest.MonkeyPatch, lost_answers: int
) -> None:
    switch(home, Mode.READ_ONLY)
    commit, left = events.iceberg.commit_table, [lost_answers]

    def lose_answers(*arguments: Any) -> Any:
        answer = commit(*arguments)
        if left[0]:
            left[0] -= 1
            raise OperationalError("UPDATE", {}, ConnectionError("server closed the connection"))
        return answer

    monkeypatch.setattr(events.iceberg, "commit_table", lose_answers)
    done = append_blindly(events, rows_table([(1, "a")]), producer="p", deployment=deployment_of(home), clock=CLOCK)
    assert done.outcome is Outcome.STAGED
    assert [each.rows for each in list_batches(Shards.connect(home), [])] == [1]
    switch(home, Mode.READ_WRITE)
    assert flush_now(home).exit_code is ExitCode.OK
    assert visible(events) == Counter([(1, "a")])


def test_a_staged_batch_that_is_refused_says_how_to_get_rid_of_it(events: Shard, home: Settings) -> None:
    stage_numbers(events, home, 0, 2)
    switch(home, Mode.READ_WRITE)
    name = BatchName("p", Range(0, 2))
    expect = Expectations.model_validate({"not_null": ["id"], "range": {"id": {"min": 1}}})
    with pytest.raises(ExpectationFailed) as refused:
        append_rows(events, name, pa.table({}), deployment=deployment_of(home), clock=CLOCK, expect=expect)
    assert "tidemark discard events --producer p --range 0:2 --generation 1" in refused.value.hint
