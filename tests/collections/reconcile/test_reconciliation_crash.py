"""Die at every fail point of a reconcile, run it again: the same contents, and nothing left after maintenance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conftest import settings_in
from tests.support.crash import die_in_fork
from tests.support.homes import Home
from tests.support.leases import forget_leases
from tests.support.leftovers import leftovers
from tests.support.prepared_folder import PreparedFolder
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.reconcile import comparison as difference
from tidemark.collections.reconcile import reconciliation as reconcile
from tidemark.collections.reconcile import spark_corrections as large_corrections
from tidemark.collections.reconcile.choosing.same_source import SAME_SOURCE
from tidemark.collections.reconcile.following import replaced_files
from tidemark.collections.reconcile.run import reconcile_all
from tidemark.collections.reconcile.strategy import Method
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit import publisher as shard_commit
from tidemark.iceberg.maintenance.orphans import remove_orphans
from tidemark.iceberg.staging import frames as staging
from tidemark.iceberg.staging import spark_corrections as corrections_staging
from tidemark.iceberg.staging.branches import drop_staged, find_abandoned
from tidemark.report import Outcome
from tidemark.spark.session import spark_session

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

pytestmark = [pytest.mark.spark, pytest.mark.crash]

FAR_MS, LATER_MS = 10**15, 4 * 10**12
SMALL = tuple((point, "small") for point in (*reconcile.FAIL_POINTS, *shard_commit.FAIL_POINTS))
FOLLOWED = tuple((point, "followed") for point, _ in SMALL)
LARGE = tuple((point, "large") for point in (*staging.FAIL_POINTS, *corrections_staging.FAIL_POINTS))


@pytest.fixture(scope="module")
def twenty_rows(jvm: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> PreparedFolder:
    def fill(folder: Path) -> None:
        settings = settings_in(folder / "home")
        settings.home.mkdir()
        installation = Home(settings, folder)
        declaration = installation.declaration("c", verify_after="100000d")
        installation.write_rows("c", [(n, "a") for n in range(20)])
        installation.apply(declaration)
        with spark_session(settings, app_name="tidemark-tests") as session:
            reconcile_all(session, deployment_of(settings), ["c"], clock=installation.clock)  # as declared

    return PreparedFolder(tmp_path_factory.mktemp("twenty"), fill)


@pytest.fixture
def home(twenty_rows: PreparedFolder) -> Settings:
    """Settings of a home whose one collection holds twenty rows; its source lies beside the home."""
    return settings_in(twenty_rows.restored() / "home")


@pytest.mark.parametrize(("point", "path"), SMALL + FOLLOWED + LARGE)
def test_run_that_died_is_done_by_the_next(
    home: Settings, home_spark: SparkSession, monkeypatch: pytest.MonkeyPatch, *, point: str, path: str
) -> None:
    if path == "followed":
        monkeypatch.setattr(replaced_files, "LEAST_SPARED", 0)  # of little, or of few files, all rows are compared
        monkeypatch.setattr(replaced_files, "MOST_SHARE", 1.0)
    installation = Home(home, home.home.parent)
    desired = [(n, "b" if n % 5 == 0 else "a") for n in range(2, 25)]
    installation.write_rows("c", desired)

    def run() -> None:
        if path == "large":  # corrections of any size take the way of those that do not fit into the driver
            difference.candidates_fit_driver = lambda *_: False
            difference.fits_driver = large_corrections.fits_driver = lambda **_: False
        reconcile_all(home_spark, deployment_of(home), ["c"])

    assert die_in_fork(point, run) == FAIL_POINT_EXIT, f"{point} was never reached"
    upper = installation.shard("c").load().state.upper

    installation.clock.step(LATER_MS)  # the run that died had the real clock
    report = reconcile_all(home_spark, deployment_of(home), ["c"], clock=installation.clock).collections["c"]
    assert installation.tuples("c") == sorted(desired)
    if path == "followed":
        assert report.strategy in {Method.CHANGED_FILES, SAME_SOURCE}
    assert report.outcome in {Outcome.CORRECTED, Outcome.UNCHANGED}
    shard = installation.shard("c")
    assert shard.load().state.upper > upper
    log = shard.load().table.scan(snapshot_id=shard.load().table.metadata.refs["updates"].snapshot_id).to_arrow()
    net: dict[tuple[object, ...], int] = {}
    for row in log.to_pylist():
        net[row["k"], row["v"]] = net.get((row["k"], row["v"]), 0) + row["_diff"]
    assert sorted(row for row, diff in net.items() if diff) == sorted(desired)
    assert set(net.values()) <= {0, 1}

    drop_staged(shard, find_abandoned(shard.load(), now_ms=FAR_MS, max_age_ms=0))
    forget_leases(installation.settings)
    remove_orphans(shard, older_than_ms=FAR_MS)
    assert leftovers(home, shard) == set()
    assert shard.load().staged_branches == {}
