"""Holds keep the history that readers need; ``downgrade_since`` drops history as far as holds allow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from uuid import uuid4

from tidemark.clock import Clock, SystemClock
from tidemark.errors import AsOfBeforeSince, Sealed, UsageError
from tidemark.frontier import Empty, Frontier
from tidemark.iceberg.commit.publisher import Proposal, Publication
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import CommitKind, Hold, ShardState
from tidemark.interval import DAY_MS


def hold(
    shard: Shard, reader: str, *, since: int | None = None, expires_at_ms: int, writer: Writer | None = None
) -> int:
    """Keep history from ``since`` (default: the present since) on until ``expires_at_ms``; return the first kept time.

    Replaces a hold of the same reader; ``NEVER`` makes a durable hold. The commit moves main, so it cannot race a
    downgrade. The tag ``hold-<reader>`` pins the snapshot with the contents at the first kept time against another
    tool's expiry. With ``writer`` the commit also fails once the writer is fenced.

    Raises:
        AsOfBeforeSince: If part of this history is gone already.
        Sealed: If the shard is sealed.
        Fenced: If ``writer`` is fenced.
    """
    if not reader.replace("-", "").replace("_", "").isalnum():
        raise UsageError(f"a reader's name has letters, digits, - and _, got {reader!r}")
    publication = Publication(shard)
    for head in publication.heads():
        if writer is not None:
            writer.check_token(head)
        state = head.state
        if isinstance(state.since, Empty):
            raise Sealed(f"shard {shard.name!r} is sealed: there is no history to hold")
        start = state.since if since is None else since
        if start < state.since:
            raise AsOfBeforeSince(f"history of {shard.name!r} before {state.since} is gone, asked for {start}")
        holds = {**state.holds, reader: Hold(start, expires_at_ms)}
        publication.commit(head, Proposal(state=publication.next_state(state, CommitKind.DOWNGRADE, holds=holds)))
    committed = publication.published.state.since
    assert isinstance(committed, int)  # noqa: S101  # the commit left since as it was, and a sealed shard is refused
    # The since of this commit, not the present one: by now the hold may have been released again.
    return committed if since is None else since


@contextmanager
def holding_history(
    shard: Shard, reader: str, *, since: int | None = None, longest_ms: int = DAY_MS, clock: Clock | None = None
) -> Iterator[int]:
    """Keep history inside a ``with`` block that reads several times; yield the first kept time.

    Each block has a hold of its own, named after ``reader`` and a random suffix: blocks of several processes do not
    disturb each other, nor a hold of ``reader`` itself. The end of the block releases the hold. If the process dies,
    the hold expires ``longest_ms`` after its start.

    Raises as ``hold``.
    """
    name = f"{reader}-{uuid4().hex[:12]}"
    clock = clock or SystemClock()
    first_kept = hold(shard, name, since=since, expires_at_ms=clock.now_ms() + longest_ms)
    try:
        yield first_kept
    finally:
        release(shard, name)


def release(shard: Shard, reader: str, *, writer: Writer | None = None) -> None:
    """Give up the hold of ``reader``; nothing happens if there is none.

    With ``writer`` the commit fails once the writer is fenced. Raises ``Fenced`` then.
    """
    release_chosen(shard, lambda state: {reader} & state.holds.keys(), writer=writer)


def release_chosen(
    shard: Shard, choose: Callable[[ShardState], Collection[str]], *, writer: Writer | None = None
) -> Collection[str]:
    """Give up the holds of the readers that ``choose`` returns, and return these readers.

    Each attempt asks ``choose`` anew, about the very state that its commit replaces: a hold that somebody takes
    meanwhile makes the commit fail. Raises as ``release``.
    """
    if not choose(shard.load().state):
        return ()
    publication = Publication(shard)
    gone: Collection[str] = ()
    for head in publication.heads():
        if writer is not None:
            writer.check_token(head)
        gone = choose(head.state)
        holds = {name: held for name, held in head.state.holds.items() if name not in gone}
        publication.commit(head, Proposal(state=publication.next_state(head.state, CommitKind.DOWNGRADE, holds=holds)))
    return gone


def downgrade_since(shard: Shard, since: int, *, now_ms: int) -> Frontier:
    """Give up history before ``since``, as far as live holds and the upper allow; return the new since.

    The since never goes back and stays below the upper. Holds that have expired at ``now_ms`` are dropped.
    """
    present = shard.load().state
    all_live = all(held.is_live(now_ms) for held in present.holds.values())
    if all_live and _reachable_since(present, since, now_ms) == present.since:
        return present.since
    publication = Publication(shard)
    for head in publication.heads():
        reachable = _reachable_since(head.state, since, now_ms)
        live = {reader: held for reader, held in head.state.holds.items() if held.is_live(now_ms)}
        state = publication.next_state(head.state, CommitKind.DOWNGRADE, since=reachable, holds=live)
        publication.commit(head, Proposal(state=state))
    return publication.published.state.since


def _reachable_since(state: ShardState, wanted: int, now_ms: int) -> Frontier:
    """Return the largest since up to ``wanted`` that live holds and the upper allow; never below the present since."""
    limits = [wanted]
    if (held := state.smallest_hold(now_ms)) is not None:
        limits.append(held)
    if isinstance(state.upper, int):
        limits.append(state.upper - 1)  # at least one time stays readable
    return max(min(limits), state.since)
