"""A part of the benchmarks as a command: it measures in a Spark session of its own."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figures import write_or_print
from tidemark.settings import Settings
from tidemark.spark.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bench.figures import Figure


def run_part(module: str, about: str | None, measure: Callable[..., Iterable[Figure]], **sizes: int) -> int:
    """Parse the command line, measure, and write or print the figures.

    Args:
        module: The name of the module that is the command.
        about: What ``--help`` says.
        measure: Given the Spark session, the settings, a folder that is removed afterwards, and the sizes by name.
        sizes: Numbers that the command line may change, such as ``rows``; ``runs`` is one more.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    for name, default in {**sizes, "runs": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--results", type=Path, help="write the figures there, as JSON, instead of a table")
    arguments = vars(parser.parse_args())
    results = arguments.pop("results")
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
        settings = Settings.load({**os.environ, "TIDEMARK_HOME": f"{folder}/home"})
        settings.home.mkdir()
        with spark_session(settings, app_name="tidemark-bench", master="local[2]") as spark:
            figures = list(measure(spark, settings, Path(folder), **arguments))
    write_or_print(figures, results)
    return 0
