"""Expiry of snapshots and removal of orphans: what must stay readable stays, the rest leaves no file behind."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import settings_in
from tests.iceberg.commit.test_holds import expire_all_but_refs
from tests.support.leftovers import leftovers, stored_files
from tests.support.prepared_folder import PreparedFolder
from tests.support.rows import SCHEMA, change_log, contents, correction
from tidemark.errors import Fenced
from tidemark.iceberg.commit.holds import downgrade_since, hold, release
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.compaction import CompactionPolicy, compact
from tidemark.iceberg.maintenance.expiry import expire, find_expired
from tidemark.iceberg.maintenance.orphans import remove_orphans
from tidemark.iceberg.reading.arrow import changes_arrow, read_arrow
from tidemark.iceberg.reading.invariant import check_invariant
from tidemark.iceberg.shard.digest_file import read_digest
from tidemark.iceberg.shard.state import NEVER
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, compacted and cleaned, again and again

LATER_MS = 10**15
POLICY = CompactionPolicy(min_small_files=2)


@pytest.fixture(scope="module")
def ten_corrections(tmp_path_factory: pytest.TempPathFactory) -> PreparedFolder:
    """Ten corrections at 10, 20, ... 100, each adding one row and taking the last one away; upper 101."""

    def fill(folder: Path) -> None:
        shard = Shards.connect(settings_in(folder)).create("planes", schema=SCHEMA, key=["id"], buckets=2)
        writer = Writer.join(shard, 1)
        for step in range(1, 11):
            retract = [(step - 1, "x")] if step > 1 else []
            batch = correction(shard.load(), insert=[(step, "x")], retract=retract, time=step * 10)
            writer.publish(batch, lower=0 if step == 1 else step * 10 - 9, new_upper=step * 10 + 1)

    return PreparedFolder(tmp_path_factory.mktemp("ten"), fill)


@pytest.fixture
def home(ten_corrections: PreparedFolder) -> Settings:
    return settings_in(ten_corrections.restored())


@pytest.fixture
def shard(home: Settings) -> Shard:
    return Shards.connect(home).open("planes")


def every_time(since: int = 0) -> list[int]:
    """The first and the last time of each stretch over which the contents stay the same, from ``since`` on."""
    return [time for step in range(0, 101, 10) for time in (step - 1, step) if time >= since]


def test_without_a_new_since_every_time_stays_readable(shard: Shard) -> None:
    before = {time: read_arrow(shard, time).to_pylist() for time in every_time()}
    log = change_log(shard.load())
    doomed = {each.snapshot_id for each in find_expired(shard.load(), older_than_ms=LATER_MS)}
    expire(Writer.join(shard, 1), older_than_ms=LATER_MS)
    assert doomed, "old heads of updates, which is only ever read at its head"
    assert {time: read_arrow(shard, time).to_pylist() for time in every_time()} == before
    assert change_log(shard.load()) == log
    assert find_expired(shard.load(), older_than_ms=LATER_MS) == []


def test_snapshots_before_since_go_and_nothing_else(shard: Shard) -> None:
    before = {time: read_arrow(shard, time).to_pylist() for time in every_time(50)}
    downgrade_since(shard, 50, now_ms=0)
    assert expire(Writer.join(shard, 1), older_than_ms=LATER_MS).snapshots > 4
    assert {time: read_arrow(shard, time).to_pylist() for time in every_time(50)} == before
    assert min(row["_time"] for row in changes_arrow(shard, 50).to_pylist()) == 50
    check = check_invariant(shard)
    assert (check.holds, check.grounded) == (True, True)
    assert shard.load().foreign is None


def test_a_hold_keeps_its_history(shard: Shard) -> None:
    hold(shard, "feed", since=30, expires_at_ms=LATER_MS)
    assert downgrade_since(shard, 90, now_ms=0) == 30
    expire(Writer.join(shard, 1), older_than_ms=LATER_MS)
    assert read_arrow(shard, 30).to_pylist() == [{"id": 3, "name": "x"}]
    release(shard, "feed")
    assert downgrade_since(shard, 90, now_ms=0) == 90
    assert expire(Writer.join(shard, 1), older_than_ms=LATER_MS).snapshots > 0


def test_a_durable_hold_keeps_contents_and_changes_through_all_maintenance(shard: Shard) -> None:
    hold(shard, "sink-out", since=30, expires_at_ms=NEVER)
    contents_before = {time: read_arrow(shard, time).to_pylist() for time in every_time(30)}
    changes_before = sorted_changes(shard, 30)
    writer = Writer.join(shard, 1)
    for _ in range(2):  # the second round trims what the first one left
        assert downgrade_since(shard, 90, now_ms=10**17) == 30
        compact(writer, policy=POLICY)
        expire(writer, older_than_ms=LATER_MS)
        remove_orphans(shard, older_than_ms=LATER_MS)
    assert {time: read_arrow(shard, time).to_pylist() for time in every_time(30)} == contents_before
    assert sorted_changes(shard, 30) == changes_before
    expire_all_but_refs(shard)  # by another tool: the tag keeps the contents at the hold, the branch the changes
    assert read_arrow(shard, 30).to_pylist() == contents_before[30]
    assert sorted_changes(shard, 30) == changes_before
    hold(shard, "sink-out", since=101, expires_at_ms=NEVER)
    assert downgrade_since(shard, 100, now_ms=0) == 100, "it has moved on"


def sorted_changes(shard: Shard, since: int) -> list[dict[str, Any]]:
    return sorted(changes_arrow(shard, since).to_pylist(), key=str)


def test_young_snapshots_stay_because_somebody_may_be_reading(shard: Shard) -> None:
    downgrade_since(shard, 100, now_ms=0)
    assert expire(Writer.join(shard, 1), older_than_ms=0).snapshots == 0


def test_what_a_reader_pinned_before_a_compaction_outlives_it(shard: Shard) -> None:
    downgrade_since(shard, 100, now_ms=0)
    before = shard.load()
    assert before.updates is not None
    assert compact(Writer.join(shard, 1), policy=POLICY).outcome == "compacted"
    expire(Writer.join(shard, 1), older_than_ms=shard.load().main.timestamp_ms)
    pinned = shard.load().table.scan(snapshot_id=before.updates.snapshot_id)
    assert pinned.to_arrow().num_rows == 19, "an old snapshot, but superseded only now"


def test_compaction_and_expiry_leave_only_files_that_are_needed(shard: Shard, home: Settings) -> None:
    rows = contents(shard.load())
    downgrade_since(shard, 100, now_ms=0)
    writer = Writer.join(shard, 1)
    assert compact(writer, policy=POLICY).outcome == "compacted"
    downgrade_since(shard, 100, now_ms=0)
    writer.advance(lower=101, new_upper=200)
    downgrade_since(shard, 150, now_ms=0)
    compact(writer, policy=POLICY)
    assert expire(writer, older_than_ms=LATER_MS).files > 20
    remove_orphans(shard, older_than_ms=LATER_MS)
    assert contents(shard.load()) == rows
    assert change_log(shard.load()) == Counter()
    parquet = [path for path in stored_files(home) if path.suffix == ".parquet"]
    assert len(parquet) == 1
    assert leftovers(home, shard) == set()
    assert check_invariant(shard).holds


def test_staging_branches_and_the_digest_survive(shard: Shard) -> None:
    writer = Writer.join(shard, 1)
    batch = correction(shard.load(), insert=[(77, "x")], time=110)
    writer.publish(batch, lower=101, new_upper=111, digest=b"sums", digest_note="test")
    writer.advance(lower=111, new_upper=120)
    downgrade_since(shard, 119, now_ms=0)
    expire(writer, older_than_ms=LATER_MS)
    remove_orphans(shard, older_than_ms=LATER_MS)
    assert read_digest(shard.load()) == b"sums"
    assert expire(writer, older_than_ms=LATER_MS).snapshots == 0


def test_a_fenced_writer_may_not_expire(shard: Shard) -> None:
    writer = Writer.join(shard, 1)
    Writer.raise_token(shard, 1)
    with pytest.raises(Fenced):
        expire(writer, older_than_ms=LATER_MS)


def test_a_sealed_shard_keeps_its_last_contents_only(shard: Shard) -> None:
    writer = Writer.join(shard, 1)
    writer.seal(now_ms=0)
    assert expire(writer, older_than_ms=LATER_MS).snapshots > 5
    assert read_arrow(shard).to_pylist() == [{"id": 10, "name": "x"}]


def test_orphans_of_any_kind_go_once_they_are_old(shard: Shard, home: Settings) -> None:
    remove_orphans(shard, older_than_ms=LATER_MS)
    kept = stored_files(home)
    folder = home.home / "warehouse" / "collections" / "planes"
    lost = [
        folder / "data" / "lost.parquet",
        folder / "data" / ".lost.parquet.crc",
        folder / "metadata" / "lost-m0.avro",
    ]
    young, unknown = folder / "data" / "young.parquet", folder / "data" / "notes.txt"
    for path in (*lost, young, unknown):
        path.touch()
        os.utime(path, (1000, 1000))
    os.utime(young, (3000, 3000))
    assert remove_orphans(shard, older_than_ms=2_000_000).files == 3
    present = stored_files(home)
    assert present >= kept | {young, unknown}
    assert not present.intersection(lost)


def test_live_files_are_not_orphans_in_a_home_with_a_space(tmp_path: Path) -> None:
    home = tmp_path / "a b"
    home.mkdir()
    shard = Shards.connect(settings_in(home)).create("planes", schema=SCHEMA)
    batch = correction(shard.load(), insert=[(1, "x")], time=10)
    Writer.join(shard, 1).publish(batch, lower=0, new_upper=11)
    remove_orphans(shard, older_than_ms=LATER_MS)
    assert contents(shard.load()) == Counter({(1, "x"): 1})
