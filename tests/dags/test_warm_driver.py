"""The stand-in for `spark-submit` answers as the real one does."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from tidemark.settings import PROJECT_ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.warm_driver.start import WarmSpark

pytestmark = pytest.mark.spark

PATIENCE_SECONDS = 60
TELLING = """
import os, pathlib, sys
print(sys.argv[1:], os.environ["SAID"], pathlib.Path.cwd(), flush=True)
sys.stderr.write("and to stderr")
sys.exit(7)
"""
SLEEPING = """
import os, pathlib, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
assert spark.conf.get("spark.app.name") == "named"
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
spark.range(1).selectExpr("java_method('java.lang.Thread', 'sleep', 600000L)").collect()
"""


def submit(warm: WarmSpark, folder: Path, program: str, *arguments: str) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(program)
    return subprocess.Popen(
        ["spark-submit", "--master", "local[2]", "--name", "named", str(folder / "program.py"), *arguments],
        env={**os.environ, **warm.environment, "SAID": "hello"},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_arguments_environment_folder_and_streams_are_the_callers(warm: WarmSpark, tmp_path: Path) -> None:
    ended = submit(warm, tmp_path, TELLING, "a", "--b")
    said, complained = ended.communicate(timeout=PATIENCE_SECONDS)
    assert (ended.returncode, said, complained) == (7, f"['a', '--b'] hello {tmp_path}\n", "and to stderr")


def test_usage_errors_end_with_the_applications_code(warm: WarmSpark, tmp_path: Path) -> None:
    ended = submit(warm, tmp_path, (PROJECT_ROOT / "spark_apps" / "reconcile_collections.py").read_text())
    _, complained = ended.communicate(timeout=PATIENCE_SECONDS)
    assert ended.returncode == 64
    assert "--report" in complained


def test_killing_the_stand_in_ends_the_application_and_the_next_one_finds_spark_free(
    warm: WarmSpark, tmp_path: Path
) -> None:
    sleeping = submit(warm, tmp_path, SLEEPING, str(tmp_path / "pid"))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert sleeping.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    application = psutil.Process(int((tmp_path / "pid").read_text()))
    sleeping.kill()
    sleeping.communicate()
    application.wait(timeout=PATIENCE_SECONDS)
    again = submit(warm, tmp_path, SLEEPING.replace("600000L", "0L"), str(tmp_path / "pid"))
    _, complained = again.communicate(timeout=PATIENCE_SECONDS)
    assert again.returncode == 0, complained
