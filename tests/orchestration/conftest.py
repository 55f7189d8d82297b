from __future__ import annotations

import json
import os
import stat
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
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
