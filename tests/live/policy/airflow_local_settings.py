"""Airflow's policy in the live tests: the scheduler imports what tasks import.

Airflow runs a task in a copy of the scheduler's process, where each task would import Tidemark, pyiceberg and pyspark
anew. Airflow imports this module by its name.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

import tidemark

if "scheduler" in sys.argv:
    for module in pkgutil.walk_packages(tidemark.__path__, "tidemark."):
        if not module.name.startswith(("tidemark.cli", "tidemark.__main__")):
            importlib.import_module(module.name)
