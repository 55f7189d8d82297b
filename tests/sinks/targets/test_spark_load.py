"""First loads by Spark: the same as those of one process, whatever dies, and no row seen before all are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sinks.changes import change
from tests.sinks.targets.conftest import place, with_lake
from tests.sinks.targets.driving import Driven

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.homes import Home

pytestmark = pytest.mark.spark

FIRST = {0: "a", 1: "b/c", 2: None, 3: "", 4: "a"}


def sinking(home: Home, kind: str, folder: Path, mode: str = "mirror", **more: object) -> Driven:
    """Five rows, and a sink that takes five for many; what is returned reads the target."""
    home.settings = with_lake(home.settings, folder)
    change(home, put=FIRST)
    home.declare_sink(to=place(kind, folder), mode=mode, spark_from_rows=len(FIRST), **more)
    return Driven(home.settings, place(kind, folder), mode)


@pytest.mark.parametrize("kind", ["own catalog", "files", "partitioned files"])
def test_a_large_load_is_carried_on_by_small_runs(
    carrying: Home, home_spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    target = sinking(carrying, kind, tmp_path)
    loaded = carrying.run_sink(spark=home_spark)
    assert (loaded.error, loaded.inserted, loaded.upper) == (None, 5, carrying.upper("events"))
    assert target.rows() == carrying.user_rows("events")
    change(carrying, put={1: "B", 9: "c"}, delete=(0,))
    assert carrying.run_sink().inserted == 2
    assert target.rows() == carrying.user_rows("events")
