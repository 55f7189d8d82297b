"""The upkeep of a collection that gets a commit every few seconds: small files are merged, and snapshots expire.

Each commit adds a file and a snapshot, and every reader parses all snapshots. So the worker that holds the collection
merges and expires now and then; what else maintenance does (retention, orphans, holds) stays with maintenance. Of such
a collection an hour of history is kept: with the seven days of the others there would be a hundred thousand snapshots.
"""

from __future__ import annotations

import logging
from typing import Final

from tidemark.clock import Clock
from tidemark.collections.deployment import Deployment
from tidemark.collections.mode import lead_to_write
from tidemark.errors import TidemarkError
from tidemark.iceberg.commit.holds import downgrade_since
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.expiry import expire
from tidemark.iceberg.maintenance.orphans import store_now_ms
from tidemark.iceberg.shard.shard import Shard
from tidemark.interval import HOUR_MS

log = logging.getLogger(__name__)

COMMITS: Final = 64  # between two upkeeps
TIDY_S: Final = 1_200.0  # after which fewer commits are enough
HISTORY_MS: Final = HOUR_MS
SNAPSHOT_AGE_MS: Final = 5 * 60_000  # a reader may still need a younger snapshot


def tidy(shard: Shard, deployment: Deployment, *, clock: Clock) -> None:
    """Merge the small files of a collection, and let old snapshots expire; what fails is tried again later."""
    try:
        writer = lead_to_write(shard, deployment, what="upkeep")
        now_ms = min(clock.now_ms(), store_now_ms(shard))
        downgrade_since(shard, max(0, now_ms - HISTORY_MS), now_ms=now_ms)
        compact(writer)
        expire(writer, older_than_ms=now_ms - SNAPSHOT_AGE_MS)
    except TidemarkError as error:
        log.warning("the upkeep of %s was left to a later one: %s", shard.name, error)
