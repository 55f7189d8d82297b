"""A commit that touches no file lists the manifests of the snapshot before, as bytes; every reader sees the same."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyiceberg.avro.file import AvroFile

from tests.support.rows import SCHEMA, contents, correction, local_path
from tidemark.iceberg.commit import snapshot_builder
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.compaction_plan import CompactionPolicy
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.table.snapshots import Snapshot

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings


@pytest.fixture
def shard(home: Settings) -> Shard:
    shard = Shards.connect(home).create("planes", schema=SCHEMA, key=["id"])
    for number in range(2):
        batch = correction(shard.load(), insert=[(number, "a")], time=number)
        Writer.join(shard, 1).publish(batch, lower=number, new_upper=number + 1)
    return shard


def header(shard: Shard, snapshot: Snapshot) -> dict[str, str]:
    with AvroFile[object](shard.load().table.io.new_input(snapshot.manifest_list)) as file:
        return file.header.meta


def test_a_fence_lists_what_was_listed_in_a_file_of_its_own(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    before = shard.load()
    monkeypatch.setattr(snapshot_builder, "write_manifest_list", pytest.fail)
    Writer.raise_token(shard, 1)
    after = shard.load()
    io = after.table.io
    assert after.main.manifests(io) == before.main.manifests(io) != []
    assert contents(after) == Counter({(0, "a"): 1, (1, "a"): 1})
    assert header(shard, after.main) == header(shard, before.main) | {
        "snapshot-id": str(after.main.snapshot_id),
        "parent-snapshot-id": str(before.main.snapshot_id),
        "sequence-number": str(after.main.sequence_number),
    }
    paths: list[Path] = [local_path(each.main.manifest_list) for each in (before, after)]
    assert paths[0] != paths[1], "another engine's expiry deletes the list of each snapshot that it takes"


def test_manifests_without_a_live_file_are_not_copied_on(shard: Shard) -> None:
    assert compact(Writer.join(shard, 1), policy=CompactionPolicy(min_small_files=2)).outcome == "compacted"
    compacted = shard.load()
    listed = compacted.main.manifests(compacted.table.io)
    assert any(not (each.has_added_files() or each.has_existing_files()) for each in listed)
    Writer.raise_token(shard, 1)
    after = shard.load()
    assert all(each.has_added_files() or each.has_existing_files() for each in after.main.manifests(after.table.io))
    assert contents(after) == Counter({(0, "a"): 1, (1, "a"): 1})
