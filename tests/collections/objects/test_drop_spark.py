"""Spark knows tables by name: what it writes while its table is dropped and made anew reaches neither."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.collections.objects.test_drop import EVENTS, append, ids_in, recreate
from tests.support.homes import Home
from tidemark.collections.objects.drop import drop, plan_drop
from tidemark.collections.reconcile import reconciliation
from tidemark.collections.reconcile.run import reconcile_all
from tidemark.errors import Dropped
from tidemark.iceberg.staging import frames
from tidemark.iceberg.staging.branches import branch_name
from tidemark.iceberg.staging.frames import stage

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

pytestmark = pytest.mark.spark

PLANES = (
    "version: 1\ncollections:\n  planes:\n    kind: differential\n    key: [k]\n"
    "    source: {format: csv, path: planes.csv, options: {header: true}, schema: 'k int, v string'}\n"
)


def test_a_stage_of_the_old_table_does_not_reach_the_new_one(
    home_spark: SparkSession, home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Home(home, tmp_path)
    place.declare(EVENTS)
    append(place, 0, 2)
    rows = home_spark.sql("SELECT 9L AS id, 'late' AS name, 'p' AS _producer, 9L AS _batch")
    monkeypatch.setattr(frames, "fail_point", lambda point: recreate(place) if point == "stage.after-branch" else None)
    with pytest.raises(Dropped):
        stage(place.shard(), rows, branch=branch_name(generation=1, writer="w", batch="b"))
    assert (place.branches(), place.ids(), ids_in(place, "events_1")) == (set(), [], [0, 1])


def test_a_reconcile_of_the_old_table_fails_and_corrects_nothing_of_the_new_one(
    home_spark: SparkSession, home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Home(home, tmp_path)
    place.write_rows("planes", [(1, "a"), (2, "b")])
    place.declare(PLANES)
    assert reconcile_all(home_spark, place.deployment, [], clock=place.clock).outcome == "ok"
    place.write_rows("planes", [(1, "a"), (3, "c")])
    real = reconciliation.Reconciliation.run

    def drop_first(self: reconciliation.Reconciliation, *arguments: object) -> object:
        plans = plan_drop(place.shards, place.deployment, ["planes"], clock=place.clock)
        drop(place.shards, place.deployment, plans, clock=place.clock)
        place.declare(PLANES)
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(reconciliation.Reconciliation, "run", drop_first)
    report = reconcile_all(home_spark, place.deployment, ["planes"], clock=place.clock).collections["planes"]
    assert report.error is not None
    assert report.error.kind == "Dropped"
    assert place.rows("planes") == []
    monkeypatch.setattr(reconciliation.Reconciliation, "run", real)
    assert (
        reconcile_all(home_spark, place.deployment, ["planes"], clock=place.clock).collections["planes"].inserted == 2
    )
