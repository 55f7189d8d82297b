"""What the runs of the last days took, by object: from ``system_statistics``, whose files are read once each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.collections.system.declarations import STATISTICS
from tidemark.collections.system.rules import CARRYING
from tidemark.iceberg.files.stored_rows import StoredRows
from tidemark.iceberg.shards import SYSTEM, Shards
from tidemark.interval import DAY_MS

DAYS = 30
_TEXTS = ("object", "operation", "outcome", "error")
_COLUMNS = ("measured_at", "object_id", "rows", "lag_ms", "seconds", *_TEXTS)
_FAILED = frozenset({"failed", "refused"})

Key = tuple[str, int]  # an object's name and id


@dataclass(slots=True)
class Summary:
    """The runs of one object that were to carry rows; times are ms since the Unix epoch.

    ``rows_by_day`` has the rows that runs changed, by days since 1970.
    """

    runs: int
    first_ms: int
    last_ms: int
    last_good_ms: int | None
    lag_ms: int | None
    seconds: float | None
    rows_by_day: dict[int, int] = field(default_factory=dict)

    @property
    def usual_gap_ms(self) -> int | None:
        """How long it usually is from one run to the next; None if there were too few."""
        return (self.last_ms - self.first_ms) // (self.runs - 1) if self.runs > 2 else None  # noqa: PLR2004

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
            pieces[key] = self._pieces.get(key) or _read(stored.scan(file, _COLUMNS), stored)
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
        shown: list[dict[str, Any]] = rows.drop_columns(["object", "object_id"]).sort_by("measured_at").to_pylist()
        return shown


def _read(placed: Iterator[Any], stored: StoredRows) -> _Piece:
    rows = pa.concat_tables([each.rows for each in placed] or [stored.empty(_COLUMNS)])
    times = pc.divide(rows["measured_at"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()), 1_000)
    rows = rows.set_column(rows.schema.get_field_index("measured_at"), "measured_at", times)
    for name in _TEXTS:  # a word that comes a thousand times is kept once
        index = rows.schema.get_field_index(name)
        rows = rows.set_column(index, name, rows[name].cast(pa.string()).dictionary_encode())
    rows = rows.combine_chunks()
    return _Piece(rows, _summarise(rows))


def _summarise(rows: pa.Table) -> dict[Key, Summary]:
    carrying = rows.filter(pc.is_in(rows["operation"].cast(pa.string()), pa.array(sorted(CARRYING)))).sort_by(
        "measured_at"
    )
    if carrying.num_rows == 0:
        return {}
    names = carrying["object"].cast(pa.string()).to_pylist()
    keys = list(zip(names, carrying["object_id"].to_pylist(), strict=True))
    numbers: dict[Key, int] = {}
    codes = np.fromiter((numbers.setdefault(key, len(numbers)) for key in keys), np.int64, len(keys))
    times = carrying["measured_at"].to_numpy()
    is_good = ~pc.is_in(carrying["outcome"].cast(pa.string()), pa.array(sorted(_FAILED))).to_numpy()
    first, last = _ends(codes, len(numbers))
    good = np.full(len(numbers), -1)
    good[codes[is_good]] = np.flatnonzero(is_good)  # of equal indices the last one stays
    lags, seconds = carrying["lag_ms"].to_pylist(), carrying["seconds"].to_pylist()
    counts = np.bincount(codes)
    found = {
        key: Summary(
            runs=int(counts[code]),
            first_ms=int(times[first[code]]),
            last_ms=int(times[last[code]]),
            last_good_ms=None if good[code] < 0 else int(times[good[code]]),
            lag_ms=lags[last[code]],
            seconds=seconds[last[code]],
        )
        for key, code in numbers.items()
    }
    changed = pc.fill_null(carrying["rows"], 0).to_numpy()
    days = times // DAY_MS
    some = changed > 0
    pairs, at = np.unique(np.stack([codes[some], days[some]]), axis=1, return_inverse=True)
    sums = np.bincount(at.ravel(), weights=changed[some])
    by_code = [found[key] for key in numbers]
    for (code, day), total in zip(pairs.T.tolist(), sums.tolist(), strict=True):
        by_code[code].rows_by_day[day] = int(total)
    return found


def _ends(codes: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first and the last place of each code."""
    first, last = np.zeros(count, np.int64), np.zeros(count, np.int64)
    last[codes] = np.arange(len(codes))
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    return first, last


def _merge(parts: Iterator[Mapping[Key, Summary]]) -> dict[Key, Summary]:
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
        last_ms=later.last_ms,
        last_good_ms=max(good, default=None),
        lag_ms=later.lag_ms,
        seconds=later.seconds,
        rows_by_day=by_day,
    )
