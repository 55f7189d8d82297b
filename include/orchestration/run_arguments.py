"""A run's params and data interval as arguments of its Spark application; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


def reconcile_arguments(params: Mapping[str, Any], start: datetime | None, end: datetime | None) -> list[str]:
    """Return the arguments of ``reconcile_collections.py``, without the report.

    Args:
        params: ``collections`` (None: all), ``dry_run``, and ``allow_empty``, ``max_delete_ratio`` (None: as declared).
        start: First instant of the data interval (inclusive), or None.
        end: End of the data interval (exclusive), or None. An empty interval names no slice, and is left out.
    """
    arguments = list(params.get("collections") or [])
    if start is not None and end is not None and start < end:
        arguments += ["--interval", start.isoformat(), end.isoformat()]
    if params.get("dry_run"):
        arguments.append("--dry-run")
    if params.get("allow_empty") is not None:
        arguments.append("--allow-empty" if params["allow_empty"] else "--no-allow-empty")
    if params.get("max_delete_ratio") is not None:
        arguments += ["--max-delete-ratio", str(params["max_delete_ratio"])]
    return arguments


def maintain_arguments(params: Mapping[str, Any]) -> list[str]:
    """Return the arguments of ``maintain_collections.py``: ``collections`` (None: all) and ``history_days``."""
    arguments = list(params.get("collections") or [])
    if params.get("history_days") is not None:
        arguments += ["--history-days", str(params["history_days"])]
    return arguments
