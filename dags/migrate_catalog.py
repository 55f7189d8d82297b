"""### Move the system's own catalog from the stash to the persist catalog

`plan` does it on copies that are thrown away and writes down what comes of it, under a digest → `approve` asks a person
(Required Actions), for exactly that plan → `fence` stops everybody who works with the catalog, the stash first →
`read_tombstone` sees which side is the truth, now that nobody changes it → `copy` makes the persist catalog equal to
the stash: a Spark application that writes the net difference, in one commit → `verify` compares item by item → `flip`
sets the tombstone: **from here on the persist catalog is the truth** → `announce` lets tasks join again →
`see_tombstone` and `check_after` look at it as everybody else does.

| you see | do |
|---|---|
| everything after `is_to_be_done` skipped | nothing: it was migrated before, or `plan_only` was set |
| everything after `approve` skipped | nothing: it was rejected |
| a task red, *start over from the task that fences* | clear `fence` with what follows: somebody opened the catalog |
| `fence` or `read_tombstone` red, *ask again* | clear `plan` with everything after it: the catalog was changed |
| anything else red | clear that task with everything after it, or go back: trigger `rollback_catalog` |

Every task may be killed, retried, cleared or run twice at once; two runs fence each other, and at most one gets to its
end. What to do after a crash is in `docs/catalog-migration.md`.
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
    flip_truth,
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
def migrate_catalog() -> None:
    plan = make_plan.override(task_id="plan")("migrate")
    approve = PlanApprovalOperator(
        task_id="approve", subject=SUBJECT, body=BODY, plan_digest=DIGEST, response_timeout=ANSWERED_WITHIN
    )
    fences = fence_both.override(task_id="fence")("migrate", plan, approve.output)
    seen = read_tombstone.override(task_id="read_tombstone")("migrate", plan, fences)
    copy = SparkApplicationOperator(
        task_id="copy",
        application="copy_catalog.py",
        application_args=XComArg(seen.operator, key=ARGUMENTS),
        fence_on_retry=False,  # it works under the fences that it is told, whichever try it is
        retry_policy=FENCES_ARE_FINAL,
        pool="spark",
        execution_timeout=timedelta(hours=2),
    )
    verified = verify_copy.override(task_id="verify")("migrate", plan, fences, copy.output)
    flipped = flip_truth.override(task_id="flip")(fences, verified)
    announced = announce_leader.override(task_id="announce")("migrate", fences, approve.output)
    gate = TombstoneSensor(task_id="see_tombstone", wanted=True, timeout=600)
    check_back_ends() >> plan
    is_to_be_done(plan) >> approve
    flipped >> announced >> gate
    check_after("migrate", gate.output)


migrate_catalog()
