"""Delivers a batch of statuses: what is no news is left out, as the collection stands in the very commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.collections.append.append import with_batch_columns
from tidemark.collections.append.statuses import StatusFilter
from tidemark.errors import InputsGone
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.staging.files import stage_files

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from tidemark.collections.declarations.append_only import StatusHistory
    from tidemark.collections.staged.batches import BatchName
    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.iceberg.shard.shard import Shard


class StatusDelivery:
    """Rows in memory, chosen and written anew on every attempt, because others may have written statuses meanwhile.

    Files of attempts that lost are left to orphan removal. A batch without any news is appended without rows: its
    range is done.
    """

    def __init__(
        self,
        name: BatchName,
        rows: Callable[[Table], pa.Table],
        status: StatusHistory,
        *,
        collection: str,
        generation: int,
    ) -> None:
        self._name, self._rows, self._collection = name, rows, collection
        self._filter = StatusFilter(status, collection=collection, generation=generation)
        self.superseded = 0  # rows that were left out

    def stage(self, shard: Shard, branch: str, check: Callable[[ShardHead], None]) -> int:
        head = shard.load()
        files = self._write(head)

        def check_unmoved(fresh: ShardHead) -> None:
            check(fresh)
            refuse_if_moved(head, fresh, collection=self._collection)

        staged = stage_files(
            shard,
            files,
            branch=branch,
            fingerprint=str(self._name),
            schema_id=head.table.metadata.current_schema_id,
            check=check_unmoved,
        )
        return staged.rows

    def write(self, shard: Shard, head: ShardHead) -> Batch:  # noqa: ARG002 -- of the protocol
        files = self._write(head)
        schema_id = head.table.metadata.current_schema_id
        return Batch(added=files, schema_id=schema_id, producer=self._name.producer, range=self._name.range)

    def _write(self, head: ShardHead) -> tuple[DataFile, ...]:
        rows = self._rows(head.table)
        news = self._filter.choose(head, rows)
        self.superseded = rows.num_rows - news.num_rows
        return write_rows(head.table, with_batch_columns(news, self._name))


def refuse_if_moved(head: ShardHead, fresh: ShardHead, *, collection: str) -> None:
    """Refuse to stage statuses that were chosen before others came.

    Raises:
        InputsGone: If something was published or staged since; choose again.
    """
    if (head.main.snapshot_id, head.staged_branches) != (fresh.main.snapshot_id, fresh.staged_branches):
        raise InputsGone(f"{collection!r} got other rows while those of this batch were chosen")
