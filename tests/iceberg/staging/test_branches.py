"""Staging branches while other processes settle, drop and stage again; files written by this process, no JVM."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate

from tests.iceberg.staging.test_files import ONE, TWO, event_rows, published, stage_rows
from tests.support import commits
from tests.support.commits import act_before_commit, lose_answer
from tests.support.rows import SCHEMA, contents
from tests.support.stored import read_staged
from tidemark.errors import InputsGone, UsageError
from tidemark.iceberg.commit.publisher import set_ref
from tidemark.iceberg.commit.snapshot_builder import SnapshotBuilder, SnapshotChange
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.branch_names import pending_name
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shard.state_reader import read_state
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging.branches import (
    branch_name,
    drop_staged,
    find_abandoned,
    list_staged,
    read_intact,
    settle,
    staged_summary,
)
from tidemark.iceberg.staging.files import stage_files

if TYPE_CHECKING:
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.iceberg.staging.branches import StagedBatch
    from tidemark.settings import Settings

DAY_MS = 86_400_000
BRANCH = branch_name(generation=1, writer="p", batch="0:1")


@pytest.fixture
def shard(home: Settings) -> Shard:
    return Shards.connect(home).create("events", schema=SCHEMA, layout=ShardKind.APPEND_ONLY)


def stage_pending(shard: Shard) -> StagedBatch:
    schema_id = shard.load().table.metadata.current_schema_id
    return stage_files(shard, [], branch=pending_name(BRANCH), fingerprint="f", schema_id=schema_id)


@pytest.mark.parametrize("part", ["", "a/b", "a`b"])
def test_parts_that_would_break_a_branch_name_are_refused(part: str) -> None:
    with pytest.raises(UsageError):
        branch_name(generation=1, writer="w", batch=part)


def test_pending_batch_is_not_shown_and_is_dropped_when_it_is_old(shard: Shard, home: Settings) -> None:
    batch, pending = stage_rows(shard, [ONE]), stage_pending(shard)
    assert read_state(home, "events").staged == (batch.branch,)
    late_ms = pending.staged_at_ms + DAY_MS + 1
    assert find_abandoned(shard.load(), now_ms=late_ms, max_age_ms=DAY_MS) == [pending.branch]


def test_branch_that_was_staged_again_meanwhile_is_not_dropped(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = stage_rows(shard, [ONE])
    seen = shard.load()

    def stage_again() -> None:
        drop_staged(shard, [staged.branch])
        stage_rows(shard, [TWO])

    act_before_commit(shard, monkeypatch, stage_again)
    assert drop_staged(shard, [staged.branch], seen=seen) == []
    again = read_staged(shard, staged.branch)
    Writer.join(shard, 1).publish(published(again, Range(0, 1)), lower=0, new_upper=1)
    assert contents(shard.load()) == Counter([TWO])


def test_settled_batch_has_one_branch(shard: Shard) -> None:
    pending = stage_pending(shard)
    settle(shard, pending.branch, BRANCH, lambda _head: None)
    assert shard.load().staged_branches == {BRANCH: pending.snapshot_id}


def test_branch_that_another_process_settled_meanwhile_is_not_replaced(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = stage_pending(shard)
    act_before_commit(shard, monkeypatch, lambda: stage_rows(shard, [ONE]))
    with pytest.raises(InputsGone, match="taken by another process"):
        settle(shard, pending.branch, BRANCH, lambda _head: None)
    assert [staged.rows for staged in list_staged(shard.load())] == [1, 0]


def test_settling_that_landed_unseen_is_done(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    pending = stage_pending(shard)
    lose_answer(shard, monkeypatch)
    settle(shard, pending.branch, BRANCH, lambda _head: None)
    assert shard.load().staged_branches == {BRANCH: pending.snapshot_id}


def grow_from_main(shard: Shard, branch: str) -> None:
    summary = staged_summary("f", shard.load().table.metadata.current_schema_id)
    commits.grow_from_main(shard, branch, event_rows([TWO], "1:2"), summary)


def publish_one(shard: Shard) -> None:
    Writer.join(shard, 1).publish(published(stage_rows(shard, [ONE]), Range(0, 1)), lower=0, new_upper=1)


def test_dropping_a_branch_that_grew_from_main_takes_its_own_snapshot_alone(shard: Shard) -> None:
    publish_one(shard)
    before = {snapshot.snapshot_id for snapshot in shard.load().table.metadata.snapshots}
    grow_from_main(shard, BRANCH)
    assert drop_staged(shard, [BRANCH]) == [BRANCH]
    head = shard.load()
    assert {snapshot.snapshot_id for snapshot in head.table.metadata.snapshots} == before
    assert (head.staged_branches, contents(head)) == ({}, Counter([ONE]))


def test_branch_that_grew_from_main_is_no_whole_batch_and_is_never_settled(shard: Shard) -> None:
    publish_one(shard)
    pending = pending_name(BRANCH)
    grow_from_main(shard, pending)
    assert read_intact(shard.load().table, pending, "f") is None
    with pytest.raises(InputsGone):
        settle(shard, pending, BRANCH, lambda _head: None)


def test_batch_that_another_tool_has_put_on_main_leaves_its_rows_there(shard: Shard) -> None:
    """As ``CALL system.fast_forward`` does, and ``CREATE BRANCH`` at a staged batch."""
    staged = stage_rows(shard, [ONE])
    head = shard.load()
    copied = set_ref("copy", head.table.metadata.snapshot_by_name(staged.branch))
    shard.iceberg.commit_table(head.table, (), (copied,))
    drop_staged(shard, [staged.branch])
    table = shard.load().table
    assert table.scan(snapshot_id=staged.snapshot_id).to_arrow().num_rows == 1


def test_rows_that_another_tool_has_picked_stay(shard: Shard) -> None:
    """As `CALL system.cherrypick_snapshot` does: main gets a snapshot of its own that names the branch's files."""
    staged = stage_rows(shard, [ONE])
    head = shard.load()
    picked = SnapshotChange(operation=Operation.APPEND, added=staged.files, summary={})
    snapshot = SnapshotBuilder(head.table).build(head.main, picked)
    shard.iceberg.commit_table(head.table, (), (AddSnapshotUpdate(snapshot=snapshot), set_ref("main", snapshot)))
    drop_staged(shard, [staged.branch])
    assert shard.load().table.scan().to_arrow().num_rows == 1


def test_snapshot_that_a_ref_needs_is_never_removed(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ref is made in the very moment of the removal: the removal looks again."""
    staged = stage_rows(shard, [ONE])

    def copy() -> None:
        head = shard.load()
        copied = set_ref("copy", head.table.metadata.snapshot_by_name(staged.branch))
        shard.iceberg.commit_table(head.table, (), (copied,))

    act_before_commit(shard, monkeypatch, copy)
    drop_staged(shard, [staged.branch])
    metadata = shard.load().table.metadata
    assert metadata.snapshot_by_name("copy") is not None
    assert shard.load().table.scan(snapshot_id=staged.snapshot_id).to_arrow().num_rows == 1
