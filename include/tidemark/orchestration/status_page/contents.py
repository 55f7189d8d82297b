"""Rows of one collection for people: its contents at a time, and what its last commits changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.frontier import Empty, frontier_json, parse_frontier
from tidemark.iceberg.files.arrow_values import to_rows, to_tuples
from tidemark.iceberg.reading.arrow import changes_arrow, read_arrow
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.layout import SYSTEM_COLUMNS
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import CommitKind
from tidemark.iceberg.shard.time_travel import ancestry, own_snapshots
from tidemark.report import plain

COMMITS: Final = 200  # of the history of uppers
CORRECTIONS: Final = 5  # commits that changed rows, each with a sample
SAMPLE: Final = 20  # rows of each
READ_AT_MOST: Final = 50_000  # changes of all of them; of what is more only the number is told
_CHANGING: Final = frozenset({CommitKind.CORRECT, CommitKind.FLUSH, CommitKind.APPEND, CommitKind.RETAIN})
_EXACT: Final = 2**53  # larger numbers lose digits in a browser


def read_contents(shard: Shard, as_of: int | None, *, limit: int) -> dict[str, Any]:
    """Return ``columns`` and at most ``limit`` ``rows``, as lists of values; errors are those of ``read_arrow``."""
    rows = read_arrow(shard, as_of, limit=limit)
    return {"as_of": as_of, "columns": rows.column_names, "rows": [[shown(v) for v in row] for row in to_tuples(rows)]}


@dataclass(frozen=True, slots=True)
class _Commit:
    """One commit to the change log; its changes have times in ``[lower, upper)``."""

    lower: int
    upper: int
    kind: str
    changes: int


def read_corrections(shard: Shard, head: ShardHead, key: Sequence[str]) -> list[dict[str, Any]]:
    """Return the last commits that changed rows of a differential collection, the newest first, with a sample each.

    In the sample a row of ``before`` and a row of ``after`` stand beside each other if they share the ``key``.
    """
    commits = list(islice(_list_commits(head), CORRECTIONS))
    read = list(_take_while_few(commits))
    changes = changes_arrow(shard, read[-1].lower, read[0].upper) if read else None
    found = []
    for commit in commits:
        told = {"time_ms": commit.upper - 1, "commit": commit.kind, "changes": commit.changes}
        sampled: dict[str, Any] = {"inserted": None, "retracted": None, "columns": [], "samples": []}
        if changes is not None and commit in read:
            times = changes[TIME]
            is_own = pc.and_(pc.greater_equal(times, commit.lower), pc.less(times, commit.upper))
            sampled = _sample(changes.filter(is_own), key)
        found.append(told | sampled)
    return found


def _list_commits(head: ShardHead) -> Iterator[_Commit]:
    """Yield the commits that changed rows, the newest first, as far back as their changes can be told apart."""
    since = head.state.since
    for snapshot in ancestry(head.table.metadata, head.updates.snapshot_id) if head.updates else ():
        summary = _summary(snapshot)
        changes = int(summary.get("added-records", 0))
        lower, upper = (parse_frontier(summary.get(f"tidemark.{name}", "empty")) for name in ("lower", "upper"))
        kind = summary.get("tidemark.kind", "")
        if not changes or kind not in _CHANGING or isinstance(lower, Empty) or isinstance(upper, Empty):
            continue
        if isinstance(since, Empty) or since >= upper:
            return
        yield _Commit(max(lower, since), upper, kind, changes)


def _take_while_few(commits: Iterable[_Commit]) -> Iterator[_Commit]:
    total = 0
    for commit in commits:
        total += commit.changes
        if total > READ_AT_MOST:
            return
        yield commit


def _sample(changes: pa.Table, key: Sequence[str]) -> dict[str, Any]:
    columns = [name for name in changes.column_names if name not in {TIME, DIFF}]
    before: dict[str, dict[str, Any]] = {}
    after: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(to_rows(changes)):
        # Without a key no row is another row's later form.
        place = repr([row[name] for name in key if name in row]) if key else str(number)
        (before if row[DIFF] < 0 else after)[place] = {name: shown(row[name]) for name in columns}
    places = sorted({**before, **after}, key=lambda place: not (place in before and place in after))
    return {
        "inserted": _total(changes, 1),
        "retracted": _total(changes, -1),
        "columns": columns,
        "samples": [{"before": before.get(place), "after": after.get(place)} for place in places[:SAMPLE]],
    }


def _total(changes: pa.Table, sign: int) -> int:
    diffs = pc.multiply(changes[DIFF], sign)
    return pc.sum(diffs.filter(pc.greater(diffs, 0))).as_py() or 0


def describe_schema(head: ShardHead) -> list[dict[str, Any]]:
    """Return the columns with their types, the system's own ones last."""
    system = SYSTEM_COLUMNS[head.state.layout]
    return [
        {"name": field.name, "type": str(field.field_type), "required": field.required, "system": field.name in system}
        for field in head.table.schema().fields
    ]


def describe_history(head: ShardHead) -> list[dict[str, Any]]:
    """Return the last commits of main, oldest first: when, what it did, the upper and the number of rows it left."""
    newest = islice(own_snapshots(head), COMMITS)
    return [_commit_of(snapshot.timestamp_ms, _summary(snapshot)) for snapshot, _ in newest][::-1]


def _summary(snapshot: Any) -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _commit_of(time_ms: int, summary: Mapping[str, str]) -> dict[str, Any]:
    rows = int(summary.get("total-records", 0)) - int(summary.get("total-position-deletes", 0))
    return {
        "time_ms": time_ms,
        "commit": summary.get("tidemark.kind"),
        "upper": frontier_json(parse_frontier(summary.get("tidemark.upper", "0"))),
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
