"""Spark drivers that tasks have started, as the machine's list of processes shows them."""

from __future__ import annotations

from pathlib import Path

import psutil


def driver_of(name: str, application: str) -> psutil.Process | None:
    """Return the Python driver that ``application`` of spark_apps works on ``name`` with: the child of its JVM."""
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if name in command and any(word.endswith(f"spark_apps/{application}") for word in command):
            parent = process.parent()
            if parent and parent.name() == "java" and process.name() != "java":
                return process
    return None


def is_executing(jvm: psutil.Process) -> bool:
    """Say whether the JVM has a Spark task under way; Linux keeps the first 15 letters of its threads' names."""
    names = (path.read_text() for path in Path(f"/proc/{jvm.pid}/task").glob("*/comm"))
    return any(name.startswith("Executor task l") for name in names)
