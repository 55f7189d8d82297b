"""Starts the warm driver, and puts its stand-in for ``spark-submit`` into a folder for ``PATH``."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.settings import PROJECT_ROOT
from tools.local_airflow.client import AirflowClient
from tools.local_airflow.supervised import Supervised

if TYPE_CHECKING:
    from collections.abc import Iterator

# Tests have few rows: what compiles and divides the work costs more than the work. As in `spark-submit`'s own file.
QUICK_SPARK = {
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.default.parallelism": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "1",
}
SUBMIT = """#!{python} -IS
import sys
sys.path.insert(0, {here!r})
from submit import main
sys.exit(main({address!r}, {real!r}, {real_wanted!r}))
"""


@dataclass(frozen=True)
class WarmSpark:
    """Where the stand-in is, and the means to do without it."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process and all that it starts use the stand-in, and Spark quick options."""
        path = os.pathsep.join([str(self.folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
        return {"PATH": path, "SPARK_CONF_DIR": str(self.folder / "conf"), "SPARK_LOCAL_IP": "127.0.0.1"}

    @contextmanager
    def submitting_for_real(self) -> Iterator[None]:
        """Until the end of this, every call of the stand-in becomes the real ``spark-submit``."""
        wanted = self.folder / "real"
        wanted.touch()
        try:
            yield
        finally:
            wanted.unlink()


@contextmanager
def warm_spark(folder: Path) -> Iterator[WarmSpark]:
    """Start the warm driver with its files in ``folder``, whose path is to be short; it ends with this process."""
    warm = WarmSpark(folder)
    for name in ("bin", "conf"):
        (folder / name).mkdir(parents=True)
    defaults = "".join(f"{name} {value}\n" for name, value in QUICK_SPARK.items())
    (folder / "conf" / "spark-defaults.conf").write_text(defaults)
    address = folder / "socket"
    submit = folder / "bin" / "spark-submit"
    submit.write_text(
        SUBMIT.format(
            python=sys.executable,
            here=str(Path(__file__).parent),
            address=str(address),
            real=str(Path(sys.executable).with_name("spark-submit")),
            real_wanted=str(folder / "real"),
        )
    )
    submit.chmod(0o755)
    log = folder / "driver.log"
    with log.open("wb") as output:
        driver = Supervised(
            [sys.executable, "-m", "tests.support.warm_driver.serve", str(address)],
            env={**os.environ, **warm.environment, "PYTHONPATH": f"{PROJECT_ROOT}:{PROJECT_ROOT / 'include'}"},
            cwd=folder,
            stdout=output,
            stderr=output,
        )
    try:
        AirflowClient.wait_until(
            lambda: address.exists() or not driver.running, what=f"the warm driver; see {log}", timeout_s=120
        )
        assert driver.running, log.read_text(errors="replace")
        yield warm
    finally:
        driver.stop()
