"""Airflow in tests: its database made once, and runs of the project's DAGs in this process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conftest import ROOT
from tests.support.homes import Home
from tidemark.settings import PROJECT_ROOT
from tools.local_airflow.settings import AirflowSettings

if TYPE_CHECKING:
    from datetime import datetime

    import pytest

    from tests.support.warm_driver.start import WarmSpark
    from tidemark.settings import Settings


@cache
def migrated_database() -> Path:
    """Return a SQLite file with Airflow's own tables; made in 5 s, the first time that it is asked for."""
    home = Path(tempfile.mkdtemp(prefix="airflow-", dir=ROOT))
    environment = {**os.environ, "AIRFLOW_HOME": str(home)}
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True, cwd=PROJECT_ROOT, env=environment)
    return home / "airflow.db"


class Dags:
    """The project's DAGs over a home; run in this process."""

    def __init__(self, settings: Settings, folder: Path, warm: WarmSpark, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = Home(settings, folder)
        database = Path(os.environ["AIRFLOW_HOME"], "airflow.db")
        if not database.exists():
            shutil.copy(migrated_database(), database)
        environment = AirflowSettings.read().environment() | warm.environment | {"TIDEMARK_HOME": str(settings.home)}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    def run(
        self, dag_id: str, *, logical_date: datetime | None = None, left_out: str | None = None, **conf: Any
    ) -> dict[str, tuple[str, Any]]:
        """Run the DAG as `airflow dags test` does; return state and result of each task, mapped ones by number.

        A task that is ``left_out`` counts as done: one that waits for another task would wait for ever in one process.
        """
        from airflow.dag_processing.dagbag import DagBag

        dag = DagBag(PROJECT_ROOT / "dags" / f"{dag_id}.py").dags[dag_id]
        run = dag.test(logical_date=logical_date, run_conf=conf, mark_success_pattern=left_out)
        return {
            f"{instance.task_id}{'' if instance.map_index < 0 else instance.map_index}": (
                str(instance.state),
                instance.xcom_pull(instance.task_id, map_indexes=instance.map_index),
            )
            for instance in run.get_task_instances()
        }


def states(ran: dict[str, tuple[str, Any]]) -> dict[str, str]:
    """Return the state of each task of a run."""
    return {name: state for name, (state, _) in ran.items()}
