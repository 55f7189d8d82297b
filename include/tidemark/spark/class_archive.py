"""Makes the archive of the classes that a Spark driver loads: whoever starts with one maps it, and loads none of them.

A start then takes 14 instead of 20 s of CPU time, and a small run 8. The archive is good for one Java and one Spark at
their places; Java leaves an archive aside that does not fit. So nothing but time depends on it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidemark.spark.toolchain import find_java, find_spark_folder

_DECLARATIONS: Final = """version: 1
collections:
  planes:
    kind: differential
    key: [id]
    source: {format: csv, path: planes.csv, options: {header: true}, schema: "id int, name string"}
  weather:
    kind: differential
    source: {format: csv, path: planes.csv, options: {header: true}, schema: "id int, name string"}
"""
_ROWS: Final = "id,name\n" + "".join(f"{number},name\n" for number in range(20))
_OTHER_ROWS: Final = _ROWS.replace("7,name", "7,other") + "20,another\n"


def class_archive(jars: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the place of the archive for the Java and the Spark of this process; None if one of these is not there."""
    java, spark = find_java(environ), find_spark_folder()
    if java is None or spark is None:
        return None
    java = java.resolve()
    fits = f"{java} {java.stat().st_mtime_ns} {spark}"
    return jars / f"classes-{hashlib.sha256(fits.encode()).hexdigest()[:12]}.jsa"


def make_class_archive(jars: Path, environ: Mapping[str, str]) -> Path | None:
    """Make the archive anew while two small collections are corrected, below a temporary home; return its place.

    All older ones are removed first. None if it could not be made: runs start without one.
    """
    if (place := class_archive(jars, environ)) is None:
        return None
    for old in jars.glob("classes-*.jsa"):
        old.unlink()  # runs that have it open keep it; Java makes none on top of another one
    partial = place.with_suffix(".partial")
    given = {name: value for name, value in environ.items() if not name.startswith(("TIDEMARK_", "SPARK_"))}
    options = {"SPARK_SUBMIT_OPTS": f'"-XX:ArchiveClassesAtExit={partial}" -Xlog:disable -Xlog:all=error:stderr'}
    with tempfile.TemporaryDirectory(prefix="tidemark-classes-") as folder:
        (Path(folder) / "collections.yaml").write_text(_DECLARATIONS, encoding="utf-8")
        given |= {"TIDEMARK_HOME": f"{folder}/home", "TIDEMARK_JARS": str(jars)}
        # A first load, and then corrections, as most runs make them.
        for arguments, rows, more in (
            ("apply collections.yaml", _ROWS, {}),
            ("reconcile", _ROWS, {}),
            ("reconcile", _OTHER_ROWS, options),
        ):
            (Path(folder) / "planes.csv").write_text(rows, encoding="utf-8")
            command = [sys.executable, "-m", "tidemark", *arguments.split()]
            done = subprocess.run(command, cwd=folder, env=given | more, capture_output=True, check=False)
            if done.returncode:
                return None
    if not partial.exists():
        return None
    return partial.rename(place)


if __name__ == "__main__":
    sys.exit(make_class_archive(Path(sys.argv[1]), os.environ) is None)
