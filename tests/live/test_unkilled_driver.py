"""A driver that outlives its killed task must never put older contents over newer ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.live.conftest import DECLARATIONS, RECONCILE, RUN_SECONDS
from tests.live.drivers import driver_of, is_executing

if TYPE_CHECKING:
    from tests.support.homes import Home
    from tests.support.warm_driver.start import WarmSpark
    from tools.local_airflow.client import AirflowClient

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.crash]

# Reading a row takes as many ms as the row says, so the data decide how long a driver is busy.
SLOW = """
  slow:
    kind: differential
    key: [id]
    schema: "id int, value string"
    source:
      inputs:
        f: {format: csv, path: slow.csv, options: {header: true}, schema: "id int, value string, delay_ms bigint"}
      sql: "SELECT id, value FROM f WHERE java_method('java.lang.Thread', 'sleep', delay_ms) IS NOT NULL"
"""


def test_orphan_is_fenced_by_the_retry(client: AirflowClient, installation: Home, warm: WarmSpark) -> None:
    installation.write_lines("slow", "id,value,delay_ms", "1,first,0")
    installation.declare(DECLARATIONS + SLOW)
    client.unpause(RECONCILE)
    first = client.trigger(RECONCILE, conf={"collections": ["slow"]})
    assert client.wait(RECONCILE, first, timeout_s=RUN_SECONDS) == "success"

    installation.write_lines("slow", "id,value,delay_ms", "1,old,30000")
    with warm.submitting_for_real():
        run_id = client.trigger(RECONCILE, conf={"collections": ["slow"]})
        driver = client.wait_until(
            lambda: driver_of("slow", "reconcile_collections.py"), what="the driver", timeout_s=RUN_SECONDS
        )
    jvm = driver.parent()
    report = Path(driver.cmdline()[driver.cmdline().index("--report") + 1])
    client.wait_until(lambda: is_executing(jvm), what="a Spark task that reads the old row", timeout_s=RUN_SECONDS)
    task_runner = jvm.parent()
    task_runner.kill()
    task_runner.wait(timeout=30)  # the system hangs up on a group that is stopped while it loses its parent
    jvm.suspend()  # so that it is slower than the retry, however busy this machine is
    installation.write_lines("slow", "id,value,delay_ms", "1,new,0")

    assert client.wait(RECONCILE, run_id, timeout_s=2 * RUN_SECONDS) == "success"
    tasks = client.tasks(RECONCILE, run_id)
    assert tasks["reconcile"]["try_number"] == 2
    assert installation.user_rows("slow") == [{"id": 1, "value": "new"}]
    assert jvm.is_running(), "the driver survives its task, which is the danger"
    jvm.resume()
    client.wait_until(lambda: not jvm.is_running(), what="the end of the orphan", timeout_s=RUN_SECONDS)
    ended = json.loads(report.read_text())
    shutil.rmtree(report.parent)  # the killed task could not
    assert ended["exit_code"] == 77
    assert ended["collections"]["slow"]["error"]["kind"] == "FencedByEpoch"
    assert installation.user_rows("slow") == [{"id": 1, "value": "new"}]
