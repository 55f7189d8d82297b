"""What tasks and components of a live Airflow have logged; complaints are shown when a live test fails."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LEVELS = frozenset({"error", "critical"})
LAST_LINES = 15  # of the components
LONGEST = 1_500  # characters of one complaint


def complaints(home: Path, since: float) -> str:
    """Return the complaints in the logs below ``AIRFLOW_HOME`` that were written after ``since``, s since the epoch."""
    logs = (path for path in (home / "logs").rglob("attempt=*.log") if path.stat().st_mtime >= since)
    found = [f"{path.relative_to(home / 'logs')}: {error}" for path in sorted(logs) for error in _errors(path)]
    components = (home / "standalone.log").read_text(encoding="utf-8", errors="replace").splitlines()
    worst = [line for line in components if "[error" in line or "Failing" in line]
    return "\n".join(complaint[:LONGEST] for complaint in [*found, *worst[-LAST_LINES:]])


def said(home: Path, dag_id: str, run_id: str, task_id: str) -> str:
    """Return what the tries of a task of a run have logged, below ``AIRFLOW_HOME``."""
    logs = (home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}" / f"task_id={task_id}").rglob("*.log")
    return "".join(path.read_text(encoding="utf-8", errors="replace") for path in logs)


def _errors(path: Path) -> Iterator[str]:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry: dict[str, Any] = json.loads(line)
        except ValueError:  # a line that a killed task did not finish
            continue
        is_ours = str(entry.get("logger")).startswith("tidemark")
        if entry.get("level") in LEVELS or (is_ours and entry["level"] == "warning"):
            causes = [f"{cause.get('exc_type')}: {cause.get('exc_value')}" for cause in entry.get("error_detail") or []]
            yield " | ".join([str(entry.get("event")), *causes])
