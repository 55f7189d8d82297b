"""Die at every fail point of staging, compaction and expiry; run again: the same contents, and no file left over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.crash import die_at
from tests.support.leftovers import leftovers
from tests.support.rows import SCHEMA, contents, correction
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit import publisher as shard_commit
from tidemark.iceberg.commit.holds import downgrade_since
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance import compaction, expiry
from tidemark.iceberg.maintenance.orphans import remove_orphans
from tidemark.iceberg.reading.arrow import changes_arrow
from tidemark.iceberg.reading.invariant import check_invariant
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

LATER_MS = 10**15
pytestmark = pytest.mark.crash


@pytest.fixture
def shard(home: Settings) -> Shard:
    """Six corrections at 10, 20, ... 60; since 35, upper 61."""
    shard = Shards.connect(home).create("planes", schema=SCHEMA, key=["id"])
    writer = Writer.join(shard, 1)
    for step in range(1, 7):
        retract = [(step - 1, "x")] if step > 1 else []
        batch = correction(shard.load(), insert=[(step, "x"), (step + 100, "y")], retract=retract, time=step * 10)
        writer.publish(batch, lower=0 if step == 1 else step * 10 - 9, new_upper=step * 10 + 1)
    downgrade_since(shard, 35, now_ms=0)
    return shard


def maintain(settings: Settings) -> None:
    writer = Writer.join(Shards.connect(settings).open("planes"), 1)
    compaction.compact(writer, policy=compaction.CompactionPolicy(min_small_files=2))
    expiry.expire(writer, older_than_ms=LATER_MS)


@pytest.mark.parametrize("point", [*compaction.FAIL_POINTS, *shard_commit.FAIL_POINTS, *expiry.FAIL_POINTS])
def test_killed_maintenance_is_finished_by_the_next(point: str, shard: Shard, home: Settings) -> None:
    rows, log = contents(shard.load()), changes_arrow(shard, 35).to_pylist()
    assert die_at(point, maintain, home) == FAIL_POINT_EXIT, f"{point} was never reached"
    assert contents(shard.load()) == rows
    assert die_at("", maintain, home) == 0
    remove_orphans(shard, older_than_ms=LATER_MS)
    assert contents(shard.load()) == rows
    assert sorted(map(str, changes_arrow(shard, 35).to_pylist())) == sorted(map(str, log))
    assert check_invariant(shard).holds
    assert leftovers(home, shard) == set()
