"""Die at every fail point while Spark stages corrections; run again: published once, and no branch or file left."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.crash import die_in_fork
from tests.support.leftovers import leftovers
from tests.support.rows import SCHEMA, contents, correction
from tests.support.spark_rows import correct_with_spark
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.expiry import expire
from tidemark.iceberg.maintenance.orphans import remove_orphans
from tidemark.iceberg.reading.invariant import check_invariant
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging import frames as staging
from tidemark.iceberg.staging import spark_corrections as corrections_staging
from tidemark.iceberg.staging.branches import drop_staged, find_abandoned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

LATER_MS = 10**15
pytestmark = [pytest.mark.crash, pytest.mark.spark]


@pytest.mark.parametrize("point", [*staging.FAIL_POINTS, *corrections_staging.FAIL_POINTS])
def test_killed_staging_is_done_again(point: str, home: Settings, home_spark: SparkSession) -> None:
    shard = Shards.connect(home).create("planes", schema=SCHEMA, key=["id"])
    batch = correction(shard.load(), insert=[(1, "a"), (2, "b")], time=10)
    Writer.join(shard, 1).publish(batch, lower=0, new_upper=11)

    def correct() -> None:
        correct_with_spark(home_spark, shard, insert=[(3, "c")], retract_ids=[1], time=20, batch="walk")

    assert die_in_fork(point, correct) == FAIL_POINT_EXIT, f"{point} was never reached"
    assert contents(shard.load()) == Counter({(1, "a"): 1, (2, "b"): 1})
    abandoned = find_abandoned(shard.load(), now_ms=LATER_MS, max_age_ms=0)
    assert abandoned
    drop_staged(shard, abandoned[:1])
    correct()
    assert contents(shard.load()) == Counter({(2, "b"): 1, (3, "c"): 1})
    drop_staged(shard, find_abandoned(shard.load(), now_ms=LATER_MS, max_age_ms=0))
    expire(Writer.join(shard, 1), older_than_ms=LATER_MS)
    remove_orphans(shard, older_than_ms=LATER_MS)
    assert shard.load().staged_branches == {}
    assert check_invariant(shard).holds
    assert leftovers(home, shard) == set()
