"""Run the tests in two processes at once, by folder, so that each imports its half alone.

python -m tools.halves FOLDER... [-- PYTEST_OPTION...]

The folders are one half, everything else is the other. What the folders' half has to say comes at the end, whole.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile


def main(arguments: list[str]) -> int:
    """Return the exit code of the first half that failed, or 0."""
    folders, options = arguments, []
    if "--" in arguments:
        end = arguments.index("--")
        folders, options = arguments[:end], arguments[end + 1 :]
    pytest = [sys.executable, "-m", "pytest", *options]
    with tempfile.TemporaryFile() as said:
        beside = subprocess.Popen([*pytest, *folders], stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        others = subprocess.Popen([*pytest, *(f"--ignore={each}" for each in folders)])
        codes = [_wait(others), _wait(beside)]
        said.seek(0)
        sys.stdout.buffer.write(said.read())
    return next((abs(code) for code in codes if code), 0)


def _wait(process: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the terminal has told it, too: it ends by itself
            continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
