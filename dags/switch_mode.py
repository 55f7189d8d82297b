"""### Switch the deployment to read-only, or back

The same switch as `tidemark mode`: one stored fact, changed by compare-and-set, with who and why in its log. A switch
to **read-only** fences every writer that joined before; from then on appends and corrections are staged: written, and
invisible. The switch to **read-write** loses nothing that was staged, and `flush_staged_batches` publishes it within
seconds. Asking for the mode that holds already changes nothing. While the system's own catalog is moved nobody can
switch: `wait_until_led` waits for the end of that.

A deployment of a newer generation than the leading one is read-only until `promote_deployment` makes it the leader; its
switch to read-write is refused (65).
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import Param, dag

from tidemark.orchestration.retry_policy import RETRIES
from tidemark.orchestration.sensors.leader import LONGEST_MOVE, LedSensor
from tidemark.orchestration.sensors.mode_asset import switch_deployment


@dag(
    schedule=None,
    catchup=False,
    allowed_run_types=["manual"],
    max_active_runs=1,  # politeness only: the switch is a compare-and-set
    dagrun_timeout=LONGEST_MOVE + timedelta(minutes=30),
    default_args={"owner": "tidemark", "execution_timeout": timedelta(minutes=10), **RETRIES},
    params={
        "mode": Param("read-only", enum=["read-only", "read-write"], type="string", description="What is wanted."),
        "why": Param("", type="string", description="The reason, for the record."),
    },
    tags=["tidemark", "deployment"],
    doc_md=__doc__,
)
def switch_mode() -> None:
    LedSensor(task_id="wait_until_led") >> switch_deployment.override(task_id="switch")()


switch_mode()
