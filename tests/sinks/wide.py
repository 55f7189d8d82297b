"""Columns of every type, a row of them, and a collection that has such rows."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from math import nan
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.sinks.targets.driving import columns
from tidemark.collections.append.append import append_rows
from tidemark.collections.staged.batches import BatchName
from tidemark.iceberg.shard.ledger import Range
from tidemark.sinks.targets.files.columns import file_schema

if TYPE_CHECKING:
    from tests.support.homes import Home

ALL = columns(
    id_1="bigint", name_2="string", truth_3="boolean", small_4="int", single_5="float", double_6="double", day_7="date",
    at_8="timestamp", local_9="timestamp_ntz", bytes_10="binary", money_11="decimal(38,9)", list_12="array<string>",
    pair_13="struct<a:int,`b c`:array<double>>", map_14="map<string,bigint>",
)  # fmt: skip
FULL: dict[str, Any] = {
    "id": -(2**63), "name": "ü\u0000\n'\"\\", "truth": False, "small": -(2**31), "single": 0.5, "double": 1e308,
    "day": date(1, 1, 1), "at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    "local": datetime(9999, 12, 31, 23),  # noqa: DTZ001 - local time
    "bytes": b"\x00\xff", "money": Decimal("-12345678901234567890123456789.123456789"), "list": ["", None, "x"],
    "pair": {"a": None, "b c": [0.5, None]}, "map": [("k", 1), ("l", None)],
}  # fmt: skip


def append_wide(home: Home, *, without_nul: bool = False) -> None:
    """Make the append-only collection `wide` of three rows."""
    listed = ", ".join(f"{column.name} {column.type}" for column in ALL)
    home.declare(f"version: 1\ncollections:\n  wide: {{kind: append-only, schema: '{listed}'}}\n")
    full = FULL | ({"name": "ü\n'\"\\"} if without_nul else {})
    odd = dict.fromkeys(full) | {"id": 2, "double": nan, "single": float("-inf")}
    rows = pa.Table.from_pylist([full, odd, dict.fromkeys(full) | {"id": 1}], file_schema(ALL, with_times=False))
    name = BatchName("test", Range(0, 1))
    append_rows(home.shard("wide"), name, rows, deployment=home.deployment, clock=home.clock)
