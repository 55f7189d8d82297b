"""Run the tests in two processes at once, by folder, so that each imports its half alone.

python -m tools.halves FOLDER... [-- PYTEST_OPTION...]

The folders are one half, everything else is the other. What the folders' half has to say comes at the end, whole, and
then what each half took: the wall times should be about equal, or else the folders are the wrong ones.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path


class Half:
    """One pytest process, and what it took."""

    def __init__(self, name: str, command: list[str], folder: Path, **options: object) -> None:
        self._name, self._cpu = name, folder / f"{name}.cpu"
        self._started, self._wall_s = time.monotonic(), 0.0
        self._process = subprocess.Popen([*command, f"--cpu-file={self._cpu}"], **options)
        self._watch = threading.Thread(target=self._measure)
        self._watch.start()

    def _measure(self) -> None:
        self._process.wait()
        self._wall_s = time.monotonic() - self._started

    def exit_code(self) -> int:
        """Wait for the end."""
        while True:
            try:
                self._watch.join()
            except KeyboardInterrupt:  # the terminal has told the half, too: it ends by itself
                continue
            return self._process.returncode

    def __str__(self) -> str:
        cpu = self._cpu.read_text(encoding="utf-8") if self._cpu.exists() else "?"
        return f"{self._name:8} {self._wall_s:7.0f} s wall {cpu:>7} s CPU"


def main(arguments: list[str]) -> int:
    """Return the exit code of the first half that failed, or 0."""
    folders, options = arguments, []
    if "--" in arguments:
        end = arguments.index("--")
        folders, options = arguments[:end], arguments[end + 1 :]
    pytest = [sys.executable, "-m", "pytest", *options]
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryFile() as said:
        quiet = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": said}
        beside = Half("folders", [*pytest, *folders], Path(place), **quiet)
        others = Half("others", [*pytest, *(f"--ignore={folder}" for folder in folders)], Path(place))
        codes = [others.exit_code(), beside.exit_code()]
        said.seek(0)
        sys.stdout.flush()
        sys.stdout.buffer.write(said.read())
        sys.stdout.buffer.flush()
        sys.stdout.write(f"\n{others}\n{beside}: {' '.join(folders)}\n")
    return next((abs(code) for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
