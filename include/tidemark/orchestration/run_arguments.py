"""A run's params and data interval as arguments of its Spark application; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from tidemark.entry_points import parse_time
from tidemark.errors import UsageError
from tidemark.interval import Interval, time_text


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


def wanted_interval(params: Mapping[str, Any], start: datetime | None, end: datetime | None) -> Interval:
    """Return the interval that a run appends: what its params say, else its data interval.

    Args:
        params: ``start`` (inclusive) and ``end`` (exclusive), in ISO form; both or none.
        start: First instant of the data interval (inclusive), or None.
        end: End of the data interval (exclusive), or None.

    Raises:
        UsageError: If neither names an interval, or it is empty or reversed.
    """
    given = [params.get("start"), params.get("end")]
    if all(given):
        return Interval(*(parse_time(str(text)) for text in given))
    if any(given):
        raise UsageError("only one of `start` and `end` is given", hint="give both, or none for the data interval")
    if start is None or end is None or start >= end:
        raise UsageError(
            "this run has no data interval", hint="trigger it with `start` and `end`, or with a logical date"
        )
    return Interval(parse_time(start.isoformat()), parse_time(end.isoformat()))


def append_arguments(names: Sequence[str], interval: Interval) -> list[str]:
    """Return the arguments of ``append_batches.py``, without the report."""
    return [*names, "--interval", time_text(interval.start_ms), time_text(interval.end_ms)]
