"""### Move the system's own catalog back from the persist catalog to the stash

As `migrate_catalog`, the other way: `plan` → `approve` → `fence` → `read_tombstone` → `copy_and_flip` makes the stash
equal to the persist catalog and clears the tombstone, **in one transaction** → `verify` compares item by item, before
anybody may join → `announce` lets tasks join again → `see_tombstone`, `check_after`.

Nothing that was acknowledged since the migration is lost. The persist catalog stays as it is, and is garbage from then
on; the next migration replaces all of it.

| you see | do |
|---|---|
| everything after `is_to_be_done` skipped | nothing: the stash is the truth already, or `plan_only` was set |
| everything after `approve` skipped | nothing: it was rejected |
| a task red, *start over from the task that fences* | clear `fence` with what follows: somebody opened the catalog |
| `fence` or `read_tombstone` red, *ask again* | clear `plan` with everything after it: the catalog was changed |
| anything else red | clear that task with everything after it, or go back: trigger `migrate_catalog` |

If the persist catalog cannot be read any more, see *Emergency* in `docs/catalog-migration.md`.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import Param, XComArg, dag

from include.orchestration.catalog_migration import (
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
    is_to_be_done,
    make_plan,
    read_tombstone,
    verify_copy,
)
from include.orchestration.failures import RETRIES
from include.orchestration.plan_approval import PlanApprovalOperator
from include.orchestration.spark_application import SparkApplicationOperator
from include.orchestration.tombstone_sensor import TombstoneSensor


@dag(
    schedule=None,
    catchup=False,
    allowed_run_types=["manual"],
    max_active_runs=1,  # politeness only: the fences, not this line, make two runs safe
    dagrun_timeout=ANSWERED_WITHIN + timedelta(days=1),
    default_args={"owner": "tidemark", "execution_timeout": timedelta(minutes=30), **RETRIES},
    params={
        "plan_only": Param(
            default=False, type="boolean", description="Stop after the plan: nothing is asked or changed."
        ),
    },
    tags=["tidemark", "catalog"],
    doc_md=__doc__,
)
def rollback_catalog() -> None:
    plan = make_plan.override(task_id="plan")("rollback")
    approve = PlanApprovalOperator(
        task_id="approve", subject=SUBJECT, body=BODY, plan_digest=DIGEST, response_timeout=ANSWERED_WITHIN
    )
    fences = fence_both.override(task_id="fence")("rollback", plan, approve.output)
    seen = read_tombstone.override(task_id="read_tombstone")("rollback", plan, fences)
    copy = SparkApplicationOperator(
        task_id="copy_and_flip",
        application="copy_catalog.py",
        application_args=XComArg(seen.operator, key=ARGUMENTS),
        fence_on_retry=False,  # it works under the fences that it is told, whichever try it is
        retry_policy=FENCES_ARE_FINAL,
        pool="spark",
        execution_timeout=timedelta(hours=2),
    )
    verified = verify_copy.override(task_id="verify")("rollback", plan, fences, copy.output)
    announced = announce_leader.override(task_id="announce")("rollback", fences, approve.output)
    gate = TombstoneSensor(task_id="see_tombstone", wanted=False, timeout=600)
    check_back_ends() >> plan
    is_to_be_done(plan) >> approve
    verified >> announced >> gate
    check_after("rollback", gate.output)


rollback_catalog()
