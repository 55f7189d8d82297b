"""History that readers need: holds keep it, and since moves on as far as they allow."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from tidemark.errors import AsOfBeforeSince, Sealed, UsageError
from tidemark.frontier import Empty, Frontier
from tidemark.iceberg.commit.publisher import Proposal, commit, next_state
from tidemark.iceberg.commit.snapshot_builder import NOTHING
from tidemark.iceberg.shard.state import HOLD, CommitKind, Hold, ShardState

if TYPE_CHECKING:
    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.iceberg.shard.shard import Shard


def hold(shard: Shard, reader: str, *, since: int | None = None, expires_at_ms: int) -> int:
    """Keep history from ``since`` on (default: as far back as there is) until ``expires_at_ms``; return that since.

    A live hold of the same reader is moved. The commit moves main, so that it cannot race a downgrade. The tag
    ``hold-<reader>`` pins the snapshot with the contents at that since, which another tool's expiry then leaves.

    Raises:
        AsOfBeforeSince: If history from there on is gone already.
    """

    def propose(head: ShardHead) -> Proposal:
        state = head.state
        if isinstance(state.since, Empty):
            raise Sealed(f"shard {shard.name!r} is sealed: there is no history to hold")
        start = state.since if since is None else since
        if start < state.since:
            raise AsOfBeforeSince(f"history of {shard.name!r} before {state.since} is gone, asked for {start}")
        holds = {**state.holds, reader: Hold(start, expires_at_ms)}
        return Proposal(state=next_state(shard, state, CommitKind.DOWNGRADE, commit_id, holds=holds), main=NOTHING)

    if not reader.replace("-", "").replace("_", "").isalnum():
        raise UsageError(f"a reader's name has letters, digits, - and _, got {reader!r}")
    commit_id = str(uuid4())
    state = commit(shard, commit_id, propose).state
    if since is not None:
        return since
    assert isinstance(state.since, int)  # noqa: S101  # the commit left it as it was, and a sealed shard is refused
    return state.since  # of that very commit: by now the hold may have been released again


def release(shard: Shard, reader: str) -> None:
    """Give up the hold of ``reader``; nothing happens if there is none."""
    if reader not in shard.load().state.holds:
        return

    def propose(head: ShardHead) -> Proposal:
        holds = {name: hold for name, hold in head.state.holds.items() if name != reader}
        state = next_state(shard, head.state, CommitKind.DOWNGRADE, commit_id, holds=holds)
        removed = (HOLD + reader,) if reader in head.state.holds else ()
        return Proposal(state=state, main=NOTHING, removed_properties=removed)

    commit_id = str(uuid4())
    commit(shard, commit_id, propose)


def downgrade_since(shard: Shard, since: int, *, now_ms: int) -> Frontier:
    """Let history before ``since`` go, as far as live holds and the upper allow; return the since that holds now.

    ``since`` never goes back and stays below the upper. Holds that have expired at ``now_ms`` are dropped.
    """

    def propose(head: ShardHead) -> Proposal:
        state = head.state
        dead = tuple(HOLD + reader for reader, hold in state.holds.items() if not hold.is_live(now_ms))
        holds = {reader: hold for reader, hold in state.holds.items() if hold.is_live(now_ms)}
        new = _reachable_since(state, since, now_ms)
        return Proposal(
            state=next_state(shard, state, CommitKind.DOWNGRADE, commit_id, since=new, holds=holds),
            main=NOTHING,
            removed_properties=dead,
        )

    present = shard.load().state
    all_live = all(hold.is_live(now_ms) for hold in present.holds.values())
    if all_live and _reachable_since(present, since, now_ms) == present.since:
        return present.since
    commit_id = str(uuid4())
    return commit(shard, commit_id, propose).state.since


def _reachable_since(state: ShardState, wanted: int, now_ms: int) -> Frontier:
    """Return the largest since up to ``wanted`` that live holds and readability allow; never below the present one."""
    limits = [wanted]
    if (hold := state.smallest_hold(now_ms)) is not None:
        limits.append(hold)
    if isinstance(state.upper, int):
        limits.append(state.upper - 1)  # at least one time stays readable
    return max(min(limits), state.since)
