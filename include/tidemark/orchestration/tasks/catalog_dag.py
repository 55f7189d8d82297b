"""What ``migrate_catalog`` and ``rollback_catalog`` have in common: how they run, and their tasks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from airflow.sdk import Param, TriggerRule, XComArg

from tidemark.orchestration.approval import PlanApprovalOperator
from tidemark.orchestration.retry_policy import RETRIES
from tidemark.orchestration.sensors.fences import FencesSensor
from tidemark.orchestration.sensors.running_tasks import NothingRunsSensor
from tidemark.orchestration.sensors.tombstone import TombstoneSensor
from tidemark.orchestration.spark_application import SparkApplicationOperator
from tidemark.orchestration.tasks.catalog_migration import (
    ANSWERED_WITHIN,
    ARGUMENTS,
    BODY,
    COPY_TAKES,
    DIGEST,
    FENCES_ARE_FINAL,
    SEEN_WITHIN,
    STEP_TAKES,
    SUBJECT,
    TASKS_END_WITHIN,
    TRIES,
    announce_leader,
    check_after,
    check_back_ends,
    fence_both,
    flip_truth,
    is_to_be_done,
    lead_again,
    make_plan,
    read_tombstone,
    verify_copy,
)

POOL: Final = "catalog"  # of its own: between fence and flip no task may wait for a long run of the pool `spark`
# From the fence on nobody can work: few tries, and none of them long.
WHILE_FENCED: Final[dict[str, Any]] = {"retries": TRIES - 1, "execution_timeout": STEP_TAKES, "pool": POOL}

DAG_ARGUMENTS: Final[dict[str, Any]] = {
    "catchup": False,
    "allowed_run_types": ["manual"],
    "max_active_runs": 1,  # politeness only: the fences, not this line, make two runs safe
    "dagrun_timeout": ANSWERED_WITHIN + timedelta(days=1),  # the tasks after the answer take hours at most
    "default_args": {"owner": "tidemark", "execution_timeout": timedelta(minutes=30), **RETRIES},
    "params": {
        "plan_only": Param(
            default=False, type="boolean", description="Stop after the plan: nothing is asked or changed."
        ),
        "wait_for_tasks": Param(
            default=True,
            type="boolean",
            description="Let running tasks end before the fence, which makes them start over.",
        ),
    },
    "tags": ["tidemark", "catalog"],
}


def move_truth(direction: str) -> None:
    """Plan, ask, fence, copy, verify, flip, announce and check, in the present DAG; a rollback flips with its copy.

    The first task takes a slot of the same pool as the tasks between fence and flip: where that pool is missing, or
    has no slot, the run stops there, with nobody fenced.
    """
    migrates = direction == "migrate"
    # A task that gets an output of another one gets the value, not an ``XComArg``: hence ``Any``.
    plan: Any = make_plan.override(task_id="plan")(direction)
    approve: Any = PlanApprovalOperator(
        task_id="approve", subject=SUBJECT, body=BODY, plan_digest=DIGEST, response_timeout=ANSWERED_WITHIN
    )
    quiet = NothingRunsSensor(task_id="wait_for_tasks", timeout=TASKS_END_WITHIN.total_seconds())
    fences: Any = fence_both.override(task_id="fence", **WHILE_FENCED)(direction, plan, approve.output)
    see_fences = FencesSensor(
        task_id="see_fences",
        plan=plan,
        fences=fences,
        retry_policy=FENCES_ARE_FINAL,
        timeout=SEEN_WITHIN,
        **WHILE_FENCED,
    )
    seen: Any = read_tombstone.override(task_id="read_tombstone", **WHILE_FENCED)(direction, plan, fences)
    copy: Any = SparkApplicationOperator(
        task_id="copy" if migrates else "copy_and_flip",
        application="copy_catalog.py",
        application_args=XComArg(seen.operator, key=ARGUMENTS),
        fence_on_retry=False,  # it works under the fences that it is told, whichever try it is
        joins_leader=False,  # there is none: that is why it runs
        retry_policy=FENCES_ARE_FINAL,
        **WHILE_FENCED | {"execution_timeout": COPY_TAKES},
    )
    verify = verify_copy.override(task_id="verify", **WHILE_FENCED | {"execution_timeout": COPY_TAKES})
    verified: Any = verify(direction, plan, fences, copy.output)
    gate: Any = TombstoneSensor(
        task_id="see_tombstone", wanted=migrates, or_unset=not migrates, timeout=SEEN_WITHIN, **WHILE_FENCED
    )
    announced: Any = announce_leader.override(task_id="announce", **WHILE_FENCED)(
        direction, fences, seen, approve.output
    )
    check_back_ends.override(pool=POOL)() >> plan
    is_to_be_done(plan) >> approve >> quiet >> fences >> see_fences >> seen
    if migrates:
        flipped: Any = flip_truth.override(task_id="flip", **WHILE_FENCED)(fences, verified)
        flipped >> gate >> announced
    else:
        copy >> gate >> verified >> announced
    announced >> check_after(direction, gate.output)
    given_up: Any = lead_again.override(trigger_rule=TriggerRule.ONE_FAILED)(direction, fences, verified)
    [see_fences, seen, copy, gate, announced] >> given_up
