"""Die at every fail point while Spark stages corrections; run again: published once, and no branch or file left."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from include.fail_points import FAIL_POINT_EXIT
from include.persist import corrections_staging, staging
from include.persist.expiry import expire
from include.persist.invariant import check_invariant
from include.persist.orphans import remove_orphans
from include.persist.shards import Shards
from include.persist.staging import drop_staged, find_abandoned
from include.settings import PROJECT_ROOT
from tests.persist.leftovers import leftovers
from tests.persist.rows import SCHEMA, contents, correction
from tests.persist.spark_rows import correct_with_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from include.settings import Settings

LATER_MS = 10**15
pytestmark = [pytest.mark.crash, pytest.mark.spark]

CORRECT = """
import os
from include.persist.shards import Shards
from include.settings import Settings
from include.spark import spark_session
from tests.persist.spark_rows import correct_with_spark

settings = Settings.load(os.environ)
shard = Shards.connect(settings).open("planes")
with spark_session(settings, app_name="crash", master="local[1]") as spark:
    correct_with_spark(spark, shard, insert=[(3, "c")], retract_ids=[1], time=20, batch="walk")
"""


@pytest.mark.parametrize("point", [*staging.FAIL_POINTS, *corrections_staging.FAIL_POINTS])
def test_killed_staging_is_done_again(point: str, home: Settings, home_spark: SparkSession) -> None:
    shard = Shards.connect(home).create("planes", schema=SCHEMA, key=["id"])
    batch = correction(shard.load(), insert=[(1, "a"), (2, "b")], time=10)
    shard.join(1).compare_and_append(batch, lower=0, new_upper=11)
    environ = {
        "PATH": "/usr/bin:/bin",
        "TIDEMARK_HOME": str(home.home),
        "TIDEMARK_JARS": str(home.jars),
        "PYTHONPATH": str(PROJECT_ROOT),
    }
    run = [sys.executable, "-c", CORRECT]
    killed = subprocess.run(run, env=environ | {"TIDEMARK_FAIL_POINT": point}, check=False, capture_output=True)
    assert killed.returncode == FAIL_POINT_EXIT, killed.stderr.decode()[-3000:]
    assert contents(shard.load()) == Counter({(1, "a"): 1, (2, "b"): 1})
    abandoned = find_abandoned(shard.load(), now_ms=LATER_MS, max_age_ms=0)
    assert abandoned
    drop_staged(shard, abandoned[:1])
    correct_with_spark(home_spark, shard, insert=[(3, "c")], retract_ids=[1], time=20, batch="walk")
    assert contents(shard.load()) == Counter({(2, "b"): 1, (3, "c"): 1})
    drop_staged(shard, find_abandoned(shard.load(), now_ms=LATER_MS, max_age_ms=0))
    expire(shard.join(1), older_than_ms=LATER_MS)
    remove_orphans(shard, older_than_ms=LATER_MS)
    assert shard.load().staged_branches == {}
    assert check_invariant(shard).holds
    assert leftovers(home, shard) == set()
