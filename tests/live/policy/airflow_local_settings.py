"""Airflow's policy in the live tests: the scheduler imports what tasks import, and tasks die where a test says.

Airflow runs a task in a copy of the scheduler's process, where each task would import Tidemark, pyiceberg and pyspark
anew. Airflow imports this module by its name.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import signal
import sys
from functools import partial
from typing import Any

import tidemark

# By task, where its first tries die, one after the other: at a fail point, or by a SIGKILL "before" the work or "after"
# the work, so that Airflow hears nothing of the outcome. (A branching task skips what is after the work.)
DEATHS: dict[str, list[str]] = json.loads(os.environ.get("TESTS_DEATHS") or "{}")

if "scheduler" in sys.argv:
    for module in pkgutil.walk_packages(tidemark.__path__, "tidemark."):
        if not module.name.startswith(("tidemark.cli", "tidemark.__main__")):
            importlib.import_module(module.name)


def task_policy(task: Any) -> None:
    if deaths := DEATHS.get(f"{task.dag_id}.{task.task_id}"):
        task._pre_execute_hook = partial(_begin, deaths)
        task._post_execute_hook = partial(_end, deaths)


def _begin(deaths: list[str], context: Any) -> None:
    death = _death(deaths, context)
    if death == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    if death != "after":
        os.environ["TIDEMARK_FAIL_POINT"] = death


def _end(deaths: list[str], context: Any, _result: Any = None) -> None:
    if _death(deaths, context) == "after":
        os.kill(os.getpid(), signal.SIGKILL)


def _death(deaths: list[str], context: Any) -> str:
    """Return where this try is to die; "" if the try lives."""
    tries = context["ti"].try_number
    return deaths[tries - 1] if tries <= len(deaths) else ""
