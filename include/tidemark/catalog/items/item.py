"""Items of the catalog as both back ends store them: three texts, equal exactly when the values are equal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple


class Item(NamedTuple):
    """One item: ``kind`` is the name of an ``ItemKind``, ``key`` and ``value`` are canonical JSON texts."""

    kind: str
    key: str
    value: str


class Change(NamedTuple):
    """A signed multiplicity of an item: +1 inserts, -1 retracts; the context says at which time."""

    item: Item
    diff: int


def canonical_json(value: object) -> str:
    """Return the same JSON for equal values: sorted keys, no spaces, ASCII. Raises ``ValueError`` for NaN, infinity."""
    # ASCII, because PostgreSQL, SQLite and Parquet each have their own idea of a lone surrogate.
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def net(changes: Iterable[Change]) -> list[Change]:
    """Sum the diffs of equal items and drop zeros; retractions first, in order of kind, key and value."""
    totals: Counter[Item] = Counter()
    for item, diff in changes:
        totals[item] += diff
    changes = (Change(item, diff) for item, diff in totals.items() if diff)
    return sorted(changes, key=lambda change: (change.diff > 0, change.item))
