"""What a run knows of the stored rows before it reads them; no JVM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import numpy as np
import pytest
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.support.rows import SCHEMA, Row, contents, correction, local_path, updates_table
from tidemark.collections.digest import digest
from tidemark.collections.digest.digest import Digest, digest_from_bytes, digest_to_bytes
from tidemark.collections.digest.row_layout import RowShape
from tidemark.collections.reconcile.pinned_snapshot import Pinned
from tidemark.iceberg.commit.publisher import set_ref
from tidemark.iceberg.commit.snapshot_builder import SnapshotBuilder, SnapshotChange
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.files.manifests import read_data_files
from tidemark.iceberg.shard.digest_file import bound_file, write_digest
from tidemark.iceberg.shard.head import MAIN
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

NUMBERS = np.arange(100_000, dtype=np.int64)
SHAPE = RowShape(StructType([StructField("id", LongType()), StructField("name", StringType())]), ("id",))


def pinned(shard: Shard) -> Pinned:
    return Pinned(spark=cast("Any", None), shard=shard, head=shard.load(), shape=SHAPE)


def rewrite_elsewhere(shard: Shard, rows: Sequence[Row], *, time: int) -> None:
    """Rewrite all data files as another tool does that leaves delete files which delete nothing any more."""
    head = shard.load()
    change = SnapshotChange(
        operation=Operation.REPLACE,
        added=write_rows(head.table, updates_table(rows, time=time, diff=1)),
        removed=frozenset(read_data_files(head.table.io, head.main)),
    )
    snapshot = SnapshotBuilder(head.table, commit_uuid=uuid4(), attempt=1).build(head.main, change)
    moved = set_ref(MAIN, snapshot, SnapshotRefType.BRANCH)
    shard.iceberg.commit_table(head.table, (), (AddSnapshotUpdate(snapshot=snapshot), moved))


def test_rows_that_useless_delete_files_outweigh_are_not_taken_for_none(home: Settings) -> None:
    shard = Shards.connect(home).create("c", schema=SCHEMA, key=["id"])
    assert pinned(shard).digest is not None, "nothing was ever stored: that is known without a digest"
    writer = Writer.join(shard, 1)
    writer.publish(correction(shard.load(), insert=[(1, "a")], time=1), lower=0, new_upper=2)
    newer = correction(shard.load(), insert=[(1, "b")], retract=[(1, "a")], time=2)
    writer.publish(newer, lower=2, new_upper=3)
    rewrite_elsewhere(shard, [(1, "b")], time=2)
    head = shard.load()
    assert (head.foreign, contents(head)) == (None, {(1, "b"): 1})
    assert head.row_count == 0, "one record, one delete that deletes nothing: by the books"
    assert pinned(shard).digest is None, "so the rows must be scanned"


def test_digest_of_a_column_that_was_dropped_is_none_of_its_successor(home: Settings) -> None:
    shard = Shards.connect(home).create("c", schema=SCHEMA, key=["id"])
    blob = digest_to_bytes(Digest.empty(16), SHAPE.layout)
    batch = correction(shard.load(), insert=[(1, "a")], time=1)
    Writer.join(shard, 1).publish(batch, lower=0, new_upper=2, digest=blob)
    assert pinned(shard).digest is not None
    for _ in range(2):
        with shard.load().table.update_schema() as update:
            update.delete_column("name")
        with shard.load().table.update_schema() as update:
            update.add_column(("name",), SCHEMA.find_type("name"))
            update.move_before("name", "_time")
        assert pinned(shard).digest is None
        Writer.raise_token(shard, 1)  # which keeps the digest of contents that it leaves alone
        assert pinned(shard).digest is None
    assert shard.load().table.metadata.statistics == []


def publish_with_digest(shard: Shard, row: Row) -> Path:
    """Publish a row; return the file of the digest."""
    upper = shard.load().state.upper
    batch, blob = correction(shard.load(), insert=[row], time=upper), digest_to_bytes(Digest.empty(16), SHAPE.layout)
    Writer.join(shard, 1).publish(batch, lower=upper, new_upper=upper + 1, digest=blob)
    bound = bound_file(shard.load())
    assert bound is not None
    return Path(local_path(bound.statistics_path))


@pytest.mark.parametrize(
    ("place", "bits"), [(0, 0xFF), (4, 0xFF), (8, 0x80), (40, 0xFF), (-60, 0xFF), (-1, 0xFF)], ids=str
)
def test_damaged_digest_is_none_with_a_warning(
    home: Settings, caplog: pytest.LogCaptureFixture, place: int, bits: int
) -> None:
    shard = Shards.connect(home).create("c", schema=SCHEMA, key=["id"])
    path = publish_with_digest(shard, (1, "a"))
    content = bytearray(path.read_bytes())
    content[place] ^= bits
    path.write_bytes(content)
    assert pinned(shard).digest is None
    check_warning(caplog, " damaged")


@pytest.mark.parametrize("size", [0, 3, 4, 5, 40, -1])
def test_truncated_digest_is_none_with_a_warning(home: Settings, caplog: pytest.LogCaptureFixture, size: int) -> None:
    shard = Shards.connect(home).create("c", schema=SCHEMA, key=["id"])
    path = publish_with_digest(shard, (1, "a"))
    path.write_bytes(path.read_bytes()[:size])
    assert pinned(shard).digest is None
    check_warning(caplog, "is damaged")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def check_warning(caplog: pytest.LogCaptureFixture, reason: str) -> None:
    (warned,) = warnings(caplog)
    assert warned.startswith("the digest of collections.c ")
    assert reason in warned


def test_digest_of_another_commit_is_none_with_a_warning(home: Settings, caplog: pytest.LogCaptureFixture) -> None:
    shard = Shards.connect(home).create("c", schema=SCHEMA, key=["id"])
    first = publish_with_digest(shard, (1, "a"))
    older = first.read_bytes()
    path = publish_with_digest(shard, (2, "b"))
    assert pinned(shard).digest is not None
    assert not warnings(caplog)
    path.write_bytes(older)
    assert pinned(shard).digest is None
    check_warning(caplog, f"is a copy of {first.name}")


def test_digest_that_is_gone_or_of_another_version_is_none_with_a_warning(
    home: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = Shards.connect(home).create("c", schema=SCHEMA, key=["id"])
    path = publish_with_digest(shard, (1, "a"))
    monkeypatch.setattr(digest, "HASH_VERSION", digest.HASH_VERSION + 1)
    assert pinned(shard).digest is None
    check_warning(caplog, "it is of another version")
    caplog.clear()
    path.unlink()
    assert pinned(shard).digest is None
    check_warning(caplog, "is gone")
    caplog.clear()
    head = shard.load()
    assert write_digest(head.table, path.stem.removeprefix("tidemark-digest-"), b"", None).statistics_path
    path.write_bytes(path.read_bytes().replace(b"tidemark-digest-v1", b"elsewhere-sketch-1"))
    assert pinned(shard).digest is None
    check_warning(caplog, "is none of ours")


def test_no_digest_was_ever_kept_and_nothing_is_said(home: Settings, caplog: pytest.LogCaptureFixture) -> None:
    shard = Shards.connect(home).create("c", schema=SCHEMA, key=["id"])
    Writer.join(shard, 1).publish(correction(shard.load(), insert=[(1, "a")], time=1), lower=0, new_upper=2)
    assert pinned(shard).digest is None
    publish_with_digest(shard, (2, "b"))
    assert pinned(shard).file_digests is None, "of no file"
    assert not warnings(caplog)


@pytest.mark.parametrize(("changed", "buckets"), [(2000, 1 << 14), (10, 1 << 13)])
def test_digest_is_kept_in_more_buckets_where_many_rows_change(home: Settings, changed: int, buckets: int) -> None:
    shard = Shards.connect(home).create("c", schema=SCHEMA, key=["id"])
    old = digest_to_bytes(Digest.of_hashes(NUMBERS, NUMBERS, 1 << 13), SHAPE.layout)  # by the rule of older versions
    batch = correction(shard.load(), insert=[(1, "a")], time=1)
    Writer.join(shard, 1).publish(batch, lower=0, new_upper=2, digest=old)
    scanned = Digest.of_hashes(NUMBERS, NUMBERS, 1 << 14)
    note, kept = pinned(shard).digest_to_keep(
        scanned, changed=changed, source="", compared_ms=0, mark="", keeps_file=False
    )
    read = digest_from_bytes(kept or b"", SHAPE.layout)
    assert f"buckets={buckets} " in note
    assert read is not None
    assert (read.bucket_count, len(read.differing(scanned))) == (buckets, 0)
