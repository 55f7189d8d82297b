"""### Let a newer deployment take over from the one that leads

Run this in the **new** deployment's Airflow, the one with the larger `TIDEMARK_GENERATION`. Until then that deployment
is read-only: all its DAGs run beside the leader's, and stage. `tidemark deployment status` shows how far it is.

`check` looks at stores, connections and jars → `wait_until_caught_up` waits in the triggerer until every object is
caught up, and has been for a minute → `plan` writes down what will happen, under a digest → `approve` asks a person
(Required Actions), for exactly that plan → `promote` opens the catalog under the new generation, which **fences the
older deployment for good**, and raises the token of every collection → `list_staged`, `flush` publish what was staged,
one commit for each collection; `flush_with_spark` also reconciles what does not fit any more → `verify_flush` looks
into the ledgers, and `show_result` is a task for each collection → `check_after` says who leads.

| you see | do |
|---|---|
| `wait_until_caught_up` deferred | `tidemark deployment status`, or the page, says how late each object is, and why |
| everything after `is_to_be_done` skipped | nothing: this deployment leads already |
| everything after `approve` skipped | nothing: it was rejected |
| `plan` red, `NotCaughtUp` | it was caught up, and is not any more: clear `wait_until_caught_up`, or force it |
| `promote` red, *another promotion was approved* | clear `plan` with everything after it: it asks again |
| `promote` red, `NotCaughtUp` | it was caught up when it asked, and is not any more: clear `wait_until_caught_up` |
| `promote` red, 77 | a still newer deployment leads: stop this one |
| a later task red | clear it: the promotion stands, and a flush is safe twice |

With `force` it does not wait: it needs `why`, which is on record with who asked and who approved. The way back is this
DAG in the older program's Airflow, started with a generation larger than that of the new one.

Every task may be killed, retried, cleared or run twice at once.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Param, TriggerRule, dag

from tidemark.orchestration.approval import PlanApprovalOperator
from tidemark.orchestration.retry_policy import RETRIES
from tidemark.orchestration.sensors.caught_up import CaughtUpSensor
from tidemark.orchestration.tasks.flush import flush_staged
from tidemark.orchestration.tasks.promote import (
    ANSWERED_WITHIN,
    BODY,
    DIGEST,
    SUBJECT,
    check_after,
    check_stores_and_reason,
    is_to_be_done,
    make_plan,
    promote,
)

CAUGHT_UP_WITHIN = timedelta(days=7)


@dag(
    schedule=None,
    catchup=False,
    allowed_run_types=["manual"],
    max_active_runs=1,  # politeness only: of two promotions one finds nothing to do
    dagrun_timeout=CAUGHT_UP_WITHIN + ANSWERED_WITHIN + timedelta(days=1),
    default_args={"owner": "tidemark", "execution_timeout": timedelta(minutes=30), **RETRIES},
    params={
        "force": Param(default=False, type="boolean", description="Promote though it is not caught up."),
        "why": Param("", type="string", description="The reason, for the record; `force` needs one."),
    },
    tags=["tidemark", "deployment"],
    doc_md=__doc__,
)
def promote_deployment() -> None:
    # A task that gets an output of another one gets the value, not an ``XComArg``: hence ``Any``.
    caught_up = CaughtUpSensor(
        task_id="wait_until_caught_up", force="{{ params.force }}", timeout=CAUGHT_UP_WITHIN.total_seconds()
    )
    plan: Any = make_plan.override(task_id="plan")()
    approve: Any = PlanApprovalOperator(
        task_id="approve", subject=SUBJECT, body=BODY, plan_digest=DIGEST, response_timeout=ANSWERED_WITHIN
    )
    promoted: Any = promote(plan, approve.output)
    staged, shown = flush_staged()
    check_stores_and_reason.override(task_id="check")() >> caught_up >> plan
    is_to_be_done(plan) >> approve >> promoted >> staged
    [promoted, shown] >> check_after.override(trigger_rule=TriggerRule.NONE_FAILED)()


promote_deployment()
