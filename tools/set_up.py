"""Set the project up: `.venv` with requirements.txt, the jars of Spark and Kafka, then a check that it all fits.

Run by ``tools/setup`` with any Python that is new enough; imports the standard library only. Each step is skipped
when its result is there already, so every `make` target may call this first.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "include"))

from tidemark.spark.toolchain import (  # noqa: E402 -- needs the path above
    KAFKA_FOLDER,
    KAFKA_PACKAGES,
    PACKAGES,
    check_jars,
    check_java,
    jar_name,
)

VENV, IVY, JARS = ROOT / ".venv", ROOT / ".ivy", ROOT / ".jars"
FOLDERS = {JARS: PACKAGES, JARS / KAFKA_FOLDER: KAFKA_PACKAGES}  # in this order: the second one is inside the first
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".tidemark-setup"
INPUTS = (
    ROOT / "requirements.txt",
    ROOT / "constraints.txt",
    Path(__file__),
    ROOT / "include" / "tidemark" / "spark" / "toolchain.py",
)
EXIT_UNREACHABLE, EXIT_CONFIGURATION = 69, 78
COMMAND = """#!{python}
import sys

from tidemark.cli.app import app

sys.exit(app())
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
        if not check_jars(folder, packages).ok and (code := resolve_jars(folder, packages)):
            return code
    if code := check_result():
        return code
    STAMP.write_text(wanted, encoding="utf-8")
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
    say("Installing requirements.txt (the first time this takes some minutes: Spark alone is 450 MB)")
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if run([*pip, "-r", str(ROOT / "requirements.txt"), "-c", str(ROOT / "constraints.txt")]):
        return fail("pip could not install requirements.txt: see above.", EXIT_UNREACHABLE)
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


def resolve_jars(folder: Path, packages: tuple[str, ...]) -> int:
    """Let Spark's own resolver fetch the jars into `.ivy`, then copy them to ``folder``: later runs are offline."""
    say(f"Resolving {', '.join(packages)} into {folder.relative_to(ROOT)}")
    log = IVY / "resolve.log"
    IVY.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    command = [str(VENV / "bin" / "spark-submit"), "--master", "local[1]", "--packages", ",".join(packages)]
    command += ["--conf", f"spark.jars.ivy={IVY}", str(ROOT / "tools" / "nothing.py")]
    with log.open("wb") as output:
        python = {"PYSPARK_PYTHON": str(PYTHON), "PYSPARK_DRIVER_PYTHON": str(PYTHON)}
        resolved = subprocess.run(command, env=environment | python, stdout=output, stderr=output, check=False)
    found = sorted((IVY / "jars").glob("*.jar"))
    if resolved.returncode or not {jar_name(package) for package in packages} <= {path.name for path in found}:
        return fail(f"The jars could not be resolved: see {log}.", EXIT_UNREACHABLE)
    partial = ROOT / ".jars.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    for path in found:
        shutil.copy2(path, partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)  # all jars or none: a set-up that was cut short starts this step again
    shutil.rmtree(IVY)
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
