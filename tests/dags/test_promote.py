"""The DAG in this process: a newer deployment waits until it is caught up, asks, is promoted, and flushes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.dags.test_migrate_and_roll_back import answering, skipped, unsuccessful
from tests.support.airflow_runs import states
from tidemark.clock import SystemClock
from tidemark.collections.system.recorder import record_run
from tidemark.deployment.readiness import read_readiness

if TYPE_CHECKING:
    from tests.support.airflow_runs import Dags
    from tests.support.homes import Home

pytestmark = pytest.mark.spark


@pytest.fixture
def new(dags: Dags, monkeypatch: pytest.MonkeyPatch) -> Home:
    """The home of a deployment that stands by, as Airflow's tasks see it; deployment 1 has rows in a collection."""
    old = dags.home
    old.declare_reader()
    old.send_rows(0, 3)
    old.ingest()
    monkeypatch.setenv("TIDEMARK_GENERATION", "2")
    found = old.of_generation(2)
    found.send_rows(1, 2)
    found.clock.step(SystemClock().now_ms() - 120_000 - found.clock.now_ms())
    record_run(found.deployment, found.ingest_all(), clock=found.clock)
    return found


def test_it_asks_once_it_is_caught_up_and_flushes_what_was_staged(dags: Dags, new: Home) -> None:
    before = new.dumps()
    with answering("Reject") as asked:
        rejected = dags.run("promote_deployment")
    assert "Deployment **2** is to lead, in place of deployment **1**" in asked[0]
    assert {"promote", "list_staged", "flush", "check_after"} <= skipped(rejected)
    assert new.dumps() == before

    with answering("Approve"):
        promoted = dags.run("promote_deployment")
    assert {*unsuccessful(promoted)} == {"flush_with_spark"}
    assert promoted["promote"][1]["generation"] == 2
    assert promoted["show_result0"][1]["outcome"] == "flushed"
    assert promoted["check_after"][1]["state"] == "is-leader"
    assert new.ids() == list(range(new.sent))

    again = dags.run("promote_deployment")
    assert "approve" in skipped(again), "it leads: nobody is asked"


def test_it_is_not_forced_without_a_reason(dags: Dags, new: Home) -> None:
    before = new.dumps()
    assert states(dags.run("promote_deployment", force=True))["check"] == "failed"
    assert new.dumps() == before
    assert read_readiness(new.deployment, clock=new.clock).stored.generation == 1
