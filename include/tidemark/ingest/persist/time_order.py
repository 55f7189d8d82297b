"""The sort order by event time: a data file that bears its id is persisted, any other is open.

The order is not the table's default, so that no engine puts the id on files that an ingest writes. A file that another
engine or a compaction wrote anew is open, and the next persist takes its rows in: slower, and never wrong.
"""

from __future__ import annotations

from typing import Literal

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.table.update import AddSortOrderUpdate, ValidatableTableRequirement
from pyiceberg.transforms import IdentityTransform

from tidemark.iceberg.commit.branch_commit import attempts_beside, commit_beside
from tidemark.iceberg.shard.shard import Shard


class AssertSortOrders(ValidatableTableRequirement):
    """Nobody added a sort order since the head was read: of two with one id no engine can read the table."""

    type: Literal["assert-sort-orders"] = "assert-sort-orders"
    order_ids: list[int]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]  # as its base does
        if base_metadata is None or [each.order_id for each in base_metadata.sort_orders] != self.order_ids:
            raise CommitFailedException("Requirement failed: a sort order was added")


def find_time_order(table: Table, column: str) -> int | None:
    """Return the id of the table's sort order by ``column``; None if no file was ever persisted."""
    fields = _fields(table, column)
    default_id = table.metadata.default_sort_order_id
    orders = (each for each in table.metadata.sort_orders if each.order_id != default_id)
    return next((each.order_id for each in orders if list(each.fields) == fields), None)


def add_time_order(shard: Shard, column: str) -> int:
    """Return the id of the sort order by ``column``, which the table gets if it has none.

    Raises ``ConflictsUnsettled`` if other commits kept winning.
    """
    order_id = 0
    for attempt in attempts_beside(shard, "the sort order by event time"):
        with attempt:
            head = shard.load()
            table = head.table
            if (found := find_time_order(table, column)) is not None:
                order_id = found
                break
            order_id = max(each.order_id for each in table.metadata.sort_orders) + 1
            order = SortOrder(*_fields(table, column), order_id=order_id)
            unchanged = AssertSortOrders(order_ids=[each.order_id for each in table.metadata.sort_orders])
            commit_beside(shard, head, [unchanged], [AddSortOrderUpdate(sort_order=order)])
    return order_id


def _fields(table: Table, column: str) -> list[SortField]:
    return [SortField(table.schema().find_field(column).field_id, IdentityTransform())]
