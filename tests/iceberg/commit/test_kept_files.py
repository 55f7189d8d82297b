"""A writer that is late, and the removal of orphans: a commit never names a file that is gone, or about to go."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.iceberg.staging.test_files import ONE, event_rows, published, stage_rows
from tests.support.commits import act_before_commit
from tests.support.rows import SCHEMA, contents, local_path
from tidemark.errors import InputsGone
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.kept_files import ORPHAN_AGE_MS, AssertFilesKept
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.maintenance.orphans import remove_orphans, store_now_ms
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging.branches import branch_name
from tidemark.iceberg.staging.files import stage_files

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

LATER_MS = 2**50
BRANCH = branch_name(generation=1, writer="p", batch="0:1")


@pytest.fixture
def shard(home: Settings) -> Shard:
    return Shards.connect(home).create("events", schema=SCHEMA, layout=ShardKind.APPEND_ONLY)


def write(shard: Shard) -> tuple[DataFile, ...]:
    return write_rows(shard.load().table, event_rows([ONE]))


def publish(shard: Shard, files: tuple[DataFile, ...]) -> None:
    Writer.join(shard, 1).publish(Batch(added=files, producer="p", range=Range(0, 1)), lower=0, new_upper=1)


def age(files: tuple[DataFile, ...], by_ms: int) -> None:
    for file in files:
        then = time.time() - by_ms / 1000  # noqa: TID251 -- files have the time of the store
        os.utime(local_path(file.file_path), (then, then))


def assert_nothing_is_committed(shard: Shard) -> None:
    head = shard.load()
    assert (head.state.upper, head.state.ledgers, contents(head)) == (0, {}, Counter())


def test_file_that_was_removed_meanwhile_is_not_committed(shard: Shard) -> None:
    files = write(shard)
    remove_orphans(shard, older_than_ms=LATER_MS)
    with pytest.raises(InputsGone, match="removed before its commit"):
        publish(shard, files)
    assert_nothing_is_committed(shard)


def test_file_that_may_be_removed_at_any_moment_is_not_committed(shard: Shard) -> None:
    files = write(shard)
    age(files, ORPHAN_AGE_MS * 2 // 3)
    with pytest.raises(InputsGone, match="waited too long"):
        publish(shard, files)
    with pytest.raises(InputsGone, match="waited too long"):
        stage_files(
            shard, files, branch=branch_name(generation=1, writer="p", batch="0:1"), fingerprint="f", schema_id=0
        )
    assert_nothing_is_committed(shard)
    age(files, ORPHAN_AGE_MS // 3)
    publish(shard, files)


def test_removal_in_the_middle_of_a_commit_lets_the_commit_lose(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    files, look = write(shard), AssertFilesKept.validate

    def look_and_be_late(self: AssertFilesKept, base: object) -> None:
        look(self, base)
        monkeypatch.setattr(AssertFilesKept, "validate", look)
        remove_orphans(shard, older_than_ms=LATER_MS)

    monkeypatch.setattr(AssertFilesKept, "validate", look_and_be_late)
    with pytest.raises(InputsGone, match="removed before its commit"):
        publish(shard, files)
    assert_nothing_is_committed(shard)


def test_commit_in_the_middle_of_a_removal_keeps_its_files(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write(shard)
    act_before_commit(shard, monkeypatch, lambda: publish(shard, files))
    assert remove_orphans(shard, older_than_ms=LATER_MS).files == 0
    assert contents(shard.load()) == Counter([ONE])


def test_batch_that_is_staged_may_wait_for_weeks(shard: Shard) -> None:
    staged = stage_rows(shard, [ONE])
    age(staged.files, 10 * ORPHAN_AGE_MS)
    remove_orphans(shard, older_than_ms=LATER_MS)
    Writer.join(shard, 1).publish(published(staged, Range(0, 1)), lower=0, new_upper=1)
    assert contents(shard.load()) == Counter([ONE])


def test_time_is_that_of_the_store(shard: Shard, home: Settings) -> None:
    files = {path for path in Path(home.warehouse).rglob("*") if path.is_file()}
    assert abs(store_now_ms(shard) - time.time() * 1000) < 60_000  # noqa: TID251 -- the store is this machine
    assert {path for path in Path(home.warehouse).rglob("*") if path.is_file()} == files
