"""A Spark standalone cluster from the installed Spark: a master and two workers, which know nothing of the project."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from tests.conftest import QUICK_JAVA
from tools.local_airflow.client import AirflowClient
from tools.local_airflow.standalone import free_port
from tools.local_airflow.supervised import Supervised

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKERS = 2


@contextmanager
def running_cluster(folder: Path) -> Iterator[int]:
    """Start the cluster with its files below ``folder``; yield the master's port on the loopback interface."""
    home = Path(pyspark.__file__).parent
    port = free_port()
    environment = {
        "HOME": str(folder),
        "JAVA_HOME": os.environ.get("JAVA_HOME", ""),
        "PATH": os.environ["PATH"],
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    start = [str(home / "bin" / "spark-class")]
    master = [*start, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]
    worker = [*start, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g"]
    commands = [[*master, "--webui-port", "0"]]
    for number in range(WORKERS):
        work = ["--webui-port", "0", "--work-dir", str(folder / f"worker{number}")]
        commands.append([*worker, *work, f"spark://127.0.0.1:{port}"])
    log = folder / "cluster.log"
    processes = []
    with log.open("wb") as output:
        try:
            processes += [
                Supervised(command, env=environment, cwd=folder, stdout=output, stderr=output) for command in commands
            ]
            AirflowClient.wait_until(
                lambda: log.read_text(errors="replace").count("Successfully registered with master") == WORKERS,
                what=f"two workers; see {log}",
                timeout_s=60,
            )
            yield port
        finally:
            for process in processes:
                process.stop()
