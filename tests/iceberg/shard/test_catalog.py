from __future__ import annotations

import sqlite3
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import snapshots

from tests.support.rows import SCHEMA, correction
from tidemark.clock import SystemClock
from tidemark.errors import UnknownCollection
from tidemark.iceberg.commit.holds import downgrade_since, hold, release
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.expiry import expire
from tidemark.iceberg.shard import catalog
from tidemark.iceberg.shards import Shards
from tidemark.interval import HOUR_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings


def correct(shard: Shard, number: int) -> None:
    batch = correction(shard.load(), insert=[(number, "a")], time=number)
    Writer.join(shard, 1).publish(batch, lower=shard.load().state.upper, new_upper=number + 1, digest=b"{}")


def add_column(shard: Shard) -> None:
    with shard.load().table.update_schema() as update:
        update.union_by_name(pa.schema([("more", pa.int32())]))


def test_metadata_kept_from_a_commit_are_those_in_its_file(home: Settings) -> None:
    shard = Shards.connect(home).create("planes", schema=SCHEMA, key=["id"], buckets=2)
    steps: list[Callable[[], object]] = [
        lambda: Writer.raise_token(shard, 1),
        lambda: correct(shard, 1),
        lambda: correct(shard, 2),
        lambda: hold(shard, "reader", expires_at_ms=99),
        lambda: release(shard, "reader"),
        lambda: downgrade_since(shard, 2, now_ms=50),
        lambda: compact(Writer.join(shard, 1), spark=None),
        lambda: expire(Writer.join(shard, 1), older_than_ms=1 << 50),
        lambda: add_column(shard),
    ]
    for step in steps:
        before = shard.load().table.metadata_location
        step()
        table = shard.load().table
        assert table.metadata_location != before
        assert table.metadata == FromInputFile.table_metadata(table.io.new_input(table.metadata_location))
        assert Shards.connect(home).open("planes").load() == shard.load()


def test_a_writer_parses_no_metadata_that_it_wrote(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = Shards.connect(home).create("planes", schema=SCHEMA)
    correct(shard, 1)
    known = shard.load().table.metadata.snapshots
    monkeypatch.setattr(catalog.FromInputFile, "table_metadata", pytest.fail)
    correct(shard, 2)
    correct(shard, 3)
    snapshots = shard.load().table.metadata.snapshots
    assert all(kept is one for kept, one in zip(snapshots, known, strict=False)), "no commit copies older snapshots"


def test_a_view_beside_the_tables_is_no_collection(home: Settings) -> None:
    shards = Shards.connect(home)
    shards.create("planes", schema=SCHEMA)
    with sqlite3.connect(home.catalog_path) as database:
        database.execute("UPDATE iceberg_tables SET iceberg_type = 'VIEW'")
    assert (shards.names(), shards.exists("planes")) == ([], False)
    with pytest.raises(UnknownCollection):
        Shards.connect(home).open("planes")
    with sqlite3.connect(home.catalog_path) as database:
        database.execute("UPDATE iceberg_tables SET iceberg_type = NULL")  # as Spark's older schema leaves it
    assert shards.open("planes").load().row_count == 0


def test_times_never_go_back_although_a_clock_was_ahead(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = Shards.connect(home).create("planes", schema=SCHEMA)
    correct(shard, 1)
    with monkeypatch.context() as ahead:
        ahead.setattr(snapshots, "time", SimpleNamespace(time=lambda: (SystemClock().now_ms() + 3 * HOUR_MS) / 1000))
        correct(shard, 2)
    for number in (3, 4):
        correct(shard, number)
    metadata = shard.load().table.metadata
    for log in (metadata.snapshot_log, metadata.metadata_log):
        times = [entry.timestamp_ms for entry in log]
        assert times == sorted(times)
        assert times[-1] <= metadata.last_updated_ms <= SystemClock().now_ms() + HOUR_MS


def test_a_log_that_goes_back_is_put_in_order_by_the_next_commit(home: Settings) -> None:
    shard = Shards.connect(home).create("planes", schema=SCHEMA)
    for number in (1, 2, 3):
        correct(shard, number)
    metadata = shard.load().table.metadata
    first, second, third = (
        entry.model_copy(update={"timestamp_ms": at})
        for entry, at in zip(metadata.snapshot_log[-3:], (5, 9, 7), strict=True)
    )
    mended = catalog.in_order(metadata.model_copy(update={"snapshot_log": [first, second, third]}))
    assert [entry.timestamp_ms for entry in mended.snapshot_log] == [5, 9, 9]
    assert catalog.in_order(mended) == mended
