"""Migrating the catalog under a real scheduler, approved through its REST interface, with the copying task killed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.conftest import settings_in
from tests.live.conftest import MIGRATE, RUN_SECONDS, working_on
from tests.live.drivers import driver_of
from tests.support.homes import Home, put
from tidemark.catalog.opening.opening import Direction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.warm_driver.start import WarmSpark
    from tools.local_airflow.client import AirflowClient

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.crash]

ITEMS = 21_000  # more than are copied without Spark
# An answer that comes while the process which asked is still ending fails that try, and the next one asks again.
ANSWER_AFTER_SECONDS = 5  # that process ends within a heartbeat, which `QUICK` makes one second


@pytest.fixture
def catalog(client: AirflowClient, installation: Home) -> Iterator[Home]:
    """A catalog of its own, with many items, by changing three connections."""
    folder = installation.folder / "migrated"
    folder.mkdir()
    home = Home(settings_in(folder))
    home.open(Direction.ROLLBACK, add=[f"row {number}" for number in range(ITEMS)])
    with working_on(client, home.settings):
        yield home


def test_a_killed_copy_is_made_again_and_nothing_is_lost(client: AirflowClient, catalog: Home, warm: WarmSpark) -> None:
    client.unpause(MIGRATE)
    run_id = client.trigger(MIGRATE)
    client.wait_until(
        lambda: client.tasks(MIGRATE, run_id)["approve"]["state"] == "awaiting_input",
        what="the question",
        timeout_s=RUN_SECONDS,
    )
    time.sleep(ANSWER_AFTER_SECONDS)
    assert catalog.truth() == "stash"
    with catalog.catalog.join():
        pass  # nobody is fenced before the answer
    with warm.submitting_for_real():
        client.answer(MIGRATE, run_id, "approve", "Approve")
        driver = client.wait_until(
            lambda: driver_of("migrate", "copy_catalog.py"), what="the driver", timeout_s=RUN_SECONDS
        )
    task_runner = driver.parent().parent()
    task_runner.kill()  # the driver goes on, as a twin of the next try

    assert client.wait(MIGRATE, run_id, timeout_s=2 * RUN_SECONDS) == "success"
    tasks = client.tasks(MIGRATE, run_id)
    assert tasks["copy"]["try_number"] == 2
    assert {task["state"] for task in tasks.values() if task["task_id"] != "lead_again"} == {"success"}
    after = client.xcom(MIGRATE, run_id, "check_after")
    assert (after["truth"], after["counts"]["setting"]) == ("persist", ITEMS)
    assert catalog.setting_names_of("persist") == catalog.setting_names_of("stash")
    with catalog.catalog.join() as task:
        put(task, "acknowledged")
