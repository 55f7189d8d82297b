"""Fetches Spark's extra jars with Spark's own resolver, once: everything after that works offline.

Imports the standard library only: the set-up runs this with a Python that has nothing else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tidemark.errors import ConfigurationInvalid, Unreachable
from tidemark.spark.toolchain import PACKAGES, find_spark_folder, jar_name


def resolve_jars(
    folder: Path, packages: Sequence[str] = PACKAGES, *, python: str = sys.executable, spark_submit: Path | None = None
) -> None:
    """Replace ``folder`` by one with the jars of ``packages`` and of their dependencies: all of them, or none.

    Packages are ``group:artifact:version``. The resolver's own files lie beside ``folder`` meanwhile. ``python`` runs
    Spark's Python part; without ``spark_submit``, the one of this Python's Spark is used.

    Raises:
        ConfigurationInvalid: If there is no Spark.
        Unreachable: If a jar cannot be fetched; the message names the resolver's log.
    """
    if spark_submit is None:
        spark = find_spark_folder()
        if spark is None:
            raise ConfigurationInvalid("pyspark is not installed", hint="run `tidemark doctor`")
        spark_submit = spark / "bin" / "spark-submit"
    ivy = folder.with_name(".ivy")
    ivy.mkdir(parents=True, exist_ok=True)
    # spark-submit resolves the jars before it starts an application, and needs an application to start.
    application = ivy / "nothing.py"
    application.touch()
    log = ivy / "resolve.log"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    command = [str(spark_submit), "--master", "local[1]", "--packages", ",".join(packages)]
    command += ["--conf", f"spark.jars.ivy={ivy}", str(application)]
    with log.open("wb") as output:
        interpreter = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
        resolved = subprocess.run(command, env=environment | interpreter, stdout=output, stderr=output, check=False)
    found = sorted((ivy / "jars").glob("*.jar"))
    if resolved.returncode or not {jar_name(package) for package in packages} <= {path.name for path in found}:
        raise Unreachable(f"the jars could not be resolved: see {log}", hint="check the network, and run it again")
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    for path in found:
        shutil.copy2(path, partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)  # a set-up that was cut short starts this step again
    shutil.rmtree(ivy)
