"""What ``migrate_catalog`` and ``rollback_catalog`` have in common: how they run, and their tasks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from airflow.sdk import Param, XComArg

from tidemark.orchestration.approval import PlanApprovalOperator
from tidemark.orchestration.retry_policy import RETRIES
from tidemark.orchestration.sensors.tombstone import TombstoneSensor
from tidemark.orchestration.spark_application import SparkApplicationOperator
from tidemark.orchestration.tasks.catalog_migration import (
    ANSWERED_WITHIN,
    ARGUMENTS,
    BODY,
    DIGEST,
    FENCES_ARE_FINAL,
    SUBJECT,
    announce_leader,
    check_after,
    check_back_ends,
    fence_both,
    flip_truth,
    is_to_be_done,
    make_plan,
    read_tombstone,
    verify_copy,
)

DAG_ARGUMENTS: Final[dict[str, Any]] = {
    "catchup": False,
    "allowed_run_types": ["manual"],
    "max_active_runs": 1,  # politeness only: the fences, not this line, make two runs safe
    "dagrun_timeout": ANSWERED_WITHIN + timedelta(days=1),
    "default_args": {"owner": "tidemark", "execution_timeout": timedelta(minutes=30), **RETRIES},
    "params": {
        "plan_only": Param(
            default=False, type="boolean", description="Stop after the plan: nothing is asked or changed."
        )
    },
    "tags": ["tidemark", "catalog"],
}


def move_truth(direction: str) -> None:
    """Plan, ask, fence, copy, verify, flip, announce and check, in the present DAG; a rollback flips with its copy."""
    migrates = direction == "migrate"
    # A task that gets an output of another one gets the value, not an ``XComArg``: hence ``Any``.
    plan: Any = make_plan.override(task_id="plan")(direction)
    approve: Any = PlanApprovalOperator(
        task_id="approve", subject=SUBJECT, body=BODY, plan_digest=DIGEST, response_timeout=ANSWERED_WITHIN
    )
    fences: Any = fence_both.override(task_id="fence")(direction, plan, approve.output)
    seen: Any = read_tombstone.override(task_id="read_tombstone")(direction, plan, fences)
    copy: Any = SparkApplicationOperator(
        task_id="copy" if migrates else "copy_and_flip",
        application="copy_catalog.py",
        application_args=XComArg(seen.operator, key=ARGUMENTS),
        fence_on_retry=False,  # it works under the fences that it is told, whichever try it is
        retry_policy=FENCES_ARE_FINAL,
        pool="spark",
        execution_timeout=timedelta(hours=2),
    )
    verified: Any = verify_copy.override(task_id="verify")(direction, plan, fences, copy.output)
    flipped = flip_truth.override(task_id="flip")(fences, verified) if migrates else verified
    announced = announce_leader.override(task_id="announce")(direction, fences, seen, approve.output)
    gate: Any = TombstoneSensor(task_id="see_tombstone", wanted=migrates, or_unset=not migrates, timeout=600)
    check_back_ends() >> plan
    is_to_be_done(plan) >> approve
    flipped >> announced >> gate
    check_after(direction, gate.output)
