"""What the steps of the demo have in common: the command line as a person types it, and a run of a DAG to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tidemark.errors import StaleState
from tidemark.settings import PROJECT_ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tools.local_airflow.client import AirflowClient

PARSED_SECONDS, RUN_SECONDS = 120.0, 600.0

console = Console(highlight=False)


def say(text: str) -> None:
    """Print a line as it is: addresses and paths are copied from here, so nothing may break them."""
    console.print(text, soft_wrap=True, markup=False)


def tidemark(environment: dict[str, str], *arguments: str, shown: bool = True) -> str:
    """Run the command line as a person would, and return what it printed.

    Raises:
        StaleState: If it does not succeed; it has said why on stderr.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tidemark", *arguments],
        cwd=PROJECT_ROOT,
        env={**os.environ, **environment},
        stdout=None if shown else subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise StaleState(f"`tidemark {' '.join(arguments)}` ended with {done.returncode}")
    return done.stdout or ""


def start_dag(client: AirflowClient, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
    """Trigger the DAG as soon as Airflow knows it, and return the run's id."""
    client.wait_until(lambda: is_parsed(client, dag_id), what=f"{dag_id} to be parsed", timeout_s=PARSED_SECONDS)
    client.unpause(dag_id)
    return client.trigger(dag_id, conf=conf)


def finish_run(client: AirflowClient, dag_id: str, run: str) -> None:
    """Wait for the end of the run.

    Raises:
        StaleState: If it does not succeed.
    """
    state = client.wait(dag_id, run, timeout_s=RUN_SECONDS)
    if state != "success":
        failed = [name for name, task in client.tasks(dag_id, run).items() if task["state"] == "failed"]
        raise StaleState(f"the run {run} ended as {state}; failed: {', '.join(failed)}")


def run_dag(client: AirflowClient, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
    """Trigger the DAG, wait for the end of the run and return its id.

    Raises:
        StaleState: If the run does not succeed.
    """
    with console.status(f"Airflow runs {dag_id}"):
        run = start_dag(client, dag_id, conf)
        finish_run(client, dag_id, run)
    return run


def is_parsed(client: AirflowClient, dag_id: str) -> bool:
    """Say whether Airflow knows the DAG yet."""
    known = client.request("GET", "dags", params={"dag_id_pattern": dag_id, "exclude_stale": True})
    return bool(known["dags"])
