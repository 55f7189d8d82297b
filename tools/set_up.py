"""Set the project up: `.venv` with requirements-dev.txt, the jars of Spark and Kafka, then a check that it all fits.

Run by ``tools/setup`` with any Python that is new enough; imports the standard library only. Each step is skipped
when its result is there already, so every `make` target may call this first.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "include"))

from tidemark.errors import Unreachable  # noqa: E402 -- needs the path above
from tidemark.spark.jars import resolve_jars  # noqa: E402
from tidemark.spark.toolchain import KAFKA_FOLDER, KAFKA_PACKAGES, PACKAGES, check_jars, check_java  # noqa: E402

VENV, JARS = ROOT / ".venv", ROOT / ".jars"
FOLDERS = {JARS: PACKAGES, JARS / KAFKA_FOLDER: KAFKA_PACKAGES}  # in this order: the second one is inside the first
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".tidemark-setup"
INPUTS = (
    ROOT / "requirements.txt",
    ROOT / "requirements-dev.txt",
    ROOT / "constraints.txt",
    Path(__file__),
    ROOT / "include" / "tidemark" / "spark" / "toolchain.py",
    ROOT / "include" / "tidemark" / "spark" / "class_archive.py",
)
EXIT_UNREACHABLE, EXIT_CONFIGURATION = 69, 78
COMMAND = """#!{python}
import sys

from tidemark.cli.app import main

sys.exit(main())
"""


def main() -> int:
    """Do what is not done yet; return 0, or the exit code of the step that failed after it said why."""
    java = check_java(os.environ)  # first: nothing is worth downloading without it
    if not java.ok:
        return fail(f"Tidemark needs Java: {java.message}; {java.hint}.", EXIT_CONFIGURATION)
    wanted = fingerprint()
    if not (STAMP.is_file() and STAMP.read_text(encoding="utf-8") == wanted):
        STAMP.unlink(missing_ok=True)
        if code := install_packages():
            return code
    elif all(check_jars(folder, packages).ok for folder, packages in FOLDERS.items()):
        return 0
    for folder, packages in FOLDERS.items():
        if not check_jars(folder, packages).ok and (code := fetch_jars(folder, packages)):
            return code
    if code := check_result():
        return code
    say("Making an archive of Spark's classes, with which runs start in half the time")
    if run([str(PYTHON), "-m", "tidemark.spark.class_archive", str(JARS)]):
        say("It could not be made: runs start without it.")
    STAMP.write_text(wanted, encoding="utf-8")
    say("Tidemark is set up in .venv and .jars")
    return 0


def fingerprint() -> str:
    """Return a digest of all that the set-up follows from, the project's place included: a venv cannot be moved."""
    digest = hashlib.sha256(str(ROOT).encode())
    for path in INPUTS:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def install_packages() -> int:
    """Create the environment and install into it, the project itself as a path entry and a command."""
    if not PYTHON.is_file():
        say("Creating .venv")
        if run([sys.executable, "-m", "venv", "--clear", str(VENV)]):
            return fail(f"{sys.executable} could not create .venv: see above.", EXIT_CONFIGURATION)
    say("Installing requirements-dev.txt (the first time this takes some minutes: Spark alone is 450 MB)")
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if run([*pip, "-r", str(ROOT / "requirements-dev.txt"), "-c", str(ROOT / "constraints.txt")]):
        return fail("pip could not install requirements-dev.txt: see above.", EXIT_UNREACHABLE)
    site = subprocess.check_output(
        [PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    ).strip()
    # Not an editable install: that would need a build backend, and so the network, for one line in one file.
    Path(site, "tidemark.pth").write_text(f"{ROOT / 'include'}\n", encoding="utf-8")
    command = VENV / "bin" / "tidemark"
    command.write_text(COMMAND.format(python=PYTHON), encoding="utf-8")
    command.chmod(0o755)
    return 0


def check_result() -> int:
    """Ask the new environment's own Python whether the packages fit together, and Spark and its jars are whole."""
    if run([str(PYTHON), "-m", "pip", "check", "--disable-pip-version-check"], quiet=True):
        return fail("The installed packages contradict each other: run `.venv/bin/pip check`.", EXIT_CONFIGURATION)
    return run([str(PYTHON), "-m", "tidemark.spark.toolchain"])  # it says in one sentence what is wrong


def fetch_jars(folder: Path, packages: tuple[str, ...]) -> int:
    """Let the new environment's Spark fetch the jars into ``folder``."""
    say(f"Resolving {', '.join(packages)} into {folder.relative_to(ROOT)}")
    try:
        resolve_jars(folder, packages, python=str(PYTHON), spark_submit=VENV / "bin" / "spark-submit")
    except Unreachable as error:
        sentence = str(error)
        return fail(f"{sentence[0].upper()}{sentence[1:]}.", EXIT_UNREACHABLE)
    return 0


def run(command: list[str], *, quiet: bool = False) -> int:
    """Run ``command`` in the project's root and return its exit status."""
    return subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL if quiet else None).returncode


def say(text: str) -> None:
    """Write one line to stderr, at once: what runs next may take minutes."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def fail(sentence: str, code: int) -> int:
    """Say why the set-up ends, and return the exit code to end with."""
    say(sentence)
    return code


if __name__ == "__main__":
    sys.exit(main())
