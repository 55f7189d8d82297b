"""The contents of a log and of a staging branch, read by another path than the library's own."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tidemark.errors import AsOfBeforeSince, CorruptState, NotYetAvailable, UsageError
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.iceberg.staging.branches import read_intact

if TYPE_CHECKING:
    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.iceberg.staging.branches import StagedBatch


def read_log(head: ShardHead, *, as_of: int | None = None) -> Counter[tuple[str, str, str]]:
    """Return the contents of a log at ``as_of`` (default: now) as ``(kind, key, value)`` with multiplicities.

    Raises:
        AsOfBeforeSince: If history there is gone.
        NotYetAvailable: If ``as_of`` is not below the upper.
    """
    if as_of is not None and as_of < head.state.since:
        raise AsOfBeforeSince(f"history before {head.state.since} is gone, asked for {as_of}")
    if as_of is not None and not as_of < head.state.upper:
        raise NotYetAvailable(f"contents below {head.state.upper} are known, asked for {as_of}")
    scan = head.table.scan(snapshot_id=head.contents.snapshot_id)
    if as_of is not None:
        scan = scan.filter(f"{TIME} <= {as_of}")
    totals: Counter[tuple[str, str, str]] = Counter()
    for row in scan.to_arrow().to_pylist():
        totals[row["kind"], row["key"], row["value"]] += row[DIFF]
    return Counter({item: diff for item, diff in totals.items() if diff})


def read_staged(shard: Shard, branch: str) -> StagedBatch:
    """Return what ``branch`` holds, with its files.

    Raises:
        UsageError: If there is no such branch.
        CorruptState: If it holds more or less than one staged snapshot.
    """
    head = shard.load()
    if branch not in head.staged_branches:
        raise UsageError(f"shard {shard.name!r} has no staging branch {branch!r}")
    staged = read_intact(head.table, branch, fingerprint=None)
    if staged is None:
        raise CorruptState(
            f"staging branch {branch!r} of {shard.name!r} does not hold exactly one staged snapshot",
            hint="discard it and stage again",
        )
    return staged
