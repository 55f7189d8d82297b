"""The first durable act of an open: one commit that replaces the present token by a larger one.

Unlike other commits, this commit does not require an upper, or a leader that commits in a tight loop would win again
and again. It requires that the table's head (``PROPERTY``) is unchanged, because every commit that moves the token sets
the head, too. Items that others committed in between stay.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.table.snapshots import Operation

from tidemark.catalog.items.item import Change
from tidemark.catalog.persist.log import CatalogLog
from tidemark.catalog.persist.records import FENCE_TOKEN, PROPERTY, WHERE, token_text
from tidemark.errors import Fenced, UpperMismatch
from tidemark.iceberg.commit.publisher import Proposal, Publication
from tidemark.iceberg.commit.snapshot_builder import SnapshotChange
from tidemark.iceberg.log import LogUpdate, write_updates
from tidemark.iceberg.shard.state import CommitKind
from tidemark.iceberg.shard.token import Token


def commit_fence(log: CatalogLog, token: Token, *, changes: Sequence[Change], now_ms: int) -> None:
    """Replace the token of ``log`` by the larger ``token``, even if others commit items; the caller then syncs ``log``.

    ``changes`` are net changes of the config in the same commit.

    Raises:
        UpperMismatch: If somebody else fenced or changed the head; nothing was written: ``sync`` and decide again.
        FencedByGeneration: If a newer deployment owns the shard.
        Sealed: If the shard is sealed.
        Others as ``Publication.heads``.
    """
    updates = [LogUpdate(FENCE_TOKEN, "", text, -count) for text, count in log.record.items()]
    updates += [LogUpdate(FENCE_TOKEN, "", token_text(token), 1)]
    updates += [LogUpdate(*change.item, change.diff) for change in changes]
    shown = log.shown_with(token, changes)
    publication = Publication(log.shard)
    for head in publication.heads():
        state = head.state
        if state.token.generation > token.generation:
            raise Fenced.by(mine=token, theirs=state.token, where=WHERE)
        upper = state.open_upper(WHERE, hint="this installation was closed for good")
        if head.table.metadata.properties.get(PROPERTY) != log.shown:
            raise UpperMismatch(log.upper, upper)
        time = max(now_ms, upper)
        # New files for each attempt; the files of a lost attempt are orphans.
        added = write_updates(head.table, updates, time=time)
        proposal = Proposal(
            state=publication.next_state(state, CommitKind.FENCE, lower=time, upper=time + 1),
            main=SnapshotChange(operation=Operation.APPEND, added=added),
            set_properties={PROPERTY: shown},
        )
        publication.commit(head, proposal)
