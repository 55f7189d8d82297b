"""A step of the demo: the system's own catalog moves to Iceberg, work goes on there, and it moves back."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from examples.steps import RUN_SECONDS, console, finish_run, say, start_dag, tidemark
from tidemark.errors import StaleState

if TYPE_CHECKING:
    from collections.abc import Callable

    from tools.local_airflow.client import AirflowClient

MIGRATE, ROLL_BACK = "migrate_catalog", "rollback_catalog"
KINDS = ("collection", "deployment", "setting")
# Airflow loses an answer that comes while the process which asked is still ending; it would ask again.
READ_SECONDS = 5.0  # that process ends within a heartbeat, which `QUICK` makes one second


def show_migration(
    client: AirflowClient, environment: dict[str, str], reconcile: Callable[[AirflowClient], dict[str, Any]]
) -> None:
    """Migrate, reconcile, roll back; check that nothing of the catalog was lost, and no collection was touched.

    Raises:
        StaleState: If anything was.
    """
    console.rule("5. the system's own catalog moves from SQLite to Iceberg, and back")
    before = items(environment)
    move(client, environment, MIGRATE, truth="persist")
    touched = [name for name, result in reconcile(client)["collections"].items() if result["outcome"] != "unchanged"]
    if touched:
        raise StaleState(f"after the migration {', '.join(touched)} were found to differ from their sources")
    move(client, environment, ROLL_BACK, truth="stash")
    if items(environment) != before:
        raise StaleState("the catalog does not hold what it held before it was moved")
    tidemark(environment, "catalog", "history", "--limit", "2")
    say("The catalog holds what it held before, and who approved the two moves.")


def move(client: AirflowClient, environment: dict[str, str], dag_id: str, *, truth: str) -> None:
    """Run the DAG, approve its plan as a person would, and check where the catalog is then.

    Raises:
        StaleState: If it is not there.
    """
    with console.status(f"Airflow runs {dag_id}"):
        run = start_dag(client, dag_id)
        waits = f"{dag_id} to ask for an approval"
        client.wait_until(lambda: is_asking(client, dag_id, run), what=waits, timeout_s=RUN_SECONDS)
    plan = client.xcom(dag_id, run, "plan")
    say(f"{dag_id} asks for the approval of plan {plan['plan_digest'][:16]}: {plan['truth_before']} → {plan['truth']}")
    with console.status("the plan is read"):
        time.sleep(READ_SECONDS)
    client.answer(dag_id, run, "approve", "Approve")
    with console.status(f"approved; Airflow runs {dag_id}"):
        finish_run(client, dag_id, run)
    status = json.loads(tidemark(environment, "catalog", "status", "--json", shown=False))
    say(f"the truth is the {status['truth']}, {status['leader']}")
    if status["truth"] != truth:
        raise StaleState(f"the truth was to be the {truth}")


def is_asking(client: AirflowClient, dag_id: str, run: str) -> bool:
    """Say whether the run waits for an answer."""
    tasks = client.tasks(dag_id, run)
    if "failed" in {task["state"] for task in tasks.values()}:
        finish_run(client, dag_id, run)
    return bool(tasks["approve"]["state"] == "awaiting_input")


def items(environment: dict[str, str]) -> dict[str, Any]:
    """Return what the truth holds, by kind."""
    found = {kind: tidemark(environment, "catalog", "get", kind, "--json", shown=False) for kind in KINDS}
    return {kind: json.loads(text)["items"] for kind, text in found.items()}
