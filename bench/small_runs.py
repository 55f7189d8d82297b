"""Whole commands over collections of a few rows: nothing changed, something changed, few of many changed.

``python -m bench.small_runs`` prints the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figures import Figure, write_or_print
from bench.timing import alternate
from tidemark.collections.reconcile.choosing.same_source import SAME_SOURCE

if TYPE_CHECKING:
    from collections.abc import Iterator

MANY, FEW = 300, 5  # collections
UNCHANGED_S, SMALL_S = 1.5, 8
SHARE, MORE_S = 1.3, 10  # what a run of few among many may take of one over these alone, and besides
ROWS = "".join(f"{number},name of {number}\n" for number in range(16))
_NUMBERS = count(100)


class Home:
    """An installation of its own, with collections of a few rows of CSV."""

    def __init__(self, folder: Path, collections: int) -> None:
        self.folder, self.environ = folder, os.environ | {"TIDEMARK_HOME": str(folder / "home")}
        folder.mkdir()
        lines = ["version: 1", "collections:"]
        for number in range(collections):
            (folder / f"{number}.csv").write_text(f"id,name\n{ROWS}", encoding="utf-8")
            source = f'{{format: csv, path: {number}.csv, options: {{header: true}}, schema: "id int, name string"}}'
            lines.append(f"  tiny_{number}: {{kind: differential, key: [id], source: {source}}}")
        (folder / "collections.yaml").write_text("\n".join([*lines, ""]), encoding="utf-8")
        self.run("apply", "collections.yaml")
        self.run("reconcile")

    def run(self, *arguments: str, **environ: str) -> bytes:
        command = [sys.executable, "-m", "tidemark", *arguments]
        environ = self.environ | environ
        return subprocess.run(command, cwd=self.folder, check=True, capture_output=True, env=environ).stdout

    def change(self) -> set[str]:
        """Change a row of each of the first ``FEW`` sources; return the names of the collections."""
        numbers = [number for number in range(FEW) if (self.folder / f"{number}.csv").exists()]
        for number in numbers:
            rows = f"id,name\n{ROWS}{next(_NUMBERS)},another\n"
            (self.folder / f"{number}.csv").write_text(rows, encoding="utf-8")
        return {f"tiny_{number}" for number in numbers}

    def correct(self, *command: str) -> None:
        changed = self.change()
        done = json.loads(self.run(*command, "--json"))["collections"]
        computed = {name for name, each in done.items() if each["strategy"] != SAME_SOURCE}
        assert computed == changed, computed


def measure_small_runs(folder: Path, *, runs: int) -> Iterator[Figure]:
    one, few, many = (Home(folder / str(number), number) for number in (1, FEW, MANY))
    again = partial(one.run, "reconcile", "tiny_0", JAVA_HOME=str(folder / "no-java"))  # no Java could start
    times = alternate({"reconcile": again}, runs)["reconcile"]
    yield Figure(
        "reconcile of a source that has not changed: the whole command", "s", tuple(times), at_most=UNCHANGED_S
    )
    commands = {name: partial(one.correct, name, "tiny_0") for name in ("plan", "reconcile")}
    for name, seconds in alternate(commands, runs).items():
        yield Figure(f"{name} of 16 rows: the whole command", "s", tuple(seconds), at_most=SMALL_S)
    sides = {str(each): partial(home.correct, "reconcile") for each, home in ((FEW, few), (MANY, many))}
    taken = alternate(sides, runs)
    yield Figure.ratio(
        f"reconcile of {MANY} collections of which {FEW} changed / {SHARE} x these alone + {MORE_S} s",
        numerator=(f"{MANY} collections", tuple(taken[str(MANY)])),
        denominator=(f"{SHARE} x {FEW} + {MORE_S} s", tuple(SHARE * each + MORE_S for each in taken[str(FEW)])),
        at_most=1,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.small_runs", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--results", type=Path, help="write the figures there, as JSON, instead of a table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
        figures = list(measure_small_runs(Path(folder), runs=arguments.runs))
    write_or_print(figures, arguments.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
