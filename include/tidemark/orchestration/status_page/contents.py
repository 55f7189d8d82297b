"""Rows of one collection for people: its contents at a time, and what its last commits changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from tidemark.iceberg.files.arrow_values import to_rows, to_tuples
from tidemark.iceberg.reading.arrow import changes_arrow, read_arrow
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.layout import SYSTEM_COLUMNS
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.time_travel import ancestry, own_snapshots
from tidemark.report import plain

COMMITS: Final = 200  # of the history of uppers
CORRECTIONS: Final = 5  # commits that changed rows, each with a sample
SAMPLE: Final = 20  # rows of each
READ_AT_MOST: Final = 100_000  # changes of one commit; of a larger one only their number is told
_EXACT = 2**53  # larger numbers lose digits in a browser


def read_contents(shard: Shard, as_of: int | None, *, limit: int) -> dict[str, Any]:
    """Return ``columns`` and at most ``limit`` ``rows``, as lists of values; errors are those of ``read_arrow``."""
    rows = read_arrow(shard, as_of, limit=limit)
    return {"as_of": as_of, "columns": rows.column_names, "rows": [[shown(v) for v in row] for row in to_tuples(rows)]}


def read_corrections(shard: Shard, head: ShardHead, key: Sequence[str]) -> list[dict[str, Any]]:
    """Return the last commits that changed rows of a differential collection, the newest first, with a sample each.

    In the sample a row of ``before`` and a row of ``after`` stand beside each other if they share the ``key``.
    """
    found: list[dict[str, Any]] = []
    commits = ancestry(head.table.metadata, head.updates.snapshot_id) if head.updates else ()
    for snapshot in commits:
        summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
        changes = int(summary.get("added-records", 0))
        lower, upper = summary.get("tidemark.lower", "empty"), summary.get("tidemark.upper", "empty")
        if not changes or not (lower.isdecimal() and upper.isdecimal()):
            continue
        first = max(int(lower), int(str(head.state.since)) if isinstance(head.state.since, int) else int(upper))
        if len(found) == CORRECTIONS or first >= int(upper):  # earlier ones are consolidated, and cannot be told apart
            break
        sampled = (
            _sample(changes_arrow(shard, first, int(upper)), key)
            if changes <= READ_AT_MOST
            else {"inserted": None, "retracted": None, "columns": [], "samples": []}
        )
        found.append({"time_ms": int(upper) - 1, "commit": summary.get("tidemark.kind"), "changes": changes, **sampled})
    return found


def _sample(changes: pa.Table, key: Sequence[str]) -> dict[str, Any]:
    columns = [name for name in changes.column_names if name not in {TIME, DIFF}]
    before: dict[str, dict[str, Any]] = {}
    after: dict[str, dict[str, Any]] = {}
    inserted = retracted = 0
    for number, row in enumerate(to_rows(changes)):
        diff = row[DIFF]
        inserted, retracted = inserted + max(diff, 0), retracted + max(-diff, 0)
        # Without a key no row is another row's later form.
        place = repr([row[name] for name in key if name in row]) if key else str(number)
        (before if diff < 0 else after)[place] = {name: shown(row[name]) for name in columns}
    places = sorted({**before, **after}, key=lambda place: not (place in before and place in after))
    samples = [{"before": before.get(place), "after": after.get(place)} for place in places[:SAMPLE]]
    return {"inserted": inserted, "retracted": retracted, "columns": columns, "samples": samples}


def describe_schema(head: ShardHead) -> list[dict[str, Any]]:
    """Return the columns with their types, the system's own ones last."""
    system = SYSTEM_COLUMNS[head.state.layout]
    return [
        {"name": field.name, "type": str(field.field_type), "required": field.required, "system": field.name in system}
        for field in head.table.schema().fields
    ]


def describe_history(head: ShardHead) -> list[dict[str, Any]]:
    """Return the last commits of main, oldest first: when, what it did, the upper and the number of rows it left."""
    return [_commit_of(snapshot.timestamp_ms, _summary(snapshot)) for snapshot in _newest(head)][::-1]


def _newest(head: ShardHead) -> list[Any]:
    return [snapshot for snapshot, _ in zip((each for each, _ in own_snapshots(head)), range(COMMITS), strict=False)]


def _summary(snapshot: Any) -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _commit_of(time_ms: int, summary: Mapping[str, str]) -> dict[str, Any]:
    upper = summary.get("tidemark.upper", "")
    rows = int(summary.get("total-records", 0)) - int(summary.get("total-position-deletes", 0))
    return {
        "time_ms": time_ms,
        "commit": summary.get("tidemark.kind"),
        "upper": int(upper) if upper.isdecimal() else upper or None,
        "rows": max(0, rows),
    }


def shown(value: object) -> Any:
    """Return a value as JSON has it; a number that a browser would round is its text."""
    told = plain(value)
    if isinstance(told, int) and not isinstance(told, bool) and abs(told) > _EXACT:
        return str(told)
    if isinstance(told, Mapping):
        return {name: shown(each) for name, each in told.items()}
    return [shown(each) for each in told] if isinstance(told, Iterable) and not isinstance(told, str) else told
