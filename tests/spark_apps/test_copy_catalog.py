"""The application that copies the catalog, as a process that dies: between staging and the commit, and killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import settings_in
from tests.support.catalog.migration_parts import Workflow
from tests.support.homes import MIGRATE, ROLLBACK, Home, put
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.settings import PROJECT_ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.catalog.opening.opening import Direction

pytestmark = [pytest.mark.spark, pytest.mark.crash]

ITEMS = 21_000  # more than are copied without Spark


def run_copy(home: Home, workflow: Workflow, *, fail_point: str) -> subprocess.CompletedProcess[str]:
    command = [
        *(sys.executable, PROJECT_ROOT / "spark_apps" / "copy_catalog.py", workflow.direction.value),
        *("--fences", json.dumps(workflow.results["fence"]), "--report", home.settings.home / "report.json"),
    ]
    environ = os.environ | {
        "TIDEMARK_HOME": str(home.settings.home),
        "TIDEMARK_JARS": str(home.settings.jars),
        "TIDEMARK_FAIL_POINT": fail_point,
        "PYTHONPATH": str(PROJECT_ROOT / "include"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return subprocess.run(command, env=environ, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("direction", [MIGRATE, ROLLBACK])
def test_killed_before_the_commit_it_is_run_again(tmp_path: Path, direction: Direction) -> None:
    home = Home(settings_in(tmp_path))
    home.open(ROLLBACK)
    if direction is ROLLBACK:
        home.open(MIGRATE)
    rows = {f"row {number}" for number in range(ITEMS)}
    with home.catalog.join() as leader:
        put(leader, *rows)
    workflow = Workflow(home, direction)
    workflow.run("plan", "fence", "look")
    killed = run_copy(home, workflow, fail_point="copy.after-stage")
    assert killed.returncode == FAIL_POINT_EXIT, killed.stderr[-3000:]
    assert home.truth() == ("stash" if direction is MIGRATE else "persist"), "nothing was written yet"
    # Run again: with the same outcome, whichever way it is copied then; this one spares a JVM.
    again = Workflow(home, direction, large_above=10 * ITEMS)
    assert again.run("copy")[1] >= ITEMS
    again.run("verify", *(["flip"] if direction is MIGRATE else []), "announce", "check")
    assert home.setting_names() == rows
