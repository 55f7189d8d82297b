"""The wheel works where there is no checkout: the command line, a Spark application, the DAGs and the plugin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import tidemark
from tidemark.settings import PROJECT_ROOT
from tidemark.spark.conf import submit_conf

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings

pytestmark = pytest.mark.slow

DECLARATIONS = """
version: 1
collections:
  events:
    kind: append-only
    schema: id bigint, name string
  names:
    kind: differential
    key: [id]
    source: {format: csv, path: names.csv, options: {header: true}, schema: "id bigint, name string"}
"""
ROWS = "id,name\n1,ada\n2,bob\n"
LOCATIONS = """
import json, tidemark, tidemark_plugin, tidemark_triggers
from importlib.metadata import entry_points
from tidemark.settings import SPARK_APPS
loaded = [point.load().__name__ for point in entry_points(group="airflow.plugins") if point.name == "tidemark"]
print(json.dumps({"library": tidemark.__file__, "applications": str(SPARK_APPS), "plugins": loaded}))
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """A virtual environment with the wheel, which finds its dependencies in the present one."""

    bin: Path
    folder: Path
    environ: dict[str, str]

    def run(self, *command: str | Path) -> str:
        done = subprocess.run(
            [self.bin / command[0], *command[1:]],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def answer(self, *command: str) -> Any:
        return json.loads(self.run("tidemark", *command, "--json"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, settings: Settings) -> Installed:
    root = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(root), str(PROJECT_ROOT)]
    subprocess.run(build, check=True)
    (wheel,) = root.glob("tidemark-*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root / "venv")], check=True)
    python = root / "venv" / "bin" / "python"
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], check=True)
    (site,) = (root / "venv").glob("lib/python*/site-packages")
    # A line of a .pth file is put on the path, but the .pth files there are not read: no checkout comes in with it.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    folder = root / "elsewhere"
    folder.mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEMARK_", "PYTHON"))}
    environ |= {
        "PATH": os.pathsep.join([str(python.parent), environ["PATH"]]),
        "XDG_DATA_HOME": str(root / "data"),
        "TIDEMARK_JARS": str(settings.jars),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return Installed(python.parent, folder, environ)


@pytest.fixture(scope="module")
def applied(installed: Installed) -> Installed:
    (installed.folder / "collections.yaml").write_text(DECLARATIONS, encoding="utf-8")
    (installed.folder / "names.csv").write_text(ROWS, encoding="utf-8")
    places = installed.answer("init")
    assert places["home"] == f"{installed.environ['XDG_DATA_HOME']}/tidemark/home", "one place for all of a user"
    installed.run("tidemark", "apply", "collections.yaml")
    return installed


def test_everything_comes_from_the_wheel(installed: Installed) -> None:
    assert installed.run("tidemark", "--version").startswith(f"tidemark {tidemark.__version__} (Spark 4.")
    assert installed.run("python", "-m", "tidemark", "--version").startswith(f"tidemark {tidemark.__version__}")
    found = json.loads(installed.run("python", "-c", LOCATIONS))
    site = str(installed.bin.parent / "lib")
    assert found["library"].startswith(site)
    assert found["applications"].startswith(site)
    assert found["plugins"] == ["TidemarkPlugin"]


def test_a_batch_is_appended_and_read(applied: Installed) -> None:
    done = applied.answer("append", "events", "--producer", "hand", "--range", "0:2", "names.csv")
    assert done["collections"]["events"]["outcome"] == "appended"
    rows = applied.answer("read", "events")["rows"]
    assert sorted(row["name"] for row in rows) == ["ada", "bob"]


@pytest.mark.spark
def test_an_application_runs_by_its_installed_path(applied: Installed, settings: Settings) -> None:
    application = json.loads(applied.run("python", "-c", LOCATIONS))["applications"]
    conf = [word for name, value in submit_conf(settings).items() for word in ("--conf", f"{name}={value}")]
    spark_submit = f"{sysconfig.get_path('scripts')}/spark-submit"
    report = applied.folder / "report.json"
    command = [spark_submit, "--master", "local[1]", *conf, f"{application}/reconcile_collections.py"]
    applied.run(*command, "names", "--report", report)
    assert json.loads(report.read_text(encoding="utf-8"))["collections"]["names"]["inserted"] == 2
    assert applied.answer("read", "names")["count"] == 2


def test_type_checkers_take_the_types_of_the_wheel(installed: Installed) -> None:
    (package,) = installed.bin.parent.glob("lib/python*/site-packages/tidemark")
    assert (package / "py.typed").is_file(), "without this file they take every name for `Any` (PEP 561)"


def test_every_dag_and_application_is_in_the_wheel(installed: Installed) -> None:
    package = next(installed.bin.parent.glob("lib/python*/site-packages/tidemark"))
    for folder in ("dags", "spark_apps"):
        expected = {path.name for path in (PROJECT_ROOT / folder).glob("*.py")}
        assert {path.name for path in (package / folder).glob("*.py")} == expected
