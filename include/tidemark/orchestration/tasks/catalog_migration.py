"""The tasks of ``migrate_catalog`` and ``rollback_catalog``, each a part of ``catalog/migration/steps.py``."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Final

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule, task

from tidemark.catalog.deployment.modes import refuse_beside_leader
from tidemark.catalog.migration import plan as plans
from tidemark.catalog.migration import steps
from tidemark.catalog.migration.copy import LARGE_ABOVE
from tidemark.catalog.opening.catalog import Catalog
from tidemark.catalog.opening.dry_run import inconsistent_text
from tidemark.catalog.opening.opening import Direction
from tidemark.catalog.opening.resume import Fences
from tidemark.clock import SystemClock
from tidemark.errors import FencedByEpoch
from tidemark.iceberg.leases.holding import holding
from tidemark.iceberg.leases.lease import SYSTEM_CATALOG
from tidemark.orchestration.approval import check_approval
from tidemark.orchestration.connections import load_settings
from tidemark.orchestration.preflight import check_spark, load_checked_settings
from tidemark.orchestration.retry_policy import RETRY_POLICY, ending_task

log = logging.getLogger(__name__)

ARGUMENTS: Final = "arguments"  # of the copy, by key
ANSWERED_WITHIN = timedelta(days=7)
TASKS_END_WITHIN = timedelta(hours=6)  # longer than any task may run: `wait_for_tasks` gives up, with nobody fenced
# Bounds of one try while nobody leads the catalog.
TRIES: Final = 3
STEP_TAKES, COPY_TAKES, SEEN_WITHIN = timedelta(minutes=5), timedelta(minutes=20), timedelta(minutes=5)
# `fence`, `read_tombstone`, `flip`, `announce`; `copy`, `verify`; both sensors.
LONGEST_WITHOUT_LEADER = TRIES * (4 * STEP_TAKES + 2 * COPY_TAKES) + 2 * SEEN_WITHIN
PLANS: Final = "plans"  # below the reports
_PLAN = "ti.xcom_pull(task_ids='plan')"
# Of the question, filled in when it is asked.
SUBJECT, BODY, DIGEST = (
    f"The system's own catalog: plan {{{{ {_PLAN}['plan_digest'][:16] }}}}",
    f"{{{{ {_PLAN}['text'] }}}}",
    f"{{{{ {_PLAN}['plan_digest'] }}}}",
)
# The fences come from a task before this one: trying again with the same ones cannot help.
FENCES_ARE_FINAL = ExceptionRetryPolicy(
    rules=[
        RetryRule(
            exception="tidemark.errors.Fenced",
            action=RetryAction.FAIL,
            reason="somebody opened the catalog since: clear the task `fence`, with everything after it",
        ),
        *RETRY_POLICY.rules,
    ]
)


@task(retry_policy=RETRY_POLICY)
def check_back_ends() -> dict[str, Any]:
    """Check that connections, jars, the store and both back ends are there, and return where the catalog is now."""
    with ending_task():
        check_spark(load_checked_settings())
        ends = _catalog().ends
        refuse_beside_leader(ends, "a move of the catalog")
        stash, persist = ends.stash.head(), ends.persist.head()
    found = {"tombstone": stash.tombstone, "stash_epoch": stash.epoch, "persist_epoch": persist.epoch}
    log.info("the catalog is reachable: %s", found)
    return found


@task(retry_policy=RETRY_POLICY)
def make_plan(direction: str) -> dict[str, Any]:
    """Open the catalog on savepoints, write the outcome as a plan, and return the plan with its digest and a text."""
    with ending_task():
        plan = plans.make_plan(_catalog(), Direction(direction))
        path = plan.write(load_settings().reports / PLANS)
    found = plan.to_json()
    log.info("plan %s: %s", path, json.dumps(found))
    return {**found, "path": str(path), "text": plan_text(found)}


@task.short_circuit(retry_policy=RETRY_POLICY)
def is_to_be_done(plan: Mapping[str, Any], params: Mapping[str, Any] | None = None) -> bool:
    """Go on to the approval unless only the plan was wanted, or the wanted truth is led already."""
    if plan["is_done"]:
        log.info("nothing to do: the %s is the truth, and led", plan["truth"])
        return False
    if (params or {}).get("plan_only"):
        log.info("only the plan was asked for")
        return False
    return True


@task(retry_policy=RETRY_POLICY)
def fence_both(
    direction: str, plan: Mapping[str, Any], approval: Mapping[str, Any] | None, dag_run: Any = None
) -> dict[str, Any]:
    """Fence the stash, then the persist catalog, if the plan was approved and is still the same; return the fences."""
    with ending_task(), _holding(f"{direction}: fence"):
        approver = check_approval(approval, plan_digest=plan["plan_digest"])
        catalog = _catalog(_who(dag_run, approver))
        fences = steps.fence(catalog, Direction(direction), approved=plan["plan_digest"]).to_json()
    log.info("fenced, approved by %s: %s", approver, fences)
    return fences


@task(retry_policy=RETRY_POLICY)
def read_tombstone(
    direction: str, plan: Mapping[str, Any], fences: Mapping[str, Any], ti: Any = None
) -> dict[str, Any]:
    """Read the tombstone under the fences, and check that nobody changed the catalog before they were taken."""
    with ending_task(FencedByEpoch), _holding(f"{direction}: read-tombstone"):
        seen = steps.look(_catalog(), Direction(direction), Fences.parse(fences), approved=plan["plan_digest"])
    ti.xcom_push(key=ARGUMENTS, value=[direction, "--fences", json.dumps(dict(fences))])
    return {"tombstone": seen.tombstone, "copies": seen.copies}


@task(retry_policy=RETRY_POLICY)
def verify_copy(
    direction: str, plan: Mapping[str, Any], fences: Mapping[str, Any], report: Mapping[str, Any]
) -> dict[str, Any]:
    """Compare both sides item by item; return the fences under which they are equal."""
    log.info("the copy: %s", report.get("collections"))
    with ending_task(FencedByEpoch), _holding(f"{direction}: verify"):
        verified = steps.verify(_catalog(), Direction(direction), Fences.parse(fences), approved=plan["plan_digest"])
    return verified.to_json()


@task(retry_policy=RETRY_POLICY)
def flip_truth(fences: Mapping[str, Any], verified: Mapping[str, Any]) -> bool:
    """Set the tombstone; return whether this try did so, and not an earlier one."""
    with ending_task(FencedByEpoch), _holding("migrate: flip"):
        return steps.flip(_catalog(), Fences.parse(fences), verified=Fences.parse(verified))


@task(retry_policy=RETRY_POLICY)
def announce_leader(
    direction: str, fences: Mapping[str, Any], seen: Mapping[str, Any], approval: Mapping[str, Any], dag_run: Any = None
) -> None:
    """Let tasks join again, and write the audit event, with who started and who approved it."""
    with ending_task(FencedByEpoch), _holding(f"{direction}: announce"):
        who = _who(dag_run, str(approval["answered_by"]))
        steps.announce(_catalog(who), Direction(direction), Fences.parse(fences), copied=bool(seen["copies"]))


@task(retry_policy=RETRY_POLICY)
def lead_again(direction: str, fences: Mapping[str, Any] | None, verified: Mapping[str, Any] | None) -> bool:
    """Let tasks join where the truth is, after a task failed for good; return whether nobody led the catalog before."""
    if fences is None:
        log.warning("no task said which fences it took: if nobody leads the catalog, run `tidemark catalog open`")
        return False
    with ending_task(), _holding(f"{direction}: lead-again"):
        led = steps.lead_again(_catalog(), Direction(direction), Fences.parse(fences), is_verified=verified is not None)
    log.info("led again where the truth is: tasks go on" if led else "nothing to do: somebody opened the catalog since")
    return led


@task(retry_policy=RETRY_POLICY)
def check_after(direction: str, seen: Mapping[str, Any]) -> dict[str, Any]:
    """Join as any task does, and return the state of the catalog; the sensor saw ``seen``, perhaps at another epoch."""
    with ending_task():
        found = steps.check_after(_catalog(), Direction(direction))
    log.info("the catalog: %s; the sensor saw %s", found, seen)
    return found


def plan_text(plan: Mapping[str, Any]) -> str:
    """Return a plan as Markdown, for whoever is asked to approve it."""
    counts = "\n".join(f"| {kind} | {count:,} |" for kind, count in plan["counts"].items())
    led = "" if plan["is_led"] else "\nNobody leads at present: an open is under way, or died.\n"
    is_large = sum(plan["counts"].values()) > LARGE_ABOVE
    expected = "a minute or two, with the start of Spark" if is_large else "some seconds"
    hours, minutes = TASKS_END_WITHIN // timedelta(hours=1), LONGEST_WITHOUT_LEADER // timedelta(minutes=1)
    odd = f" {text}." if (text := inconsistent_text(plan["inconsistent"])) else ""
    return f"""The **{plan["truth"]}** is to be the truth; it is the **{plan["truth_before"]}** now.
{led}
The copy inserts {plan["inserted"]:,} items and retracts {plan["retracted"]:,} that only the other side has.{odd}

Running tasks may end first: `wait_for_tasks` waits for up to {hours} hours. From `fence` to `announce` nobody can work
with the catalog: tasks wait, or start over. That takes {expected}, and {minutes} minutes at most. If
a task fails for good, `lead_again` lets everybody go on where the truth is then.

| kind | items |
|---|---|
{counts}

Plan `{plan["plan_digest"]}`, contents `{plan["digest"]}`. If anything is changed before the fences are taken, this
approval is void, and the run asks again.
"""


def _catalog(who: str = "") -> Catalog:
    return Catalog.of(load_settings(), clock=SystemClock(), who=who)


def _holding(step: str) -> AbstractContextManager[None]:
    return holding(load_settings(), step, [SYSTEM_CATALOG])


def _who(dag_run: Any, approver: str) -> str:
    user = getattr(dag_run, "triggering_user_name", None)
    return f"{user or 'somebody'}, approved by {approver}, through Airflow"
