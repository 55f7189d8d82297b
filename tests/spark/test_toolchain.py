"""What the machine's check says about each thing that can be wrong, and that this machine has nothing wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tidemark.settings import PROJECT_ROOT, Settings
from tidemark.spark.toolchain import (
    PACKAGES,
    SparkVersions,
    check_environment,
    check_jars,
    check_java,
    check_python,
    check_spark_versions,
    find_java,
    find_spark_folder,
    jar_name,
    parse_java_major,
    read_spark_versions,
)

if TYPE_CHECKING:
    from pathlib import Path


def fake_java(folder: Path, answer: str, status: int = 0) -> Path:
    """An executable that answers ``java -version`` as another Java would."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{answer}\nEND\nexit {status}\n", encoding="utf-8")
    java.chmod(0o755)
    return java


def test_this_machine_can_run_tidemark() -> None:
    findings = check_environment(Settings.load(os.environ).jars, os.environ)
    assert [finding for finding in findings if not finding.ok] == []
    assert [finding.subject for finding in findings] == ["Python", "Java", "Spark", "Jars"]


@pytest.mark.slow  # pip looks at every package
def test_the_installed_packages_fit_together() -> None:
    command = [sys.executable, "-m", "pip", "check", "--disable-pip-version-check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-dev.txt"])
def test_the_installed_packages_are_the_pinned_ones(file: str) -> None:
    from importlib.metadata import version

    lines = (PROJECT_ROOT / file).read_text(encoding="utf-8").splitlines()
    pins = [
        line.split("#")[0].strip() for line in lines if line.split("#")[0].strip() not in {"", "-r requirements.txt"}
    ]
    for pin in pins:
        name, _, wanted = pin.partition("==")
        assert version(name.split("[")[0]) == wanted, f"{pin}: every direct dependency is pinned exactly"


@pytest.mark.parametrize(
    ("answer", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx=y\nopenjdk version "17.0.1" 2021-10-19', 17),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_the_major_version_is_read_from_any_java(answer: str, major: int | None) -> None:
    assert parse_java_major(answer) == major


def test_java_home_wins_over_path_as_it_does_for_spark(tmp_path: Path) -> None:
    at_home, on_path = fake_java(tmp_path / "home", "x"), fake_java(tmp_path / "path", "x")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert find_java(environ) == at_home
    assert find_java({"PATH": environ["PATH"]}) == on_path
    assert find_java(environ | {"JAVA_HOME": str(tmp_path / "gone")}) is None, "Spark would not look on PATH either"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ('java version "1.8.0_402"', "is Java 8, which is too old"),
        ('openjdk version "11.0.22" 2024-01-16', "is Java 11, which is too old"),
        ("Unable to locate a Java Runtime.", "is not a working Java"),
    ],
)
def test_a_wrong_java_is_named_with_what_to_do(tmp_path: Path, answer: str, says: str) -> None:
    fake_java(tmp_path, answer, status=1)
    finding = check_java({"JAVA_HOME": str(tmp_path)})
    assert not finding.ok
    assert says in finding.message
    assert "install Java 17 or newer" in finding.hint


def test_no_java_at_all_is_said(tmp_path: Path) -> None:
    assert check_java({"PATH": str(tmp_path)}).message == "there is no Java on PATH"


@pytest.mark.parametrize(("version", "ok"), [((3, 10), False), ((3, 11), True), ((3, 13), True)])
def test_python_has_a_floor(version: tuple[int, int], ok: bool) -> None:  # noqa: FBT001 -- a table of cases
    assert check_python(version).ok is ok


@pytest.mark.parametrize(
    ("python", "jars", "client"),
    [("4.2.0", "4.3.0", "4.2.0"), ("4.1.3", "4.1.3", "4.2.0"), ("4.1.3", "4.1.3", None), (None, None, None)],
)
def test_parts_of_spark_that_differ_are_told_apart(python: str | None, jars: str | None, client: str | None) -> None:
    finding = check_spark_versions(SparkVersions(python=python, jars=jars, client=client))
    assert not finding.ok
    assert f"its Python {python or 'missing'}" in finding.message
    assert f"its jars {jars or 'missing'}" in finding.message


def test_the_versions_are_read_from_the_files_themselves(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-4.3.0.jar").touch()
    (tmp_path / "version.py").write_text("__version__: str = '4.2.0'\n", encoding="utf-8")
    versions = read_spark_versions(tmp_path)
    assert (versions.python, versions.jars) == ("4.2.0", "4.3.0")
    (tmp_path / "jars" / "spark-core_2.13-4.2.0.jar").touch()
    assert read_spark_versions(tmp_path).jars is None, "two versions of one jar are no version"


def test_a_missing_jar_is_named(tmp_path: Path) -> None:
    for package in PACKAGES[:-1]:
        (tmp_path / jar_name(package)).touch()
    finding = check_jars(tmp_path)
    assert not finding.ok
    assert "org.postgresql_postgresql-42.7.13.jar" in finding.message
    (tmp_path / jar_name(PACKAGES[-1])).touch()
    assert check_jars(tmp_path).ok


def test_another_spark_home_is_refused(tmp_path: Path) -> None:
    environ = {**os.environ, "SPARK_HOME": str(tmp_path)}
    assert [finding.subject for finding in check_environment(tmp_path, environ) if not finding.ok] == [
        "Jars",
        "SPARK_HOME",
    ]
    own = {**os.environ, "SPARK_HOME": str(find_spark_folder())}
    assert all(finding.ok for finding in check_environment(Settings.load(os.environ).jars, own))


def set_up(root: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the set-up of a copy of the project that has nothing installed."""
    for folder in ("tools", "include"):
        shutil.copytree(PROJECT_ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__", "*.jar"))
    environ = {"PATH": os.environ["PATH"], "TIDEMARK_PYTHON": sys.executable} | environ
    return subprocess.run([root / "tools" / "setup"], env=environ, capture_output=True, text=True, check=False)


def test_set_up_without_java_says_one_sentence(tmp_path: Path) -> None:
    done = set_up(tmp_path / "clone", JAVA_HOME=str(tmp_path / "nowhere"))
    assert done.returncode == 78
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("Tidemark needs Java: there is no Java in JAVA_HOME")
    assert not (tmp_path / "clone" / ".venv").exists(), "nothing is installed before that"


def test_set_up_with_an_old_java_says_one_sentence(tmp_path: Path) -> None:
    fake_java(tmp_path / "java", 'openjdk version "11.0.22" 2024-01-16')
    done = set_up(tmp_path / "clone", JAVA_HOME=str(tmp_path / "java"))
    assert done.returncode == 78
    assert done.stderr.count("\n") == 1
    assert "is Java 11, which is too old; install Java 17 or newer" in done.stderr


def test_set_up_without_a_new_python_says_one_sentence(tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("env", "bash", "dirname"):
        (bare / name).symlink_to(str(shutil.which(name)))
    (bare / "python3").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")  # what an older one answers
    (bare / "python3").chmod(0o755)
    done = set_up(tmp_path / "clone", PATH=str(bare), TIDEMARK_PYTHON="")
    assert done.returncode == 78
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("Tidemark needs Python 3.11 or newer")
