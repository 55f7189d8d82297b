"""The DAG of storage workers in this process: real workers, one after the other, until nothing waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.airflow_runs import states
from tidemark.storage.view import read_view

if TYPE_CHECKING:
    from tests.support.airflow_runs import Dags

pytestmark = pytest.mark.slow


def test_a_worker_ingests_what_waits_and_ends(dags: Dags) -> None:
    dags.home.declare_reader()
    dags.home.send_rows(0, 5)
    skipped = dags.run("run_storage_workers", workers=1, left_out="watch")
    assert states(skipped)["work"] == "skipped", "nothing declares `every`"
    dags.home.declare_reader(source={"every": "1s"})
    ran = dags.run("run_storage_workers", workers=1, minutes=2, until_drained=True, left_out="watch")
    assert states(ran)["work0"] == "success"
    assert len(dags.home.ids()) == 5
    (worker,) = read_view(dags.home.settings)["workers"]
    assert worker["state"] == "ended: nothing was left to do"
