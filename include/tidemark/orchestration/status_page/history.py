"""What the runs of the last days took, by object: from ``system_statistics``, whose files are read once each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.collections.system.declarations import STATISTICS
from tidemark.collections.system.rules import CARRYING
from tidemark.iceberg.files.data_files import arrow_schema
from tidemark.iceberg.files.stored_rows import StoredRows
from tidemark.iceberg.shards import SYSTEM, Shards
from tidemark.interval import DAY_MS

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

DAYS = 30
_RECENT = 9
_KEY = ["object", "object_id"]
_TEXTS = ("object", "operation", "outcome", "error")
_COLUMNS = ("measured_at", "object_id", "rows", "lag_ms", "seconds", *_TEXTS)
_NEW = "sequencer_lags"  # lacks in a table that an earlier version made, until something is recorded
_FAILED = frozenset({"failed", "refused"})

Key = tuple[str, int]  # an object's name and id


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The runs of one object that were to carry rows; times are ms since the Unix epoch.

    ``rows_by_day`` has the rows that runs changed, by days since 1970.
    """

    runs: int
    first_ms: int
    recent_ms: list[int]  # the times of the last ``_RECENT`` runs, oldest first
    last_good_ms: int | None
    lag_ms: int | None
    seconds: float | None
    rows_by_day: dict[int, int]

    @property
    def last_ms(self) -> int:
        return self.recent_ms[-1]

    @property
    def usual_gap_ms(self) -> int | None:
        """How long it usually is from one run to the next; None if there were too few.

        The mean of all and the median of the last ones, whichever is longer: somebody may have tried an object again
        and again, lately or at first.
        """
        gaps = [later - earlier for earlier, later in pairwise(self.recent_ms)]
        if len(gaps) < 2:  # noqa: PLR2004 - one says nothing of others
            return None
        return max((self.last_ms - self.first_ms) // (self.runs - 1), int(median(gaps)))

    def rows_of_days(self, now_ms: int) -> list[int]:
        """Return the rows that were changed on each of the last ``DAYS`` days (UTC), today's last."""
        today = now_ms // DAY_MS
        return [self.rows_by_day.get(day, 0) for day in range(today - DAYS + 1, today + 1)]


@dataclass(frozen=True, slots=True)
class _Piece:
    rows: pa.Table
    summaries: Mapping[Key, Summary]


class History:
    """Keeps the runs that are stored; ``update`` reads the files that came since the last time."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[str, int], _Piece] = {}
        self.summaries: Mapping[Key, Summary] = {}

    def update(self, shards: Shards) -> None:
        """Read what is new. Raises as ``Shard.load``."""
        head = shards.open(STATISTICS, SYSTEM).load()
        stored = StoredRows.in_contents(head)
        files = {(file.file_path, stored.live(file)): file for file in stored.files}
        pieces = {}
        for key, file in files.items():
            pieces[key] = self._pieces.get(key) or _read(file, stored)
        self._pieces, self.summaries = pieces, _merge(piece.summaries for piece in pieces.values())

    def runs(self, key: Key) -> list[dict[str, Any]]:
        """Return the runs over one object, of every operation, oldest first, with times in ms."""
        name, id_ = key
        found = [
            piece.rows.filter(pc.and_(pc.equal(piece.rows["object"], name), pc.equal(piece.rows["object_id"], id_)))
            for piece in self._pieces.values()
        ]
        if not found:
            return []
        rows = pa.concat_tables([each.cast(found[0].schema) for each in found])
        shown: list[dict[str, Any]] = rows.drop_columns(_KEY).sort_by("measured_at").to_pylist()
        return shown


def _read(file: DataFile, stored: StoredRows) -> _Piece:
    columns = [*_COLUMNS, *({_NEW} & {*arrow_schema(stored.table).names})]
    placed = stored.scan(file, columns)
    rows = pa.concat_tables([each.rows for each in placed] or [stored.empty(columns)]).combine_chunks()
    if _NEW not in columns:
        rows = rows.append_column(_NEW, pa.nulls(len(rows), pa.string()))
    times = pc.divide(rows["measured_at"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()), 1_000)
    rows = rows.set_column(rows.schema.get_field_index("measured_at"), "measured_at", times)
    summaries = _summarise(rows)
    for name in _TEXTS:  # a word that comes a thousand times is kept once
        index = rows.schema.get_field_index(name)
        rows = rows.set_column(index, name, rows[name].cast(pa.string()).dictionary_encode())
    return _Piece(rows, summaries)


def _summarise(rows: pa.Table) -> dict[Key, Summary]:
    carrying = rows.filter(pc.is_in(rows["operation"], _texts(CARRYING))).sort_by("measured_at")
    times = carrying["measured_at"]
    good_times = pc.if_else(pc.is_in(carrying["outcome"], _texts(_FAILED)), pa.scalar(None, pa.int64()), times)
    carrying = carrying.append_column("good_at", good_times).append_column("day", pc.divide(times, DAY_MS))
    also_null = pc.ScalarAggregateOptions(skip_nulls=False)
    by_object = carrying.group_by(_KEY, use_threads=False).aggregate(
        [("measured_at", "list"), ("good_at", "max"), ("lag_ms", "last", also_null), ("seconds", "last", also_null)]
    )
    found = {
        (row["object"], row["object_id"]): Summary(
            runs=len(row["measured_at_list"]),
            first_ms=row["measured_at_list"][0],
            recent_ms=row["measured_at_list"][-_RECENT:],
            last_good_ms=row["good_at_max"],
            lag_ms=row["lag_ms_last"],
            seconds=row["seconds_last"],
            rows_by_day={},
        )
        for row in by_object.to_pylist()
    }
    for row in carrying.group_by([*_KEY, "day"]).aggregate([("rows", "sum")]).to_pylist():
        found[row["object"], row["object_id"]].rows_by_day[row["day"]] = row["rows_sum"] or 0
    return found


def _texts(values: Iterable[str]) -> pa.Array:
    return pa.array(sorted(values))


def _merge(parts: Iterable[Mapping[Key, Summary]]) -> dict[Key, Summary]:
    merged: dict[Key, Summary] = {}
    for part in parts:
        for key, each in part.items():
            merged[key] = _joined(merged[key], each) if key in merged else each
    return merged


def _joined(one: Summary, other: Summary) -> Summary:
    later = max(one, other, key=lambda each: each.last_ms)
    good = [each.last_good_ms for each in (one, other) if each.last_good_ms is not None]
    by_day = dict(one.rows_by_day)
    for day, rows in other.rows_by_day.items():
        by_day[day] = by_day.get(day, 0) + rows
    return Summary(
        runs=one.runs + other.runs,
        first_ms=min(one.first_ms, other.first_ms),
        recent_ms=sorted([*one.recent_ms, *other.recent_ms])[-_RECENT:],
        last_good_ms=max(good, default=None),
        lag_ms=later.lag_ms,
        seconds=later.seconds,
        rows_by_day=by_day,
    )
