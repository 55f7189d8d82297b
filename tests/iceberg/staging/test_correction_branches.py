"""Whole corrections wait on a branch: replaced, never piled up, published as they are if nothing has moved."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.commits import lose_answer
from tests.support.rows import SCHEMA, Row, change_log, contents, correction
from tidemark.errors import UpperMismatch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.digest_file import read_digest
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging.branches import branch_name, drop_staged
from tidemark.iceberg.staging.correction_branches import read_whole, stage_whole

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

BRANCH = branch_name(generation=1, writer="reconcile", batch="all")
A, B, C = (1, "a"), (2, "b"), (3, "c")


@pytest.fixture
def shard(home: Settings) -> Shard:
    shard = Shards.connect(home).create("planes", schema=SCHEMA, key=["id"], buckets=2)
    batch = correction(shard.load(), insert=[A, B], time=1)
    Writer.join(shard, 1).publish(batch, lower=0, new_upper=5, digest=b"before", digest_note="n")
    return shard


def stage_correction(shard: Shard, *, insert: list[Row], retract: list[Row], digest: bytes = b"after") -> None:
    batch = correction(shard.load(), insert=insert, retract=retract, time=7)
    stage_whole(shard, batch, branch=BRANCH, lower=5, time=7, digest=digest, digest_note="m")


def data_files(home: Settings) -> set[Path]:
    return set((home.home / "warehouse" / "collections" / "planes" / "data").rglob("*.parquet"))


def test_staged_correction_changes_nothing_that_is_read(shard: Shard) -> None:
    before = shard.load()
    stage_correction(shard, insert=[C], retract=[A])
    after = shard.load()
    assert (after.main, after.updates, after.own, after.state) == (
        before.main,
        before.updates,
        before.own,
        before.state,
    )
    assert read_digest(after) == b"before"


def test_staged_correction_is_published_by_pointer_move(shard: Shard, home: Settings) -> None:
    stage_correction(shard, insert=[C], retract=[A])
    files = data_files(home)
    staged = read_whole(shard.load(), BRANCH)
    assert staged is not None
    assert (staged.lower, staged.time, staged.digest, staged.digest_note) == (5, 7, b"after", "m")
    Writer.raise_token(shard, 1)  # moves main, and not the contents
    writer = Writer.join(shard, 1)
    writer.publish(staged.batch, lower=staged.lower, new_upper=9, digest=staged.digest, digest_note=staged.digest_note)
    head = shard.load()
    assert contents(head) == Counter([B, C])
    assert change_log(head) == Counter({(A, 1): 1, (B, 1): 1, (C, 7): 1, (A, 7): -1})
    assert (head.staged_branches, read_digest(head), head.state.upper) == ({}, b"after", 9)
    assert data_files(home) == files


def test_later_correction_takes_the_place_of_the_earlier_one(shard: Shard, home: Settings) -> None:
    stage_correction(shard, insert=[C], retract=[A])
    first, snapshots = data_files(home), len(shard.load().table.metadata.snapshots)
    for _ in range(3):
        stage_correction(shard, insert=[C], retract=[])
    assert len(shard.load().table.metadata.snapshots) == snapshots
    assert len(data_files(home)) < len(first), "the files of what was replaced are gone"
    staged = read_whole(shard.load(), BRANCH)
    assert staged is not None
    assert (staged.batch.inserted_rows, staged.batch.retracted_rows, staged.batch.deletes) == (1, 0, ())


def test_correction_of_another_state_is_not_published(shard: Shard) -> None:
    stage_correction(shard, insert=[C], retract=[A])
    Writer.join(shard, 1).advance(lower=5, new_upper=6)
    staged = read_whole(shard.load(), BRANCH)
    assert staged is not None
    with pytest.raises(UpperMismatch):
        Writer.join(shard, 1).publish(staged.batch, lower=staged.lower, new_upper=9)
    assert contents(shard.load()) == Counter([A, B])


def test_dropped_correction_leaves_nothing(shard: Shard, home: Settings) -> None:
    before = data_files(home)
    stage_correction(shard, insert=[C], retract=[A])
    assert drop_staged(shard, [BRANCH]) == [BRANCH]
    assert data_files(home) == before
    assert {each.snapshot_id for each in shard.load().table.metadata.statistics} <= {
        each.snapshot_id for each in shard.load().table.metadata.snapshots
    }


def test_branch_with_anything_else_is_no_correction(shard: Shard) -> None:
    stage_correction(shard, insert=[C], retract=[])
    table = shard.load().table
    table.append(table.scan(snapshot_id=shard.load().main.snapshot_id).to_arrow(), branch=BRANCH)
    assert read_whole(shard.load(), BRANCH) is None


def test_correction_whose_staging_landed_unseen_keeps_its_files(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    stage_correction(shard, insert=[B], retract=[])
    lose_answer(shard, monkeypatch)
    stage_correction(shard, insert=[C], retract=[A])
    staged = read_whole(shard.load(), BRANCH)
    assert staged is not None
    Writer.join(shard, 1).publish(staged.batch, lower=staged.lower, new_upper=9)
    assert contents(shard.load()) == Counter([B, C])
