"""A whole Airflow of one's own, on this machine, for the demo and the live tests.

python -m tools.local_airflow.standalone up    # start it, load the settings, print where the page is
python -m tools.local_airflow.standalone down  # stop it, and everything it started

Each deployment (TIDEMARK_GENERATION) has an Airflow of its own beside the others.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import httpx
import psutil  # type: ignore[import-untyped]  # it has no stubs of its own

from tidemark.entry_points import UsageParser, exit_code_of
from tidemark.errors import NotPossible, StaleState, TidemarkError
from tidemark.exit_codes import ExitCode
from tidemark.settings import PROJECT_ROOT, Settings
from tools.local_airflow.client import AirflowClient
from tools.local_airflow.settings import AirflowSettings
from tools.local_airflow.supervised import GRACE_SECONDS, SUPERVISOR, Supervised

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOCK_SECONDS = 60  # the database is SQLite; after 5 s, its default, components on a slow disk give up and end
READY_SECONDS = 600.0  # it takes 20 s; a machine that is busy with other things takes its time
QUICK = {  # for an Airflow that somebody waits for; it costs CPU time while nothing happens
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",  # s, not 1; the scheduler sleeps up to three times per task
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",  # s, not 5; the end of a task may be seen that late
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",  # s, not 30; each parsing takes a core for seconds
}
COMPONENTS = ("metadatabase", "scheduler", "dag_processor", "triggerer")


def free_port() -> int:
    """Return a port that nothing listens on right now."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(kw_only=True)
class Standalone:
    """``airflow standalone`` on a free port, with this project's DAGs, untouched by any other Airflow's settings.

    Everybody who reaches the loopback port is an administrator: not for production.
    """

    home: Path  # AIRFLOW_HOME
    environment: Mapping[str, str] = field(default_factory=dict)  # on top, for example TIDEMARK_HOME
    dags: Path = PROJECT_ROOT / "dags"
    more_dags: Mapping[str, Path] = field(default_factory=dict)  # further folders, by the names of their bundles
    policy: Path | None = None  # a folder with an `airflow_local_settings.py`
    port: int = field(default_factory=free_port)
    detached: bool = False  # survive this process
    _airflow: Supervised | None = field(default=None, init=False, repr=False)

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}"

    @property
    def running(self) -> bool:
        return self._airflow is not None and self._airflow.running

    @property
    def database(self) -> Path:
        """Airflow's own SQLite file; made at the first start."""
        return self.home / "airflow.db"

    @property
    def log(self) -> Path:
        return self.home / "standalone.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until every component is healthy.

        Raises:
            StaleState: If it ends before, or is not within ten minutes; the message names the log.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._airflow = Supervised(
                [str(Path(sys.executable).with_name("airflow")), "standalone"],
                detached=self.detached,
                env=self._process_environment(),
                cwd=self.home,
                stdout=log,
                stderr=log,
            )
        try:
            AirflowClient.wait_until(self._is_healthy, what=f"Airflow; its log is {self.log}", timeout_s=READY_SECONDS)
        except BaseException:  # an interrupt too: nothing may be left running
            self.stop()
            raise

    def stop(self) -> None:
        """Stop it and everything it started, tasks and Spark drivers too."""
        if self._airflow:
            self._airflow.stop()
            self._airflow = None

    def client(self) -> AirflowClient:
        """Return a client with a token of its own."""
        return AirflowClient.login(self.url)

    @property
    def pid(self) -> int:
        """The supervisor's process id; only while started."""
        if self._airflow is None:
            raise NotPossible("Airflow is not started")
        return self._airflow.process.pid

    def _is_healthy(self) -> bool:
        if not self.running:
            raise StaleState(f"Airflow ended while it started; its log is {self.log}")
        try:
            health = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=5.0)
        except httpx.HTTPError:
            return False
        return health.is_success and all(health.json()[name]["status"] == "healthy" for name in COMPONENTS)

    def _process_environment(self) -> dict[str, str]:
        scripts = str(Path(sys.executable).parent)  # Spark's Python must be this one
        return {
            **inherited_environment(os.environ),
            "PATH": os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)]),  # `standalone` starts `airflow`
            "PYTHONPATH": os.pathsep.join(map(str, filter(None, [PROJECT_ROOT / "include", self.policy]))),
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{quote(str(self.database))}?timeout={LOCK_SECONDS}",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(
                list_bundles({"dags-folder": self.dags, **self.more_dags})
            ),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(PROJECT_ROOT / "plugins"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__PARALLELISM": "6",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "30",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            **self.environment,
        }


def list_bundles(folders: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Return Airflow's configuration of the DAG bundles in these folders, by their names."""
    classpath = "airflow.dag_processing.bundles.local.LocalDagBundle"
    return [{"name": name, "classpath": classpath, "kwargs": {"path": str(path)}} for name, path in folders.items()]


def inherited_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for an Airflow of its own: the connections of sources, but not the person's own Airflow."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith("AIRFLOW") or name.startswith("AIRFLOW_CONN_")
    }


def _state_file(home: Path) -> Path:
    return home / "standalone.json"


def home_of(settings: Settings) -> Path:
    """Return the AIRFLOW_HOME of this deployment, below the home: each number has its own."""
    return settings.home / ("airflow" if settings.generation == 1 else f"airflow-{settings.generation}")


def up(home: Path, *, generation: int) -> int:
    """Start Airflow so that it outlives this process, or find the one that runs; print where it is."""
    state = _running(home)
    if state is None:
        airflow = Standalone(home=home, detached=True)
        settings = AirflowSettings.read()  # before anything runs: the file may be malformed
        airflow.start()
        try:
            with airflow.client() as client:
                settings.load_into(client)
            state = {"pid": airflow.pid, "url": airflow.url}
            _state_file(home).write_text(json.dumps(state), encoding="utf-8")
        except BaseException:  # an interrupt too: without its state file nobody could stop it
            airflow.stop()
            raise
    of = "" if generation == 1 else f" of deployment {generation}"
    sys.stdout.write(f"Airflow{of} is at {state['url']}, its log in {home / 'standalone.log'}\n")
    return ExitCode.OK


def down(home: Path) -> int:
    """Stop what ``up`` started; if nothing runs, that is fine."""
    state = _running(home)
    if state is None:
        sys.stdout.write(f"Airflow is not running in {home}\n")
        return ExitCode.OK
    supervisor = psutil.Process(state["pid"])
    supervisor.send_signal(signal.SIGTERM)
    supervisor.wait(timeout=3 * GRACE_SECONDS)
    _state_file(home).unlink()
    sys.stdout.write("Airflow is stopped\n")
    return ExitCode.OK


def _running(home: Path) -> dict[str, int | str] | None:
    """Return what ``up`` left behind, if that process still is what it was: numbers are used again."""
    try:
        state: dict[str, int | str] = json.loads(_state_file(home).read_text(encoding="utf-8"))
        command = psutil.Process(int(state["pid"])).cmdline()
    except (OSError, ValueError, KeyError, psutil.Error):  # none, a damaged one, or the process is gone
        return None
    return state if SUPERVISOR in command else None


def main(argv: Sequence[str]) -> int:
    """Run one of the two commands; see the module."""
    parser = UsageParser(prog="standalone", description=__doc__)
    parser.add_argument("command", choices=["up", "down"])
    arguments = parser.parse_args(argv)
    try:
        settings = Settings.load(os.environ)
        home = home_of(settings)
        return up(home, generation=settings.generation) if arguments.command == "up" else down(home)
    except TidemarkError as error:
        sys.stderr.write(f"{error}\n{error.hint}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(exit_code_of(main, sys.argv[1:]))
