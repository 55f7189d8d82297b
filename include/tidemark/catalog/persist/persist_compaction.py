"""Keeping the persist catalog small: each commit adds a file and a snapshot, and every reader goes through them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from tidemark.errors import TidemarkError
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.expiry import expire
from tidemark.iceberg.maintenance.log_consolidation import consolidate_log

if TYPE_CHECKING:
    from tidemark.iceberg.shard.shard import Shard

log = logging.getLogger(__name__)

COMPACT_ABOVE: Final = 100  # data files: an open then reads them in a few tenths of a second
KEPT_MS: Final = 10 * 60_000  # superseded snapshots stay this long, for whoever is still reading them


def compact_if_due(shard: Shard, *, file_count: int, generation: int, now_ms: int) -> bool:
    """Consolidate the log and expire its snapshots if it has grown; return whether that was done.

    A failure is logged and no more: what is asked for has been committed before, and the next commit comes by here.
    """
    if file_count <= COMPACT_ABOVE:
        return False
    try:
        return compact_catalog(shard, generation=generation, now_ms=now_ms)
    except TidemarkError as error:
        log.warning("the catalog was not compacted, which the next commit tries again: %s", error)
        return False


def compact_catalog(shard: Shard, *, generation: int, now_ms: int) -> bool:
    """Consolidate the log and expire its snapshots; contents, epoch and upper stay as they are.

    Raises:
        FencedByGeneration: If a newer deployment owns the shard.
        Others as ``consolidate_log`` and ``expire``.
    """
    writer = Writer.join(shard, generation)
    was_rewritten = consolidate_log(writer, now_ms=now_ms)
    expire(writer, older_than_ms=now_ms - KEPT_MS)
    return was_rewritten
