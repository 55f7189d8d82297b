"""Checks whether this machine can run Tidemark: Python, Java, Spark's three versions, the jars.

Imports the standard library only, so that the set-up can run the checks before anything is installed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.exit_codes import ExitCode
from tidemark.settings import IN_CHECKOUT, Settings

PYTHON_FLOOR = (3, 11)
JAVA_FLOOR = 17
# What Spark's own resolver fetches at set-up. The Iceberg runtime names the Spark line it is built for.
PACKAGES = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.xerial:sqlite-jdbc:3.53.2.1",
    "org.postgresql:postgresql:42.7.13",
)
S3_PACKAGES = ("org.apache.iceberg:iceberg-aws-bundle:1.12.0",)  # for a warehouse in S3; not fetched with the others
# The broker for tests, benchmarks and the demo: in a folder below the jars, off Spark's class path. Spark's resolver
# leaves out libraries that Spark has itself, such as scala-library: the broker takes them from Spark.
KAFKA_PACKAGES = ("org.apache.kafka:kafka_2.13:4.1.1",)
KAFKA_FOLDER = "kafka"
FETCH_JARS = "make setup" if IN_CHECKOUT else "tidemark init --jars"
_JAVA_ANSWER_S = 20
_PYSPARK_VERSION = re.compile(r"""^__version__.*= ["'](.+)["']""", re.MULTILINE)
_SPARK_CORE = re.compile(r"spark-core_[\d.]+-(?P<version>.+)\.jar")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The answer to one question; ``message`` is one sentence, ``hint`` says what to do, ``damage`` names files.

    ``note`` is a word for what is no fault of the installation, and should be seen.
    """

    subject: str
    ok: bool
    message: str
    hint: str = ""
    note: str = ""
    damage: list[dict[str, object]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkVersions:
    """The three parts of one Spark; ``None`` is a part that is not installed."""

    python: str | None  # pyspark/version.py: both distributions own this file
    jars: str | None  # jars/spark-core_*.jar
    client: str | None  # the pyspark-client distribution, which the Airflow provider brings


def check_environment(jars: Path, environ: Mapping[str, str]) -> list[Finding]:
    """Run all checks; the findings come in the order in which a person repairs them."""
    spark = find_spark_folder()
    findings = [
        check_python(sys.version_info[:2]),
        check_java(environ),
        check_spark_versions(read_spark_versions(spark)),
        check_jars(jars),
    ]
    home = environ.get("SPARK_HOME")
    if home and Path(home).resolve() != spark:
        message = f"SPARK_HOME points to {home}, not to the Spark of this project"
        findings.append(_fault("SPARK_HOME", message, "unset SPARK_HOME: spark-submit would take its jars from there"))
    return findings


def check_python(version: tuple[int, int]) -> Finding:
    """Check the interpreter's ``(major, minor)`` against the floor."""
    text, floor = (".".join(map(str, numbers)) for numbers in (version, PYTHON_FLOOR))
    if version < PYTHON_FLOOR:
        return _fault("Python", f"Python {text} is too old", f"install Python {floor} or newer")
    return Finding(subject="Python", ok=True, message=f"Python {text}")


def check_java(environ: Mapping[str, str]) -> Finding:
    """Ask the Java that Spark would start (``JAVA_HOME``, else ``PATH``) for its version."""
    wanted = f"install Java {JAVA_FLOOR} or newer, and set JAVA_HOME to it or put its java on PATH"
    java = find_java(environ)
    if java is None:
        where = f"in JAVA_HOME ({environ['JAVA_HOME']})" if environ.get("JAVA_HOME") else "on PATH"
        return _fault("Java", f"there is no Java {where}", wanted)
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_JAVA_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return _fault("Java", f"{java} cannot be run ({error})", wanted)
    major = parse_java_major(answer.stderr + answer.stdout)  # it answers on stderr
    if major is None:
        return _fault("Java", f"{java} is not a working Java", wanted)
    if major < JAVA_FLOOR:
        return _fault("Java", f"{java} is Java {major}, which is too old", wanted)
    return Finding(subject="Java", ok=True, message=f"Java {major} ({java})")


def find_java(environ: Mapping[str, str]) -> Path | None:
    """Return the executable that Spark's own scripts would start, ``None`` if there is none."""
    if home := environ.get("JAVA_HOME"):  # Spark never falls back to PATH when this is set
        java = Path(home) / "bin" / "java"
        return java if java.is_file() else None
    found = shutil.which("java", path=environ.get("PATH", ""))
    return Path(found) if found else None


def parse_java_major(answer: str) -> int | None:
    """Return the major version in what ``java -version`` printed: 8 for ``1.8.0_402``, 17 for ``17.0.15``."""
    found = re.search(r'version "(?:1\.)?(\d+)', answer)
    return int(found[1]) if found else None


def find_spark_folder() -> Path | None:
    """Return the folder of the ``pyspark`` package, without importing it."""
    spec = importlib.util.find_spec("pyspark")
    return Path(spec.origin).resolve().parent if spec and spec.origin else None


def read_spark_versions(spark: Path | None) -> SparkVersions:
    """Read the versions from the files below ``spark`` and from the installed distributions."""
    python = jars = None
    if spark is not None:
        version = spark / "version.py"
        found = _PYSPARK_VERSION.search(version.read_text(encoding="utf-8")) if version.is_file() else None
        python = found[1] if found else None
        cores = [match["version"] for path in (spark / "jars").glob("*.jar") if (match := _SPARK_CORE.match(path.name))]
        jars = cores[0] if len(cores) == 1 else None
    try:
        client = importlib.metadata.version("pyspark-client")
    except importlib.metadata.PackageNotFoundError:
        client = None
    return SparkVersions(python=python, jars=jars, client=client)


def check_spark_versions(versions: SparkVersions) -> Finding:
    """Check that the three parts are there and equal: pip lets them differ, and UDFs then fail inside the JVM."""
    present = {"its Python": versions.python, "its jars": versions.jars, "pyspark-client": versions.client}
    if None not in present.values() and len(set(present.values())) == 1:
        return Finding(subject="Spark", ok=True, message=f"Spark {versions.python}: Python, jars and client agree")
    parts = ", ".join(f"{name} {version or 'missing'}" for name, version in present.items())
    hint = "run `make setup`; if that does not help, remove .venv and run it again"
    if not IN_CHECKOUT:
        hint = "install pyspark and pyspark-client of one version"
    return _fault("Spark", f"the parts of pyspark are not one version: {parts}", hint)


def check_jars(folder: Path, packages: tuple[str, ...] = PACKAGES) -> Finding:
    """Check that ``folder`` holds a jar for each of ``packages``."""
    missing = [package for package in packages if not (folder / jar_name(package)).is_file()]
    if missing:
        names = ", ".join(jar_name(package) for package in missing)
        hint = f"run `{FETCH_JARS}`, or set TIDEMARK_JARS to a folder that has them"
        return _fault("Jars", f"{folder} lacks {names}", hint)
    return Finding(subject="Jars", ok=True, message=f"{len(packages)} packages in {folder}")


def iceberg_runtime() -> str:
    """Return the version of Iceberg, and the Spark version that it is built for."""
    _, artifact, version = PACKAGES[0].split(":")
    return f"Iceberg {version} for Spark {artifact.split('-')[-1].split('_')[0]}"


def jar_name(package: str) -> str:
    """Return the file name that Spark's resolver gives to ``group:artifact:version``."""
    group, artifact, version = package.split(":")
    return f"{group}_{artifact}-{version}.jar"


def _fault(subject: str, message: str, hint: str) -> Finding:
    return Finding(subject=subject, ok=False, message=message, hint=hint)


def main() -> int:
    """Print the failed checks, one sentence a line; return 78 if there is one."""
    wrong = [finding for finding in check_environment(Settings.load(os.environ).jars, os.environ) if not finding.ok]
    for finding in wrong:
        sys.stderr.write(f"{finding.subject}: {finding.message}; {finding.hint}.\n")
    return ExitCode.CONFIGURATION if wrong else ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
