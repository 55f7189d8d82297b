"""Say in a line each what a run corrected: rows that appeared or vanished, and which columns of a row changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Row = dict[str, Any]
_SHOWN_COLUMNS = 6


def describe_corrections(updates: Iterable[Mapping[str, Any]], key: Sequence[str]) -> list[str]:
    """Return a line per corrected row, in the order of the keys.

    Args:
        updates: Rows with ``_time`` and ``_diff``, consolidated, as ``tidemark changes`` lists them.
        key: Columns that name a row. Without them nothing says which old row a new one replaces.
    """
    inserted: dict[str, Row] = {}
    retracted: dict[str, Row] = {}
    for number, update in enumerate(updates):
        row = {column: value for column, value in update.items() if column not in {"_time", "_diff"}}
        name = " ".join(str(row[column]) for column in key) if key else f"{number:09}"
        (inserted if update["_diff"] > 0 else retracted)[name] = row
    lines = []
    for name in sorted(inserted.keys() | retracted.keys()):
        old, new = retracted.get(name), inserted.get(name)
        if old and new:
            changed = (f"{column} {old[column]} → {new[column]}" for column in new if old[column] != new[column])
            lines.append(f"~ {name}: {', '.join(changed)}")
        else:
            lines.append(f"{'+' if new else '-'} {_summary(new or old or {}, name if key else '', key)}")
    return lines


def _summary(row: Row, name: str, key: Sequence[str]) -> str:
    told = [f"{column} {value}" for column, value in row.items() if column not in key and value is not None]
    more = ", …" if len(told) > _SHOWN_COLUMNS else ""
    return f"{name}: {', '.join(told[:_SHOWN_COLUMNS])}{more}".removeprefix(": ")
