"""Change the prepared sources as the world does: rows updated, removed and added, the same ones every time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from examples.prepare import flights_path, read_table, write_table

if TYPE_CHECKING:
    from pathlib import Path

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """What was done to the source of one collection, in rows."""

    collection: str
    updated: int = 0
    removed: int = 0
    added: int = 0

    @property
    def inserted(self) -> int:
        """The rows that a reconcile has to insert: an update replaces a row."""
        return self.updated + self.added

    @property
    def retracted(self) -> int:
        """The rows that a reconcile has to retract."""
        return self.updated + self.removed


def edit_sources(data: Path) -> list[Edit]:
    """Edit four of the five sources below ``data``, and leave ``airports`` alone; return what was done."""
    return [edit_airlines(data), edit_planes(data), edit_flights(data, month=1, day=2), edit_weather(data)]


def edit_airlines(data: Path) -> Edit:
    """Rename one airline: it merged."""
    path = data / "airlines.json"
    table = read_table(path)
    rows = [row | {"name": "American Airlines Group"} if row["carrier"] == "AA" else row for row in table.to_pylist()]
    _write(rows, table, path)
    return Edit(collection="airlines", updated=1)


def edit_planes(data: Path) -> Edit:
    """Give three planes five seats more, scrap two and buy one."""
    path = data / "planes.csv"
    table = read_table(path)
    rows = table.to_pylist()
    refitted = [row | {"seats": row["seats"] + 5} for row in rows[:3]]
    bought = rows[3] | {"tailnum": "N0TIDE", "year": 2013, "speed": None}
    _write([*refitted, *rows[3:-2], bought], table, path)
    return Edit(collection="planes", updated=3, removed=2, added=1)


def edit_flights(data: Path, *, month: int, day: int) -> Edit:
    """Correct the arrival of five flights of one day of 2013, strike two, add one that was forgotten."""
    path = flights_path(data, month)
    table = read_table(path)
    rows = table.to_pylist()
    of_day = [number for number, row in enumerate(rows) if row["day"] == day]
    late, struck, model = of_day[:5], of_day[5:7], of_day[7]
    for number in late:
        rows[number] |= {"arr_delay": (rows[number]["arr_delay"] or 0) + 15}
    forgotten = rows[model] | {"flight": 9999, "tailnum": None}
    kept = [row for number, row in enumerate(rows) if number not in struck]
    _write([*kept, forgotten], table, path)
    return Edit(collection="flights", updated=len(late), removed=len(struck), added=1)


def edit_weather(data: Path) -> Edit:
    """Drop one observation and repeat another: without a key, the same row may be there twice."""
    path = data / "weather.parquet"
    table = read_table(path)
    rows = table.to_pylist()
    _write([*rows[1:], rows[-1]], table, path)
    return Edit(collection="weather", removed=1, added=1)


def _write(rows: list[Row], like: pa.Table, path: Path) -> None:
    write_table(pa.Table.from_pylist(rows, schema=like.schema), path)
