"""Run the tests that explore, over and over with new seeds, until the time is up or one of them fails.

python -m tools.soak [MINUTES] [MODULE...]

Without a module: all that draw, at random, what they do (see tests/support/exploration.py). A failure ends the soak
with the seed and the command that repeats it.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_MARKS_OF_EXPLORATION = ("from hypothesis", "import draw_seed")
_GRACE_S = 60.0


def exploring_modules() -> list[str]:
    """Return the test modules that draw what they do, by path below the project."""
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    return [
        str(path.relative_to(ROOT))
        for path in tests
        if any(mark in path.read_text(encoding="utf-8") for mark in _MARKS_OF_EXPLORATION)
    ]


def run_module(module: str, seed: int, until: float) -> int | None:
    """Run a module with a seed; None if the time was up before its end.

    Args:
        module: Path of a test module below the project.
        seed: Of Hypothesis, and of tests that draw for themselves.
        until: When to stop, on the monotonic clock, in s.
    """
    process = subprocess.Popen(_command(module, seed), cwd=ROOT, env=os.environ | {"SOAK_SEED": str(seed)})
    try:
        return process.wait(max(0.0, until - time.monotonic()))
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as end:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if isinstance(end, KeyboardInterrupt):
            raise
        return None


def _command(module: str, seed: int) -> list[str]:
    options = ["-q", "-x", "--hypothesis-profile=soak", f"--hypothesis-seed={seed}", "-m", "not live"]
    return [sys.executable, "-m", "pytest", *options, module]


def soak(minutes: float, modules: list[str]) -> int:
    """Return 0 once the time is up, or the exit code of the first module that failed."""
    until = time.monotonic() + minutes * 60
    runs = 0
    while True:
        seed = random.SystemRandom().randrange(2**32)
        for module in modules:
            sys.stdout.write(f"soak: {module}, seed {seed}\n")
            sys.stdout.flush()
            code = run_module(module, seed, until)
            if code:
                repeat = " ".join(["python", *_command(module, seed)[1:]]).replace("not live", '"not live"')
                sys.stdout.write(f"soak: failed with seed {seed}; repeat with\n  SOAK_SEED={seed} {repeat}\n")
                return code
            if code is None or time.monotonic() > until:
                sys.stdout.write(f"soak: {runs} modules passed in {minutes:g} minutes\n")
                return 0
            runs += 1


def main(arguments: list[str]) -> int:
    """Soak as the arguments say."""
    minutes = float(arguments[0]) if arguments else 60.0
    return soak(minutes, arguments[1:] or exploring_modules())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
