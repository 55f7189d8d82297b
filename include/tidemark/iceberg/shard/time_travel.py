"""Finds the snapshot with the contents at a time, from metadata alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from tidemark.errors import AsOfBeforeSince, NotYetAvailable, UsageError
from tidemark.frontier import Frontier, parse_frontier
from tidemark.iceberg.shard.head import HOLD_TAG, ShardHead
from tidemark.iceberg.shard.state import ShardKind


@dataclass(frozen=True, slots=True)
class PinnedContents:
    """Contents at one time: those of ``snapshot``, less the updates at times above ``undo_above`` (if not None).

    The second form is for history whose snapshots another tool has expired: the change log still knows it.
    """

    snapshot: Snapshot
    undo_above: int | None = None


def pin_contents(head: ShardHead, as_of: int | None, *, shard: str) -> PinnedContents:
    """Return where to read the contents at ``as_of``, in ms in ``[since, upper)``; None: now, also of a sealed shard.

    Raises:
        AsOfBeforeSince: If history at that time is gone.
        NotYetAvailable: If the time is not below the upper.
    """
    if as_of is None:
        return PinnedContents(head.contents)
    state = head.state
    if state.upper == 0:
        raise NotYetAvailable(
            f"{shard!r} has no contents at any time yet: nothing was ever committed to it",
            hint="reconcile it, or bring rows into it, first",
        )
    if as_of < state.since:
        raise AsOfBeforeSince(
            f"contents of {shard!r} at {as_of} are gone, history starts at {state.since}",
            hint="place a hold before you need old contents",
        )
    if not as_of < state.upper:
        raise NotYetAvailable(
            f"contents of {shard!r} at {as_of} are not final, its upper is {state.upper}",
            hint=f"ask for a time below {state.upper}",
        )
    for snapshot, lower in own_snapshots(head):
        if lower <= as_of:
            return PinnedContents(snapshot)
    if (pinned := _pinned_by_hold(head, as_of)) is not None:
        return PinnedContents(pinned)
    if state.layout is ShardKind.DIFFERENTIAL:
        return PinnedContents(head.contents, undo_above=as_of)
    raise AsOfBeforeSince(f"the snapshot of {shard!r} at {as_of} was expired by another tool")


def check_open(as_of: int | None, *, with_open: bool) -> None:
    """Raise ``UsageError`` if open rows of an older time are asked for, which nobody keeps."""
    if with_open and as_of is not None:
        raise UsageError("open rows are those of now: leave the time out, or read without them")


def _pinned_by_hold(head: ShardHead, as_of: int) -> Snapshot | None:
    """Return the snapshot with the contents at ``as_of`` if the tag of a hold saved it from another tool's expiry.

    The snapshot holds the contents from its lower up to the hold's since at least; its successor is expired.
    """
    for reader, hold in head.state.holds.items():
        snapshot = head.table.metadata.snapshot_by_name(HOLD_TAG + reader)
        if snapshot is None:
            continue
        lower = snapshot.summary["tidemark.lower"] if snapshot.summary else None
        first = hold.since if lower is None else parse_frontier(lower)
        if not as_of < first and as_of <= hold.since:
            return snapshot
    return None


def ancestry(metadata: TableMetadata, snapshot_id: int) -> Iterator[Snapshot]:
    """Yield a snapshot and its ancestors, newest first, as far as they are kept."""
    snapshot = metadata.snapshot_by_id(snapshot_id)
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = metadata.snapshot_by_id(parent) if parent is not None else None


def only_reached_by(metadata: TableMetadata, refs: Collection[str]) -> list[Snapshot]:
    """Return the snapshots that these refs reach and no other ref does, each ref's newest first.

    A staging branch starts without a parent. But a Spark driver that writes to a branch after its removal makes it anew
    on top of main's head (Iceberg 1.12.0), and from there on the snapshots are main's.
    """
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    reached: dict[int, Snapshot] = {}

    def walk(names: Iterable[str]) -> list[Snapshot]:
        new = []
        for name in names:
            snapshot = snapshots.get(metadata.refs[name].snapshot_id)
            while snapshot is not None and snapshot.snapshot_id not in reached:
                reached[snapshot.snapshot_id] = snapshot
                new.append(snapshot)
                snapshot = snapshots.get(snapshot.parent_snapshot_id or 0)
        return new

    walk(metadata.refs.keys() - set(refs))
    return walk(name for name in refs if name in metadata.refs)


def own_snapshots(head: ShardHead) -> Iterator[tuple[Snapshot, Frontier]]:
    """Yield our snapshots of main with their lowers, newest first, as far back as they are kept.

    Each holds the contents for times from its lower (inclusive) to the lower of the one before it in this order.
    Where only file replacements lie above a snapshot, the newest of them is yielded instead: same rows, fewer files.
    """
    newest_replacement: Snapshot | None = None
    for snapshot in ancestry(head.table.metadata, head.contents.snapshot_id):
        lower = snapshot.summary["tidemark.lower"] if snapshot.summary else None
        if lower is None:
            newest_replacement = newest_replacement or snapshot
        else:
            yield newest_replacement or snapshot, parse_frontier(lower)
            newest_replacement = None


def check_changes(head: ShardHead, from_: int, until: int | None, *, shard: str) -> Frontier:
    """Check ``[from_, until)`` against ``[since, upper)`` and return the until; None means the upper.

    An empty interval is allowed and has no changes.

    Raises:
        UsageError: If the interval is reversed, or the shard has no change log.
        AsOfBeforeSince: If part of it lies before since.
        NotYetAvailable: If part of it is not final.
    """
    state = head.state
    if state.layout is not ShardKind.DIFFERENTIAL:
        raise UsageError(f"{shard!r} is {state.layout}: only differential collections have changes")
    if from_ < state.since:
        raise AsOfBeforeSince(
            f"changes of {shard!r} at {from_} are gone, history starts at {state.since}",
            hint="read the contents now and go on from there; a hold keeps history from then on",
        )
    end: Frontier = state.upper if until is None else until
    if end < from_:
        raise UsageError(
            f"the interval [{from_}, {end}) of changes is reversed",
            hint="name the earlier time first: `--from EARLIER --until LATER`",
        )
    if state.upper < end:
        raise NotYetAvailable(f"changes of {shard!r} are final up to {state.upper} (exclusive), asked for {end}")
    return end
