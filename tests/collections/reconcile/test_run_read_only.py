"""Reconciles of a read-only deployment: staged, kept current by later ones, and nothing of the leader's is touched."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.events import CLOCK, switch
from tests.support.homes import Home
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.deployment import Mode
from tidemark.collections.reconcile.run import fence_earlier_tries, reconcile_all
from tidemark.collections.reconcile.stale import reconcile_stale
from tidemark.collections.staged.flush import flush_all
from tidemark.report import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.report import CollectionReport
    from tidemark.settings import Settings

pytestmark = pytest.mark.spark

HOURS = 3


@pytest.fixture
def installation(home: Settings, tmp_path: Path) -> Home:
    made = Home(home, tmp_path)
    made.write_rows("planes", [(1, "one"), (2, "two")])
    made.apply(made.declaration("planes"))
    return made


def reconcile(spark: SparkSession, settings: Settings) -> CollectionReport:
    return reconcile_all(spark, deployment_of(settings), [], clock=CLOCK).collections["planes"]


def of_the_leader(installation: Home, settings: Settings) -> tuple[object, ...]:
    """Everything that readers and the leader see: state, refs but for the staging branches, the data files of main."""
    head = installation.shard("planes").load()
    refs = {name: ref for name, ref in head.table.metadata.refs.items() if not name.startswith("staged/")}
    tables = sorted(path.name for path in (settings.home / "warehouse").glob("*/*"))
    return (
        head.state,
        refs,
        sorted(head.table.inspect.files()["file_path"].to_pylist()),
        tables,
        installation.tuples("planes"),
    )


def test_corrections_are_staged_kept_current_and_published(
    installation: Home, home_spark: SparkSession, home: Settings
) -> None:
    assert reconcile(home_spark, home).outcome is Outcome.CORRECTED
    switch(home, Mode.READ_ONLY)
    before = of_the_leader(installation, home)
    for hour in range(HOURS):
        installation.write_rows("planes", [(1, f"hour {hour}"), (3, "three")])
        report = reconcile(home_spark, home)
        assert (report.outcome, report.inserted, report.retracted) == (Outcome.STAGED, 2, 2)
    assert of_the_leader(installation, home) == before
    assert len(installation.shard("planes").load().staged_branches) == 1
    switch(home, Mode.READ_WRITE)
    assert (
        flush_all(installation.shards, deployment_of(home), [], clock=CLOCK).collections["planes"].outcome
        is Outcome.FLUSHED
    )
    assert installation.tuples("planes") == [(1, f"hour {HOURS - 1}"), (3, "three")]
    assert reconcile(home_spark, home).outcome is Outcome.UNCHANGED


def test_corrections_that_are_not_wanted_any_more_are_dropped(
    installation: Home, home_spark: SparkSession, home: Settings
) -> None:
    reconcile(home_spark, home)
    switch(home, Mode.READ_ONLY)
    installation.write_rows("planes", [(1, "uno"), (2, "two")])
    reconcile(home_spark, home)
    installation.write_rows("planes", [(1, "one"), (2, "two")])
    assert reconcile(home_spark, home).outcome is Outcome.UNCHANGED
    assert installation.shard("planes").load().staged_branches == {}


def test_deployment_beside_a_leader_neither_fences_nor_changes_it(
    installation: Home, home_spark: SparkSession, home: Settings
) -> None:
    switch(home, Mode.READ_WRITE)
    reconcile(home_spark, home)
    newer = replace(home, generation=2)
    before = of_the_leader(installation, home)
    installation.write_rows("planes", [(1, "uno"), (2, "two")])
    fence_earlier_tries(installation.shards, [], deployment_of(newer))
    assert reconcile(home_spark, newer).outcome is Outcome.STAGED
    assert of_the_leader(installation, home) == before
    assert reconcile(home_spark, home).outcome is Outcome.CORRECTED
    switch(newer, Mode.READ_WRITE)
    flushed = flush_all(installation.shards, deployment_of(newer), [], clock=CLOCK)
    report = flushed.collections["planes"]
    assert (report.outcome, len(report.details["stale"])) == (Outcome.FAILED, 1)
    done = reconcile_stale(flushed, deployment_of(newer), start_spark=lambda: home_spark, clock=CLOCK)
    report = done.collections["planes"]
    assert (report.outcome, report.error, report.details) == (
        Outcome.UNCHANGED,
        None,
        {"reconciled": ["tidemark reconcile planes"]},
    )
    assert installation.branches() == set()
    assert installation.tuples("planes") == [(1, "uno"), (2, "two")]
