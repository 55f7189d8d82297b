from __future__ import annotations

import json
import os
import socket
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
from airflow.sdk._shared.observability.metrics.statsd_logger import SafeStatsdLogger
from airflow.sdk.observability import stats
from statsd import StatsClient  # type: ignore[import-untyped]  # it has no types of its own

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FAKE_SPARK_SUBMIT = f"""#!{sys.executable}
import json, os, pathlib, sys
here = pathlib.Path(__file__).parent
(here / "call.json").write_text(json.dumps({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}))
answer = json.loads((here / "answer.json").read_text())
print("a line of the driver")
if answer["report"] is not None:
    pathlib.Path(sys.argv[sys.argv.index("--report") + 1]).write_text(json.dumps(answer["report"]))
sys.exit(answer["code"])
"""


@dataclass(frozen=True)
class FakeSparkSubmit:
    """An executable in the place of spark-submit: writes down how it was called, and answers as told."""

    folder: Path

    def will(self, *, exit_with: int = 0, report: dict[str, Any] | None) -> None:
        (self.folder / "answer.json").write_text(json.dumps({"code": exit_with, "report": report}))

    @property
    def called(self) -> bool:
        return (self.folder / "call.json").exists()

    @property
    def arguments(self) -> list[str]:
        return list(self._call()["arguments"])

    @property
    def environment(self) -> dict[str, str]:
        return dict(self._call()["environment"])

    def _call(self) -> dict[str, Any]:
        call: dict[str, Any] = json.loads((self.folder / "call.json").read_text())
        return call


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An embedded installation below a temporary folder, with the connections of airflow_settings.yaml."""
    from tools.local_airflow.settings import AirflowSettings

    for name in [name for name in os.environ if name.startswith("TIDEMARK_")]:
        monkeypatch.delenv(name)
    for name, value in AirflowSettings.read().environment().items():
        monkeypatch.setenv(name, value)
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "iceberg.jar").touch()
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TIDEMARK_JARS", str(jars))
    return tmp_path / "home"


@pytest.fixture
def spark_submit(tmp_path: Path, installation: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSparkSubmit:
    folder = tmp_path / "bin"
    folder.mkdir()
    executable = folder / "spark-submit"
    executable.write_text(FAKE_SPARK_SUBMIT)
    executable.chmod(executable.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return FakeSparkSubmit(folder)


class StatsdServer:
    """A server of StatsD: what Airflow's own client sends it, over UDP."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(0)

    @property
    def port(self) -> int:
        port: int = self.socket.getsockname()[1]
        return port

    def received(self) -> dict[str, str]:
        """Return what came since the last call: values with their types, by names with their tags."""
        found = []
        with suppress(BlockingIOError):
            while True:
                found += self.socket.recv(65_536).decode().splitlines()
        return dict(line.split(":", 1) for line in found)


@pytest.fixture
def statsd() -> Iterator[StatsdServer]:
    """A server that Airflow's metrics go to, with the tags of InfluxDB."""
    server = StatsdServer()
    client = StatsClient("127.0.0.1", server.port)
    made: Any = SafeStatsdLogger(client, influxdb_tags_enabled=True, statsd_influxdb_enabled=True)
    stats.initialize(factory=lambda: made, export_legacy_names=True)
    yield server
    stats.initialize(factory=NoStatsLogger, export_legacy_names=True)
    client.close()
    server.socket.close()
