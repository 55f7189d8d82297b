"""Deliveries that take their time, such as Spark's: onto a pending branch, which nobody lists, flushes or waits for.

What is staged under a batch's own name is whole therefore, and a delivery that dies, or whose source moves while it is
read, leaves nothing that could be published. Maintenance removes what the dead have left.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from tidemark.errors import TidemarkError
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.shard.branch_names import pending_name
from tidemark.iceberg.staging.branches import drop_staged, settle

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.collections.staged.batches import BatchName
    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.iceberg.staging.branches import StagedBatch

log = logging.getLogger(__name__)


class PendingDelivery(ABC):
    """One batch on its way; a context manager that drops what was written and not taken."""

    def __init__(self, shard: Shard, name: BatchName, *, generation: int) -> None:
        self._shard, self._name = shard, name
        self._pending = pending_name(name.branch(generation))
        self._began = False

    @abstractmethod
    def write_pending(self, shard: Shard, branch: str) -> StagedBatch:
        """Write the rows onto ``branch``; called again, it may take what is there already."""

    def stage(self, shard: Shard, branch: str, check: Callable[[ShardHead], None]) -> int:
        staged = self._write()
        settle(shard, staged.branch, branch, check)
        return staged.rows

    def write(self, shard: Shard, head: ShardHead) -> Batch:  # noqa: ARG002 -- of the protocol
        staged = self._write()
        return Batch(
            added=staged.files,
            branches=((staged.branch, staged.snapshot_id),),
            producer=self._name.producer,
            range=self._name.range,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._began:
            return
        try:
            drop_staged(self._shard, [self._pending])
        except TidemarkError as error:  # of no consequence to the batch, which is there or is not
            log.warning("pending branch %s of %s is left to maintenance: %s", self._pending, self._shard.name, error)

    def _write(self) -> StagedBatch:
        self._began = True
        return self.write_pending(self._shard, self._pending)
