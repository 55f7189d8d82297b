"""Random rows of every column type, and multisets of rows that compare as Spark's grouping does."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hypothesis.strategies import SearchStrategy

Row = dict[str, Any]

# Names that a comparison could trip over are meant: some are Tidemark's own inside it, one needs quoting.
SCHEMA = pa.schema(
    [
        ("k", pa.int32()),
        ("file", pa.string()),
        ("a `b`.c", pa.int64()),
        ("hash", pa.float64()),
        ("f", pa.float32()),
        ("flag", pa.bool_()),
        ("price", pa.decimal128(20, 4)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("at_ntz", pa.timestamp("us")),
        ("raw", pa.binary()),
        ("list", pa.list_(pa.float64())),
        ("lists", pa.list_(pa.list_(pa.int32()))),
        ("map", pa.map_(pa.string(), pa.float64())),
        ("struct", pa.struct([("x", pa.int32()), ("y", pa.struct([("z", pa.string())]))])),
    ]
)
KEY = ("k", "file")

_FLOATS = st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf, -math.inf])
_VALUES: dict[str, SearchStrategy[Any]] = {
    "a `b`.c": st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)]),
    "hash": _FLOATS,
    "f": _FLOATS,
    "flag": st.booleans(),
    "price": st.sampled_from([Decimal("0.0000"), Decimal("-1.5000"), Decimal("1234567890123456.7890")]),
    "day": st.sampled_from([date(1582, 10, 4), date(1970, 1, 1), date(2013, 1, 2)]),
    "at": st.sampled_from([datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), datetime(2013, 3, 31, 1, 30, tzinfo=UTC)]),
    "at_ntz": st.sampled_from([datetime(1969, 12, 31, 23, 59, 59), datetime(2013, 3, 31, 2, 30)]),  # noqa: DTZ001
    "raw": st.sampled_from([b"", b"\0", b"\xff\0"]),
    "list": st.lists(st.none() | _FLOATS, max_size=2),
    "lists": st.sampled_from([[], [None], [[]], [[1], [2]], [[1, 2]], [[None], []]]),
    "map": st.sampled_from(
        [[], [("x", 0.0), ("y", None)], [("y", None), ("x", -0.0)], [("x", None), ("y", 0.0)], [("x", math.nan)]]
    ),
    "struct": st.fixed_dictionaries(
        {"x": st.none() | st.integers(0, 1), "y": st.none() | st.fixed_dictionaries({"z": st.none() | st.just("p")})}
    ),
}


def rows(*, keyed: bool) -> SearchStrategy[list[Row]]:
    """Return up to 25 rows; keyed ones have unique keys without NULL, others may repeat."""
    keys = {"k": st.integers(0, 6), "file": st.sampled_from(["", "x", "é"])}
    columns = {
        name: values if keyed and name in KEY else st.none() | values for name, values in (keys | _VALUES).items()
    }
    one = st.fixed_dictionaries(columns)
    if keyed:
        return st.lists(one, max_size=25, unique_by=lambda row: (row["k"], row["file"]))
    return st.lists(one, max_size=15).flatmap(
        lambda some: (
            st.lists(st.sampled_from(some), max_size=10).map(lambda again: some + again) if some else st.just([])
        )
    )


def table(some: Iterable[Row]) -> pa.Table:
    return pa.Table.from_pylist(list(some), schema=SCHEMA)


def multiset(found: pa.Table) -> Counter[tuple[Any, ...]]:
    """Return the rows with their multiplicities; ``_diff``, if there is one, is the multiplicity."""
    counted: Counter[tuple[Any, ...]] = Counter()
    for row in found.to_pylist():
        counted[tuple(_comparable(row[name]) for name in SCHEMA.names)] += row.get("_diff", 1)
    return Counter({row: count for row, count in counted.items() if count})


def _comparable(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0  # -0.0 + 0.0 is 0.0
    if isinstance(value, list) and value and all(isinstance(each, tuple) for each in value):
        return ("map", *sorted((key, str(_comparable(each))) for key, each in value))
    if isinstance(value, list | tuple):
        return ("list", *(_comparable(each) for each in value))
    if isinstance(value, dict):
        return ("struct", *((name, _comparable(each)) for name, each in value.items()))
    return value
