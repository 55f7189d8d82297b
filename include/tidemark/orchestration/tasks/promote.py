"""The tasks of ``promote_deployment``: plan, promote once that plan is approved, and look at the outcome."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from airflow.sdk import task

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import SystemClock
from tidemark.errors import UsageError
from tidemark.orchestration.approval import check_approval
from tidemark.orchestration.connections import with_source_connections
from tidemark.orchestration.preflight import check_spark, load_checked_settings
from tidemark.orchestration.retry_policy import RETRY_POLICY, ending_task
from tidemark.orchestration.sensors.mode import see_mode
from tidemark.orchestration.sensors.mode_asset import MODE, announce_switch

log = logging.getLogger(__name__)

ANSWERED_WITHIN: Final = timedelta(days=7)
_PLAN = "ti.xcom_pull(task_ids='plan')"
# Of the question, filled in when it is asked.
SUBJECT, BODY, DIGEST = (
    f"Deployment {{{{ {_PLAN}['generation'] }}}} is to lead: plan {{{{ {_PLAN}['plan_digest'][:16] }}}}",
    f"{{{{ {_PLAN}['text'] }}}}",
    f"{{{{ {_PLAN}['plan_digest'] }}}}",
)


@task(retry_policy=RETRY_POLICY)
def check_stores_and_reason(params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Check that stores, connections and jars are there, and that a forced promotion has a reason; return the mode."""
    params = params or {}
    with ending_task():
        settings = load_checked_settings()
        if params.get("force") and not params.get("why"):
            raise UsageError("a forced promotion needs a reason, for the record", hint="trigger it again with `why`")
        check_spark(settings)  # what is stale is reconciled after the promotion
        return see_mode(settings).facts


@task(retry_policy=RETRY_POLICY)
def make_plan(params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the plan of the promotion, with its digest, and a text for whoever is asked to approve it.

    A deployment that is not caught up any more is refused here, with the table, unless the promotion is forced.
    """
    from tidemark.deployment import promotion  # noqa: PLC0415 -- heavy, and not needed to parse a DAG

    with ending_task():
        deployment = deployment_of(load_checked_settings())
        plan = promotion.make_plan(deployment, clock=SystemClock(), is_forced=bool((params or {}).get("force")))
        promotion.check_plan(plan)
    for each in plan.readiness.objects:
        log.info("%s: %s, lag %s ms, %s staged: %s", each.name, each.progress, each.lag_ms, each.staged, each.why)
    return {**plan.to_json(), "why": str((params or {}).get("why") or ""), "text": promotion.plan_text(plan)}


@task.short_circuit(retry_policy=RETRY_POLICY)
def is_to_be_done(plan: Mapping[str, Any]) -> bool:
    """Go on to the approval unless this deployment leads already."""
    if plan["is_done"]:
        log.info("nothing to do: deployment %s leads", plan["generation"])
    return not plan["is_done"]


@task(outlets=[MODE], retry_policy=RETRY_POLICY)
def promote(
    plan: Mapping[str, Any],
    approval: Mapping[str, Any] | None,
    dag_run: Any = None,
    outlet_events: Any = None,
    asset_state_store: Any = None,
) -> dict[str, Any]:
    """Let this deployment lead, if the plan was approved and is still the same; announce the mode."""
    from tidemark.deployment import promotion  # noqa: PLC0415 -- heavy, and not needed to parse a DAG
    from tidemark.iceberg.shards import Shards  # noqa: PLC0415

    with ending_task():
        settings = with_source_connections(load_checked_settings())
        approver = check_approval(approval, plan_digest=plan["plan_digest"])
        user = getattr(dag_run, "triggering_user_name", None)
        who = f"{user or 'somebody'}, approved by {approver}, through Airflow"
        now = promotion.make_plan(deployment_of(settings), clock=SystemClock(), is_forced=plan["is_forced"])
        promotion.promote(
            Shards.connect(settings),
            deployment_of(settings, who=who),
            now,
            approved=plan["plan_digest"],
            who=who,
            why=plan["why"],
        )
        seen = see_mode(settings)
    log.info("deployment %s leads, approved by %s", seen.generation, approver)
    return announce_switch(seen, outlet_events, asset_state_store)


@task(retry_policy=RETRY_POLICY)
def check_after() -> dict[str, Any]:
    """Read how this deployment is after the promotion. Raises if another one has taken over meanwhile."""
    from tidemark.deployment.readiness import read_readiness  # noqa: PLC0415 -- heavy, and not needed to parse a DAG

    with ending_task():
        found = read_readiness(deployment_of(load_checked_settings()), clock=SystemClock())
    log.info("deployment %s is %s", found.generation, found.state)
    return found.to_json()
