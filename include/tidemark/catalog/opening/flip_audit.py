"""Whether the audit tells of the last flip of the truth: an open may die between its flip and its announcement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.catalog.items.kinds import AUDIT_EVENT, DEPLOYMENT, LEADER_EPOCH

if TYPE_CHECKING:
    from collections.abc import Collection

    from tidemark.catalog.back_end import Head
    from tidemark.catalog.items.transaction import Transaction
    from tidemark.catalog.opening.protocol import BackEnds, Direction


def may_be_unaudited(stash: Head, persist: Head, *, tombstone: bool | None) -> bool:
    """Tell whether somebody may have flipped and died before the announcement, by what both sides have announced.

    A copy takes the announcement of the other side over, or that there never was one, and an announcement is never
    made twice: equal ones mean that none was made since the copy. Whether the copy was followed by a flip is for
    ``audited_truth`` to tell. An emergency copies nothing, and is audited by the transaction that flips.
    """
    return tombstone is not None and stash.config.get(LEADER_EPOCH) == persist.config.get(LEADER_EPOCH)


def audited_truth(transaction: Transaction, operations: Collection[str]) -> str:
    """Return the name of the truth as the last event of ``operations`` left it; the stash's if there was none."""
    flips = [(key.id, event) for key, event in transaction.items(AUDIT_EVENT) if event.operation in operations]
    return str(max(flips, key=lambda flip: flip[0])[1].details.get("truth")) if flips else "stash"


def audit_flip(transaction: Transaction, ends: BackEnds, operation: Direction, *, epoch: int) -> None:
    """Write the event of a flip in the way ``operation``; ``epoch`` is that of the open which writes it."""
    transaction.audit(
        operation.value,
        kind=DEPLOYMENT,
        subject=f"generation {ends.generation}",
        who=ends.who,
        details={"epoch": epoch, "truth": operation.truth},
    )
